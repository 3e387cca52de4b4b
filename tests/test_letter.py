"""A letter survives its journey or is refused with a sentence, and its size depends on its structure alone."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from mapl.errors import MaplError
from mapl.network import (
    MOST,
    Letter,
    LetterError,
    Schema,
    Spec,
    decode,
    encode,
    fingerprint,
    header_bytes,
    nbytes,
    specs,
)
from mapl.network.letter import sealed

RUN = "0123456789abcdef"
ARCHITECTURE = "fedcba9876543210"
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
structures = st.dictionaries(
    st.text("abcXYZ019._/-", min_size=1, max_size=12), st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4
)
numbers = st.integers(0, MOST)


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def letters(draw_: st.DrawFn) -> Letter:
    tensors = {name: draw(*kind, seed=draw_(st.integers(0, 99))) for name, kind in draw_(structures).items()}
    architecture = draw_(st.sampled_from(["", ARCHITECTURE]))
    samples = draw_(st.integers(1, MOST))
    return Letter(RUN, draw_(numbers), draw_(numbers), samples, architecture, tensors)


def schema_of(letter: Letter, **changes: object) -> Schema:
    fields = {
        "run": letter.run,
        "limit": 10_000,
        "tensors": specs(letter.tensors),
        "sender": letter.sender,
        "round": letter.round,
    }
    return Schema(**(fields | changes))  # type: ignore[arg-type]


def plain(**changes: object) -> Letter:
    tensors = {"head": torch.arange(6.0).reshape(2, 3), "prototypes": torch.ones(2, 4), "mask": torch.tensor([True])}
    fields = {"run": RUN, "sender": 3, "round": 7, "samples": 11, "architecture": ARCHITECTURE, "tensors": tensors}
    return Letter(**(fields | changes))  # type: ignore[arg-type]


@settings(deadline=None)
@given(letters())
def test_round_trip(letter: Letter) -> None:
    found = decode(encode(letter), schema_of(letter))
    assert (found.run, found.sender, found.round, found.samples, found.architecture) == (
        (letter.run, letter.sender, letter.round, letter.samples, letter.architecture)
    )
    assert list(found.tensors) == list(letter.tensors)
    for name, tensor in letter.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


@settings(deadline=None)
@given(letters())
def test_the_size_is_known_without_encoding(letter: Letter) -> None:
    payload = sum(tensor.numel() * tensor.element_size() for tensor in letter.tensors.values())
    assert nbytes(letter) == len(encode(letter))
    assert header_bytes(letter) == nbytes(letter) - payload


@settings(deadline=None)
@given(numbers, numbers, numbers, st.sampled_from(["", ARCHITECTURE]), st.floats(width=32))
def test_the_size_does_not_depend_on_values(
    sender: int, round: int, samples: int, architecture: str, value: float
) -> None:
    zero = plain(sender=0, round=0, samples=0, architecture="", tensors={"head": torch.zeros(2, 3)})
    letter = plain(
        sender=sender,
        round=round,
        samples=samples,
        architecture=architecture,
        tensors={"head": torch.full((2, 3), value)},
    )
    assert len(encode(letter)) == len(encode(zero)) == nbytes(letter)


def test_the_same_letter_is_the_same_bytes() -> None:
    assert len({encode(plain()) for _ in range(20)}) == 1


def test_views_of_one_tensor_and_tensors_that_require_gradients_can_travel() -> None:
    weights = torch.arange(12.0).reshape(3, 4).requires_grad_()
    letter = plain(tensors={"a": weights[0], "b": weights[:, 0], "c": weights.T, "d": weights})
    found = decode(encode(letter), schema_of(letter))
    assert all(torch.equal(found.tensors[name], letter.tensors[name]) for name in "abcd")
    assert not any(tensor.requires_grad for tensor in found.tensors.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "xyz"}, "run is 'xyz'"),
        ({"architecture": "CNN"}, "architecture is 'CNN'"),
        ({"sender": -1}, "sender is -1"),
        ({"round": 10**12}, "round is 1000000000000"),
        ({"samples": -5}, "samples is -5"),
        ({"tensors": {"__metadata__": torch.zeros(1)}}, "cannot be named '__metadata__'"),
        ({"tensors": {'a"b': torch.zeros(1)}}, "cannot be named"),
        ({"tensors": {"a": torch.zeros(1, dtype=torch.complex64)}}, "cannot be torch.complex64"),
    ],
)
def test_what_cannot_travel_is_not_written(changes: dict[str, object], words: str) -> None:
    with pytest.raises(MaplError, match=words):
        encode(plain(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limit": 100}, "of sender 3 has .* bytes, but at most 100"),
        ({"run": "f" * 16}, "of sender 3 belongs to run '0123456789abcdef', but 'ffffffffffffffff' is expected"),
        ({"sender": 4}, "of sender 4 says that its sender is 3, but 4 is expected"),
        ({"round": 8}, "of sender 3 is of round 7, but round 8 is expected"),
        ({"tensors": {}}, "of sender 3: unknown tensor 'head'; expected: "),
        ({"tensors": {"head": Spec((2, 3))}}, "of sender 3: unknown tensor 'mask'; expected: head"),
    ],
)
def test_what_was_not_expected_is_refused(changes: dict[str, object], words: str) -> None:
    letter = plain()
    with pytest.raises(MaplError, match=words):
        decode(encode(letter), schema_of(letter, **changes))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"head": torch.zeros(2, 3)}, "of sender 3: missing tensor 'mask'"),
        ({"head": torch.zeros(3, 2)}, r"'head' has shape \[3, 2\], but \[2, 3\] is expected"),
        ({"head": torch.zeros(2, 3).double()}, "'head' has dtype 'F64', but torch.float32 is expected"),
        ({"head": torch.full((2, 3), torch.nan)}, "of sender 3: 'head' has values that are not finite"),
        ({"head": torch.full((2, 3), torch.inf)}, "of sender 3: 'head' has values that are not finite"),
    ],
)
def test_contents_are_checked(tensors: dict[str, Tensor], words: str) -> None:
    contents = plain().tensors if "missing" not in words else {}
    with pytest.raises(MaplError, match=words):
        decode(encode(plain(tensors={**contents, **tensors})), schema_of(plain()))


def test_without_an_expected_sender_and_round_anyones_is_read() -> None:
    found = decode(encode(plain()), schema_of(plain(), sender=None, round=None))
    assert (found.sender, found.round) == (3, 7)


@pytest.mark.parametrize("architecture", [ARCHITECTURE, "0" * 16])
def test_a_shape_that_depends_on_the_architecture_holds_for_the_readers_own(architecture: str) -> None:
    """A reader knows the shapes of its own architecture alone; of the others, the number of dimensions."""
    own = architecture == ARCHITECTURE
    schema = schema_of(plain(), tensors={"backbone": Spec((5,), by_architecture=True)}, architecture=ARCHITECTURE)

    def sent(*shape: int) -> bytes:
        return encode(plain(architecture=architecture, tensors={"backbone": torch.zeros(shape)}))

    assert decode(sent(5), schema).tensors["backbone"].shape == (5,)
    for shape in ((9,), (1, 5)):
        if own or len(shape) == 2:
            with pytest.raises(MaplError, match="'backbone'"):
                decode(sent(*shape), schema)
        else:
            assert decode(sent(*shape), schema).tensors["backbone"].shape == shape


def forged(old: str, new: str) -> bytes:
    data = encode(plain())
    assert old.encode() in data
    return sealed(data.replace(old.encode(), new.encode()))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version=0002", "version=0001", "version that is '0001', but 2 is expected"),
        ("samples=000000000011", "samples=-00000000011", "of sender 3 has samples -11, but 0 or more"),
        ("samples=000000000011", "samples=000000000000", "of sender 3 has samples 0, but 1 or more"),
        ("samples=000000000011", "samples=eleven______", "samples 'eleven______', but a whole number"),
        ("sender=000000000003", "sender=00000000 003", "header fields"),
        ("round=000000000007", "round=0x0000000007", "round '0x0000000007', but a whole number"),
        (f"architecture={ARCHITECTURE}", "architecture=ABCDEFABCDEFABCD", "architecture 'ABCDEFABCDEFABCD'"),
        ("round=", "sound=", "header fields"),
        ('"letter"', '"latter"', "version that is missing"),
        ('"shape":[2,3]', '"shape":[3,2]', r"\[3, 2\]"),
        ('"data_offsets":[0,', '"data_offsets":[9,', "header has another form"),
        ('{"__metadata__"', '["__metadata__"', "not JSON"),
    ],
)
def test_forged_headers_are_refused(old: str, new: str, words: str) -> None:
    assert len(old) == len(new)
    with pytest.raises(MaplError, match=words):
        decode(forged(old, new), schema_of(plain()))


def framed(header: bytes, payload: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + payload


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"\0" * 7, "cut short"),
        (b"\xff" * 16, "cut short"),
        (encode(plain())[:-1], "is damaged"),
        (encode(plain()) + b"\0", "is damaged"),
        (sealed(encode(plain())[:-1] + b"\7"), "'mask' has bytes that are neither false nor true"),
        (encode(plain())[:-1] + b"\0", "checksum"),
        (framed(b" " * 5000), "a header of 5000 bytes, but at most"),
        (framed(b"[]"), "not a JSON object"),
        (framed(b'"\xff"'), "not JSON"),
        (framed(b'{"head":1,"head":2}'), "a key is given twice"),
        (framed(json.dumps({"__metadata__": {"letter": 5}}).encode()), "version that is missing"),
        (save({"head": torch.zeros(2, 3)}), "version that is missing"),
        (pickle.dumps(plain().tensors["mask"]), "safetensors"),
    ],
)
def test_what_is_no_letter_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(MaplError, match=words):
        decode(data, schema_of(plain()))


@pytest.mark.parametrize("header", [b"[" * 20_000, b'{"a":' * 9_000, b"9" * 20_000, b'{"a":' + b"9" * 5_000 + b"}"])
def test_headers_made_to_exhaust_the_parser_are_refused(header: bytes) -> None:
    wide = {f"tensor{number}": Spec((1,)) for number in range(300)}  # so that long headers are read at all
    with pytest.raises(MaplError, match="not JSON"):
        decode(framed(header), schema_of(plain(), limit=10**6, tensors=wide))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MaplError):
        decode(data, schema_of(plain()))
    with pytest.raises(MaplError):
        decode(framed(b'{"__metadata__":{' + data), schema_of(plain()))


edits = st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, 10**6), st.integers(0, 255))


@settings(deadline=None, max_examples=500)
@given(st.lists(edits, min_size=1, max_size=4), st.booleans())
def test_mutated_letters_are_refused_or_have_the_expected_structure(
    changes: list[tuple[str, int, int]], printable: bool
) -> None:
    letter = plain()
    data = bytearray(encode(letter))
    for kind, place, value in changes:
        at = place % len(data)
        byte = 32 + value % 95 if printable else value
        data[at : at + (kind != "insert")] = b"" if kind == "delete" else bytes([byte])
    schema = schema_of(letter, sender=None, round=None)
    try:
        found = decode(bytes(data), schema)
    except MaplError:
        return
    assert specs(found.tensors) == schema.tensors
    assert all(tensor.isfinite().all() for tensor in found.tensors.values())
    assert nbytes(found) == len(encode(found)) == nbytes(letter)


# One encoding for one letter


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"__metadata__"', '{ "__metadata__"'),
        ('"dtype":"F32"', '"dtype": "F32"'),
        ('"dtype":"F32"', '"dtype":"\\u00463\\u0032"'),
        ('"shape":[2,3]', '"more":1,"shape":[2,3]'),
        ('"shape":[2,3]', '"shape":[2, 3]'),
        ('"letter"', '"\\u006cetter"'),
    ],
)
def test_another_way_to_write_the_same_letter_is_refused(old: str, new: str) -> None:
    data = encode(plain())
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip(b" ").replace(old.encode(), new.encode())
    assert header != data[8 : 8 + length].rstrip(b" ")
    header += b" " * (-len(header) % 8)
    with pytest.raises(LetterError) as refused:
        decode(sealed(framed(header, data[8 + length :])), schema_of(plain()))
    assert refused.value.reason == "format"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_has_no_sign(dtype: torch.dtype) -> None:
    letter = plain(tensors={"head": torch.tensor([-0.0, 1.0], dtype=dtype)})
    data = encode(letter)
    assert data == encode(plain(tensors={"head": torch.tensor([0.0, 1.0], dtype=dtype)}))
    assert not decode(data, schema_of(letter)).tensors["head"].signbit().any()
    assert letter.tensors["head"].signbit().any()  # the writer's own tensor is as it was
    forged = bytearray(data)
    forged[len(data) - dtype.itemsize - 1] = 0x80  # the last byte of the first number
    with pytest.raises(LetterError) as refused:
        decode(sealed(bytes(forged)), schema_of(letter))
    assert refused.value.reason == "format"


@pytest.mark.parametrize("place", [0, 9, 60, 130, 180, -1, -9])
def test_every_byte_is_under_the_checksum(place: int) -> None:
    data = bytearray(encode(plain()))
    data[place] ^= 1
    with pytest.raises(LetterError) as refused:
        decode(bytes(data), schema_of(plain()))
    assert refused.value.reason in ("checksum", "format", "version")


def test_a_range_holds_for_every_element() -> None:
    for values, fits in (([0, 5], True), ([-1, 5], False), ([0, 6], False)):
        letter = plain(tensors={"count": torch.tensor(values)})
        schema = schema_of(letter, tensors={"count": Spec((2,), torch.int64, low=0, high=5)})
        if fits:
            decode(encode(letter), schema)
            continue
        with pytest.raises(LetterError) as refused:
            decode(encode(letter), schema)
        assert refused.value.reason == "range"


@pytest.mark.parametrize("shape", [[10**30, 0], [2**62, 4], [-1], [True], [2**40]])
def test_a_shape_made_to_exhaust_memory_is_refused(shape: list[int]) -> None:
    letter = plain(architecture="0" * 16, tensors={"backbone": torch.zeros(2, 3)})
    schema = schema_of(letter, tensors={"backbone": Spec((5,) * len(shape), by_architecture=True)})
    data = encode(letter)
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b"[2,3]", json.dumps(shape).encode())
    with pytest.raises(LetterError) as refused:
        decode(sealed(framed(header, data[8 + length :])), schema)
    assert refused.value.reason == "shape"


def test_a_fingerprint_tells_names_and_shapes_and_nothing_else() -> None:
    one = {"a.weight": (3, 4), "b.bias": (3,)}
    assert fingerprint(one) == fingerprint(dict(reversed(one.items())))
    assert len(fingerprint(one)) == 16
    assert int(fingerprint(one), 16) >= 0
    others = [{"a.weight": (4, 3), "b.bias": (3,)}, {"a.weight": (3, 4)}, {"a.weight": (3,), "b.bias": (3, 4)}, {}]
    assert len({fingerprint(shapes) for shapes in [one, *others]}) == 5
