"""Compressed letters: each codec against its definition, every method over every transport, checkpoints, errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import Tensor

import mapl
from conftest import assert_same, play, row_of, small, stop_after, written
from mapl import Client, MaplError, Recipe
from mapl.analysis.compare import group
from mapl.analysis.control import control_of
from mapl.methods.local import Local
from mapl.methods.mapl import Mapl
from mapl.network import (
    Compressor,
    CompressSettings,
    EncodedPost,
    Inbox,
    Ledger,
    Letter,
    Mail,
    MemoryPost,
    Schema,
    encode,
    find_compressor,
    nbytes,
    specs,
)
from mapl.network.codecs import BLOCK, blocks, from_int8, largest_gaps, share, to_bfloat16, to_int8
from mapl.network.topk import TopK
from mapl.recipe import assignment, compose
from mapl.runs.exchange import Exchange, look_around
from mapl.runs.part import build_part
from mapl.runs.round import play_round
from test_compare import record
from test_transports import METHODS, Faulty, all_of, in_parts, recipe

KINDS = ["bfloat16", "int8", "top-k"]
RUN = "0" * 16
FLOAT32 = {"width": 32, "allow_nan": False, "allow_infinity": False}
Floats = NDArray[np.float32]


def numbers(most: int = 200, **limits: Any) -> st.SearchStrategy[Floats]:
    """Float32 numbers of all magnitudes."""
    return arrays(np.float32, st.integers(1, most), elements=st.floats(**{**FLOAT32, **limits}))


# The codecs


@given(numbers(min_value=-(2.0**127), max_value=2.0**127))
def test_int8_is_within_half_a_step_of_each_block(x: Floats) -> None:
    values, scales = to_int8(torch.from_numpy(x)[None])
    back = from_int8(values, scales)[0].double().numpy()
    assert (values.dtype, values.shape, scales.shape) == (torch.int8, (1, len(x)), (1, blocks(len(x))))
    for block, scale in enumerate(scales[0].double().tolist()):
        mine = slice(block * BLOCK, (block + 1) * BLOCK)
        expected = np.abs(x[mine].astype(np.float64)).max() / 127
        assert abs(scale - expected) <= 2**-24 * expected + 2**-150
        error = np.abs(x[mine].astype(np.float64) - back[mine])
        # Half a step, and the rounding of division, product and scale; the last term is for subnormal scales.
        assert (error <= scale * (0.5 + 127 * 2**-22) + 127 * 2**-150).all()


def test_int8_by_hand() -> None:
    """Two blocks of very different size, of which the second is short; and one of zeros."""
    first = torch.linspace(-127, 127, BLOCK)
    x = torch.cat([first, torch.tensor([127e-6, -2e-6, 0.4e-6])])[None]
    values, scales = to_int8(x)
    assert values[0, :BLOCK].tolist() == np.rint(first.double().numpy()).tolist()
    assert values[0, BLOCK:].tolist() == [127, -2, 0]
    assert scales[0].tolist() == pytest.approx([1, 1e-6])
    assert to_int8(torch.zeros(1, 70))[1].tolist() == [[0, 0]]
    assert not from_int8(*to_int8(torch.zeros(1, 70))).any()


@given(arrays(np.int8, 70), arrays(np.float32, 2, elements=st.floats(width=32)))
def test_int8_decodes_to_finite_numbers_whatever_a_letter_says(values: NDArray[np.int8], scales: Floats) -> None:
    assert from_int8(torch.from_numpy(values)[None], torch.from_numpy(scales)[None]).isfinite().all()


@given(numbers())
def test_the_largest_numbers_stay_finite(x: Floats) -> None:
    rows = torch.from_numpy(x)[None]
    assert from_int8(*to_int8(rows)).isfinite().all()
    assert to_bfloat16(rows).isfinite().all()


@given(numbers(min_value=-(2.0**127), max_value=2.0**127))
def test_bfloat16_is_rounded_to_nearest(x: Floats) -> None:
    bits = x.view(np.uint32).astype(np.uint64)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    back = to_bfloat16(torch.from_numpy(x)).float().numpy()
    assert (back == nearest).all()
    normal = np.abs(x) >= np.finfo(np.float32).tiny
    assert (np.abs(x - back.astype(np.float64))[normal] <= 2.0**-8 * np.abs(x)[normal]).all()


few = st.sampled_from([0.0, 1.0, -1.0, 2.0, -0.0])


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*[arrays(np.float32, (3, n), elements=few)] * 2)), st.data())
def test_the_largest_gaps_and_of_equals_the_first(pair: tuple[Floats, Floats], data: st.DataObject) -> None:
    x, believed = pair
    count = data.draw(st.integers(0, x.shape[1]))
    order = np.argsort(-np.abs(x.astype(np.float64) - believed), axis=1, kind="stable")[:, :count]
    found = largest_gaps(torch.from_numpy(x), torch.from_numpy(believed), count)
    assert found.tolist() == np.sort(order, axis=1).tolist()


def test_a_sender_that_has_diverged_still_sends_as_many_numbers() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan, math.inf]])
    assert largest_gaps(x, torch.zeros(1, 5), 3).tolist() == [[1, 3, 4]]


# Letters on their way


def letter(sender: int, round: int, **tensors: Tensor) -> Letter:
    return Letter(RUN, sender, round, 10, "", tensors)


def send(
    compressor: Compressor | None,
    round: int,
    letters: Sequence[Letter],
    requests: Mapping[int, Sequence[int]],
    post: Any = None,
) -> tuple[Mail, dict[int, Inbox]]:
    """One exchange, as it travels and as it is read."""

    def expects(reader: int) -> Schema:
        return Schema(RUN, 10**6, specs(letters[0].tensors), round=round)

    asked = {reader: torch.tensor(senders) for reader, senders in requests.items()}
    mail = Mail(round, "letters", {one.sender: one for one in letters}, asked, expects)
    if compressor is None:
        return mail, (post or MemoryPost()).exchange(mail)
    mail = compressor.outgoing(mail)
    return mail, compressor.incoming(mail, (post or MemoryPost()).exchange(mail))


SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (BLOCK,), (BLOCK + 1,), (3, 5, 7), (0, 4)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("post", [MemoryPost, EncodedPost])
def test_readers_get_the_names_shapes_and_dtypes_that_were_written(kind: str, post: Any) -> None:
    compressor = find_compressor(CompressSettings(kind=kind, keep=0.3))  # type: ignore[arg-type]
    exact = {"count": torch.arange(5), "mask": torch.tensor([True, False]), "wide": torch.full((2,), math.pi).double()}
    for round in range(3):
        tensors = {f"x{i}": torch.randn(shape) for i, shape in enumerate(SHAPES)}
        letters = [letter(sender, round, **tensors, **exact) for sender in (1, 2)]
        mail, inboxes = send(compressor, round, letters, {0: [1, 2], 1: [2]}, post())
        for sent in mail.letters.values():
            assert nbytes(sent) == len(encode(sent))
        ledger = Ledger()
        ledger.record(inboxes.values())
        assert ledger.bytes == sum(len(encode(mail.letters[sender])) for sender in (1, 2, 2))
        for name, tensor in letters[0].tensors.items():
            got = inboxes[0].tensor(name)
            assert (got.shape, got.dtype) == ((2, *tensor.shape), tensor.dtype)
            if name in exact:
                assert torch.equal(got[0], tensor)
        assert torch.equal(inboxes[0].tensor("x5")[1], inboxes[1].tensor("x5")[0])


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_tensors_that_are_top_kalready_travel_as_they_are(kind: str) -> None:
    x = torch.randn(3)
    letters = [letter(1, 0, x=x, a=x.to(torch.bfloat16), b=x.to(torch.int8), c=x.half())]
    _, inboxes = send(find_compressor(CompressSettings(kind=kind)), 0, letters, {0: [1]})  # type: ignore[arg-type]
    for name in "abc":
        assert torch.equal(inboxes[0].tensor(name)[0], letters[0].tensors[name])


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_finds_its_own_tensor_among_compressed_ones(kind: str) -> None:
    compressor = find_compressor(CompressSettings(kind=kind))  # type: ignore[arg-type]
    own = {sender: torch.randn(100) for sender in (0, 1)}
    for round in range(2):  # the first is full with top-k
        _, inboxes = send(compressor, round, [letter(i, round, x=x) for i, x in own.items()], {0: [1], 1: [0]})
    assert inboxes[0].own_rows("x", torch.tensor([0, 1]), list(own.values())).tolist() == [-1, -1]


def test_a_letter_whose_scales_do_not_fit_is_left_out() -> None:
    """The schema cannot tell, if the sender has another architecture."""
    compressor = find_compressor(CompressSettings(kind="int8"))
    assert compressor is not None

    class Damaging(MemoryPost):
        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            damaged = replace(mail.letters[2], tensors={**mail.letters[2].tensors, "x/scales": torch.ones(3)})
            return super().exchange(replace(mail, letters={**mail.letters, 2: damaged}))

    letters = [letter(sender, 0, x=torch.randn(100)) for sender in (1, 2, 3)]
    _, inboxes = send(compressor, 0, letters, {0: [1, 2, 3], 4: [2]}, Damaging())
    assert inboxes[0].senders.tolist() == [1, 3]
    assert len(inboxes[4]) == 0
    for row, sender in enumerate((0, 2)):
        x = letters[sender].tensors["x"]
        assert torch.allclose(inboxes[0].tensor("x")[row], x, atol=float(x.abs().max()) / 127)


# Top-k with error feedback


@settings(max_examples=25)
@given(numbers(60), st.floats(0.02, 0.4))
def test_the_replica_of_a_constant_tensor_becomes_that_tensor(x: Floats, keep: float) -> None:
    compressor, tensor = TopK(keep, refresh=10**6), torch.from_numpy(x.copy())
    send(compressor, 0, [letter(1, 0, x=torch.zeros(len(x)))], {0: [1]})
    count = share(keep, len(x))
    assert count == min(len(x), math.ceil(keep * len(x)))
    believed = torch.zeros(len(x))
    for round in range(1, math.ceil(len(x) / count) + 1):
        _, inboxes = send(compressor, round, [letter(1, round, x=tensor)], {0: [1]})
        now = inboxes[0].tensor("x")[0]
        changed = now != believed
        assert int(changed.sum()) <= count or torch.equal(now, tensor)  # or it was sent full, because that is smaller
        assert torch.equal(now[changed], tensor[changed])  # what is sent is exact; what remains is sent later
        believed = now
    assert torch.equal(believed, tensor)


def long(sender: int, round: int) -> Letter:
    """Long enough for an increment to be smaller."""
    draw = torch.Generator().manual_seed(100 * sender + round)
    return letter(sender, round, x=torch.randn(400, generator=draw), n=torch.tensor([round]))


class Losing(EncodedPost):
    """Loses all letters to some readers in some rounds, given as (round, reader)."""

    def __init__(self, lost: set[tuple[int, int]]) -> None:
        super().__init__()
        self.lost = lost

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        kept = {reader: ids for reader, ids in mail.requests.items() if (mail.round, reader) not in self.lost}
        inboxes = super().exchange(replace(mail, requests=kept))
        return {reader: inboxes.get(reader, Inbox.of([])) for reader in mail.requests}


def test_who_missed_a_letter_waits_for_the_next_full_one() -> None:
    compressor, post = TopK(0.1, refresh=5), Losing({(2, 0)})
    heard: dict[int, list[int]] = {0: [], 1: [], 3: []}
    for round in range(10):
        asked = {0: [2], 1: [2]} | ({3: [2]} if round >= 6 else {})  # 3 asks late
        mail, inboxes = send(compressor, round, [long(2, round)], asked, post)
        assert ("x" in mail.letters[2].tensors) == (round in (0, 5))
        for reader, inbox in inboxes.items():
            if len(inbox):
                heard[reader].append(round)
                assert torch.equal(inbox.tensor("x")[0], compressor.replicas["letters", 2, -1].tensors["x"])
                assert inbox.tensor("n").tolist() == [[round]]
    assert heard == {0: [0, 1, 5, 6, 7, 8, 9], 1: list(range(10)), 3: []}


def test_full_letters_are_counted_in_letters_also_after_a_checkpoint() -> None:
    compressor, full = TopK(0.1, refresh=3), []
    for round in range(0, 40, 5):
        mail, inboxes = send(compressor, round, [long(2, round)], {0: [2]})
        assert len(inboxes[0]) == 1
        full.append("x" in mail.letters[2].tensors)
        saved = compressor.state()
        compressor = TopK(0.1, refresh=3)
        compressor.load_state(saved)
    assert full == [True, False, False] * 2 + [True, False]


def test_letters_do_not_build_on_those_that_new_readers_did_not_read() -> None:
    compressor, full = TopK(0.1, refresh=100), []
    for round, anew in [(0, 0), (1, 0), (3, 2), (4, 2), (5, 5)]:  # in round 2 nobody wrote
        mail = Mail(round, "letters", {2: long(2, round)}, {}, lambda reader: pytest.fail("schema"), anew=anew)
        full.append("x" in compressor.outgoing(mail).letters[2].tensors)
    assert full == [True, False, True, False, True]


def test_state_does_not_grow_with_readers() -> None:
    sizes = []
    for readers in (1, 20):
        compressor = TopK(0.1, refresh=5)
        for round in range(2):
            send(compressor, round, [long(50, round), long(51, round)], {i: [50, 51] for i in range(readers)})
        state = compressor.state()
        sizes.append(sum(tensor.numel() for name, tensor in state.items() if name.startswith("replica")))
        assert state["held.letters.rounds"].tolist() == [1] * 2 * readers
    assert sizes == [800, 800]


def elsewhere(rounds: int) -> list[Letter]:
    """Letters of client 2 as they travel, from another process."""
    sender = TopK(0.1, refresh=100)
    return [send(sender, round, [long(2, round)], {})[0].letters[2] for round in range(rounds)]


def read(compressor: TopK, round: int, arrived: Letter) -> Inbox:
    mail = Mail(round, "letters", {}, {0: torch.tensor([2])}, lambda reader: pytest.fail("schema"))
    return compressor.incoming(mail, {0: Inbox.of([arrived])})[0]


def test_late_letters_are_read_if_they_are_full() -> None:
    sent = elsewhere(4)
    reader = TopK(0.1, refresh=100)
    assert torch.equal(read(reader, 1, sent[0]).tensor("x")[0], long(2, 0).tensors["x"])
    assert [len(read(reader, round, sent[round])) for round in (2, 3)] == [0, 0]  # nothing builds on it
    reader = TopK(0.1, refresh=100)
    assert [len(read(reader, *each)) for each in ((0, sent[0]), (2, sent[1]), (2, sent[2]))] == [1, 0, 0]


@pytest.mark.parametrize(
    "positions", [[-1, *range(1, 40)], [*range(39), 400], [3, *range(39)], list(range(39))], ids=str
)
def test_an_increment_that_does_not_belong_is_left_out(positions: list[int]) -> None:
    sent, reader = elsewhere(3), TopK(0.1, refresh=100)
    assert len(read(reader, 0, sent[0])) == 1
    wrong = torch.tensor(positions, dtype=torch.int32)
    assert len(read(reader, 1, replace(sent[1], tensors={**sent[1].tensors, "x/positions": wrong}))) == 0
    assert len(read(reader, 2, sent[2])) == 0
    assert torch.equal(reader.replicas["letters", 2, -1].tensors["x"], long(2, 0).tensors["x"])


# Every method


def compressed(name: str, kind: str, rounds: int = 4, **network: Any) -> Recipe:
    how = {"kind": kind, "keep": 0.1, "refresh": 3}
    made = recipe(name, rounds=rounds, evaluate={"every": 10}, network={"compress": how, **network})
    if name == "flt":
        made = made.model_copy(update={"method": made.method.model_copy(update={"encoder_epochs": 1})})
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_to_the_bit_over_every_transport(name: str, kind: str) -> None:
    """In two parts only with top-k, which has state: for the others a part is one more reader of bytes."""
    rounds = 4 if kind == "top-k" else 3
    memory = play(compressed(name, kind, rounds))
    encoded = play(compressed(name, kind, rounds, transport="bytes"))
    assert encoded.lines == memory.lines
    assert_same(all_of(encoded), all_of(memory))
    assert bool(memory.ledger.bytes) == (not memory.method.silent)
    if kind != "top-k":
        return
    parts = in_parts(compressed(name, kind), [[1, 4], [0, 2, 3, 5]])
    together = {key: tensor for part in parts for key, tensor in all_of(part).items()}
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(memory).items())))
    assert sum(part.ledger.bytes for part in parts) == memory.ledger.bytes


@pytest.mark.parametrize("name", ["fedavg", "pfedsim", "dfedavgm"])
def test_methods_that_send_models_send_fewer_bytes(name: str) -> None:
    """Between peers, with one reply for all, and with personal ones. The first letters are full with top-k."""

    def sent(kind: str) -> list[int]:
        return [line.bytes for line in play(compressed(name, kind, rounds=2)).lines]  # type: ignore[attr-defined]

    plain = sent("none")
    for kind, first, second in (("bfloat16", 0.505, 0.505), ("int8", 0.275, 0.275), ("top-k", 1, 0.21)):
        for bytes_, full, most in zip(sent(kind), plain, (first, second), strict=True):
            assert 0.95 * most * full < bytes_ <= most * full


@pytest.mark.parametrize("name", ["mapl+", "fedavg", "fedsim"])
def test_top_k_over_a_network_that_loses_letters(name: str) -> None:
    made, faulty = compressed(name, "top-k", rounds=8), Faulty(seed=1)
    part = play(made, part=build_part(made, transport=faulty))
    assert min(faulty.counts[what] for what in ("lost", "late", "twice", "stale")) > 0
    assert all(tensor.isfinite().all() for tensor in all_of(part).values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_mixes_its_own_tensor_as_it_is(kind: str) -> None:
    """W is uniform before the graph is learned, so every client ends with the mean of what it has and what it read."""
    made = small("mapl", rounds=2, method={"warmup": 5}, network={"compress": kind})
    part = play(made, rounds=1)
    part.engine.train_all(part.clients, 1)
    own = [client.model.prototypes.detach().clone() for client in part.clients]
    look_around(part.method, part.clients, None, part.topology, 1)
    pairs = Exchange(part.method, part.clients, None, part.transport, part.ledger, 1, compressor=part.compressor).run()
    heard = {client.id: inbox.tensor("prototypes").clone() for client, inbox in pairs}
    assert not torch.equal(heard[0], torch.stack(own[1:]))
    part.method.absorb_all(1, pairs)
    for client, mine in zip(part.clients, own, strict=True):
        mean = torch.cat([heard[client.id], mine[None]]).double().mean(dim=0)
        assert torch.allclose(client.model.prototypes.double(), mean, atol=1e-6)


# Methods that do not read every letter of a peer


Letters = list[tuple[int, int, int]]
"""By round: how many letters were sent, how many of them their readers could use, and how many bytes they had."""


def letters_of(name: str, kind: str, rounds: int, **over: Any) -> tuple[Letters, list[Tensor]]:
    """The letters of a run, and in each round whose letters clients mix with their own (M, M)."""
    network = {"compress": kind, **over.pop("network", {})}
    made = small(name, rounds=rounds, model={"backbones": ["mlp"]}, evaluate={"every": 100}, network=network, **over)
    part, letters, supports = build_part(made), [], []
    absorb_all, read = part.method.absorb_all, [0]

    def counting(round: int, pairs: Iterable[tuple[Client, Inbox]]) -> None:
        pairs = list(pairs)
        read[0] = sum(len(inbox) for _, inbox in pairs)
        absorb_all(round, pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part.method, "absorb_all", counting)
        for round in range(rounds):
            line, _ = play_round(part, round)
            letters.append((line.messages, read[0], line.bytes))
            supports.append(torch.stack([row_of(client, made.clients) for client in part.clients]) > 0)
    return letters, supports


@pytest.mark.parametrize("every", [1, 2, 5])
def test_couriers_read_every_top_k_letter_that_they_ask_for(every: int) -> None:
    """Some peers are asked again only after 1, 2, 4, 8, … letters, and there may be silent rounds in between."""
    plain, graphs = letters_of("courier", "none", 12, method={"every": every})
    top_k, supports = letters_of("courier", "top-k", 12, method={"every": every})
    assert [read for _, read, _ in top_k] == [read for _, read, _ in plain] == [sent for sent, _, _ in top_k]
    assert [t for t, (_, read, _) in enumerate(top_k) if read] == list(range(every - 1, 12, every))
    assert torch.equal(torch.stack(supports), torch.stack(graphs))
    assert 4 < int(supports[-1].sum()) < 16  # the graph is learned: neither nobody's letters nor everybody's
    full = {number * every - 1 for number in (1, 2, 4, 8)}
    for t, ((_, read, bytes_), (_, _, uncompressed)) in enumerate(zip(top_k, plain, strict=True)):
        assert bytes_ == uncompressed if t in full or not read else bytes_ < 0.12 * uncompressed


def test_couriers_write_nothing_in_silent_rounds() -> None:
    over: dict[str, Any] = {"rounds": 5, "method": {"every": 2}}
    part = build_part(small("courier", **over))
    look_around(part.method, part.clients, None, part.topology, 0)
    client = part.clients[0]
    letters = [part.method.letter(client, t) for t in range(5)]
    assert [one is None for one in letters] == [True, False, True, False, True]
    assert letters[1] is not None
    for t in range(2):
        expected = part.method.schema(client, t)
        assert all(spec.by_architecture for spec in expected.values())
        assert {name: spec._replace(by_architecture=False) for name, spec in expected.items()} == specs(
            letters[1].tensors
        )
    build_part(small("courier", network={"letter_limit": nbytes(letters[1])}, **over))
    with pytest.raises(MaplError, match="letter_limit"):  # although the last round is silent
        build_part(small("courier", network={"letter_limit": nbytes(letters[1]) - 1}, **over))


def test_proxyfl_hears_another_peer_every_round_so_its_letters_are_full() -> None:
    (plain, _), (full, _) = (letters_of("proxyfl", kind, 4) for kind in ("none", "top-k"))
    assert full == plain
    assert [(sent, read) for sent, read, _ in full] == [(4, 4)] * 4


@pytest.mark.parametrize(
    ("name", "every", "rounds", "full"),
    [("dfedavgm", 3, 7, {0, 3, 6}), ("mapl+", 3, 7, {0, 1, 3, 6}), ("courier", 2, 6, {1, 3, 5})],
    ids=["everyone is asked", "letters change after warm-up", "redrawn in silent rounds"],
)
def test_letters_are_full_after_the_topology_was_redrawn(name: str, every: int, rounds: int, full: set[int]) -> None:
    topology = {"name": "regular", "degree": 2, "every": every}
    over = {"method": {"every": 2}} if name == "courier" else {}
    letters, _ = letters_of(name, "top-k", rounds, clients=6, network={"topology": topology}, **over)
    assert [read for _, read, _ in letters] == [sent for sent, _, _ in letters]
    sizes = [bytes_ / sent if sent else 0 for sent, _, bytes_ in letters]
    assert {t for t, size in enumerate(sizes) if size > 0.5 * max(sizes)} == full


def test_a_topology_that_is_redrawn_the_same_changes_nothing() -> None:
    runs = [letters_of("dfedavgm", "top-k", 3, network={"topology": {"name": "ring", "every": n}}) for n in (0, 1)]
    assert runs[0][0] == runs[1][0]


# Checkpoints


@pytest.mark.parametrize(("name", "rounds"), [("mapl+", 5), ("pfedsim", 5), ("courier", 7)])
def test_a_run_with_top_k_that_was_interrupted_ends_with_the_same_bytes(name: str, rounds: int, tmp_path: Path) -> None:
    """Couriers send full letters 1, 2 and 4; then 5 and 6 are increments, and 7 is full again."""
    made = small(
        name,
        rounds=rounds,
        evaluate={"every": 10},
        checkpoint={"keep": 3},
        network={"compress": {"kind": "top-k", "keep": 0.1, "refresh": 3}},
        **({"model": {"backbones": ["mlp"]}} if name != "mapl+" else {}),
    )
    mapl.run(made, tmp_path / "whole")
    mapl.run(made, tmp_path / "stopped", stop=stop_after(rounds - 2))
    mapl.resume(tmp_path / "stopped")
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")  # while the last checkpoints were not on disk yet
    for path in sorted((tmp_path / "killed" / "checkpoints").iterdir())[-2:]:
        path.unlink()
    mapl.resume(tmp_path / "killed")
    assert written(tmp_path / "killed") == written(tmp_path / "whole")


# Settings


def test_short_and_long_forms_of_the_setting() -> None:
    short = Recipe.of(network={"compress": "int8"})
    assert short == Recipe.of(network={"compress": {"kind": "int8"}})
    assert short == compose(("--set", assignment("network.compress=int8")))[0]
    file, option = {"network": {"compress": "top-k"}}, assignment("network.compress.keep=0.2")
    assert compose(("file", file), ("--set", option))[0].network.compress == CompressSettings(kind="top-k", keep=0.2)


def test_without_compression_nothing_changes() -> None:
    plain = small("mapl")
    assert build_part(plain).compressor is None
    assert play(plain).ledger == play(small("mapl", network={"compress": "none"})).ledger
    # Results from before there was a choice are found by their fingerprints, which know nothing of compression.
    assert Recipe.of().fingerprint() == Recipe.of(network={"compress": {"keep": 0.5, "refresh": 3}}).fingerprint()
    prints = {Recipe.of(network={"compress": kind}).fingerprint() for kind in ("none", *KINDS)}
    assert len(prints) == 4
    assert Recipe.of().fingerprint() in prints


@pytest.mark.parametrize(
    ("given_", "words"),
    [("gzip", "network.compress.kind"), ({"keep": 0}, "network.compress.keep"), ({"refresh": 0}, "refresh")],
)
def test_settings_that_do_not_exist(given_: Any, words: str) -> None:
    with pytest.raises(MaplError, match=words):
        Recipe.of(network={"compress": given_})


class Counting(Local):
    """Shares a count and no weights."""

    name = "counting"

    def wants(self, client: Client, round: int) -> Tensor:
        return client.neighbours

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"count": torch.tensor([client.samples])})


class Reserved(Mapl):
    """Gives a tensor a name that compression needs."""

    def contents(self, client: Client, round: int) -> dict[str, Tensor]:
        return {**super().contents(client, round), "head/scales": torch.zeros(1)}


@pytest.mark.parametrize("kind", KINDS)
def test_letters_that_cannot_be_compressed_are_refused_before_the_first_round(kind: str) -> None:
    def of(name: str, kind: str) -> Recipe:
        return small(f"test_compress:{name}", network={"compress": kind})

    play(of("Counting", "none"))
    with pytest.raises(MaplError, match=rf"network.compress.*{kind}.*counting"):
        build_part(of("Counting", kind))
    build_part(of("Reserved", "none"))
    with pytest.raises(MaplError, match="head/scales"):
        build_part(of("Reserved", kind))


def test_the_limit_of_a_letter_counts_bytes_on_the_wire() -> None:
    model = {"backbones": ["mlp"]}
    part = build_part(small("fedavg", model=model))
    full = nbytes(part.method.letter(part.clients[0], 0))
    for kind, fits in (("none", False), ("int8", True), ("top-k", False)):
        made = small("fedavg", model=model, network={"letter_limit": full // 2, "compress": kind})
        if fits:
            play(made)
        else:
            with pytest.raises(MaplError, match="letter_limit"):
                build_part(made)


def test_arms_are_labelled_by_their_letters_and_share_a_control() -> None:
    arms = [small("mapl", network={"compress": kind}) for kind in ("none", "int8", "top-k")]
    alone = small("mapl", network={"topology": {"name": "none"}})
    assert {control_of(arm) for arm in arms} == {control_of(alone)}
    names = list(group([record(made, [0.5]) for made in (alone, *arms)]))
    assert names == ["mapl, no letters", "mapl, float32 letters", "mapl, int8 letters", "mapl, top-k letters"]
    assert list(group([record(made, [0.5]) for made in (alone, arms[0])])) == ["mapl, no letters", "mapl"]
