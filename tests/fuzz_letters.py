"""Letters changed at random, on the wire and in memory: python tests/fuzz_letters.py [LETTERS [SEED]]. `make check` runs it.

Every letter is either read or refused for a reason. A letter that is read encodes to the bytes that it came from, so
nothing about it changed silently. A letter that can be posted in memory gets the same verdict there as over bytes. Bytes
also go through the transport of a peer, which gives the same verdict and reads no letter of a round that it should not
read. No letter takes much time, and memory does not grow. The counts of all outcomes are printed.
"""

from __future__ import annotations

import random
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor, nn

from conftest import small
from mapl import Inbox, Letter
from mapl.network import EncodedPost, LetterError, Mail, MemoryPost, Schema, decode, encode, inspect
from mapl.network.letter import Reason, sealed
from mapl.peer.outbox import NONE, Outbox
from mapl.peer.settings import WaitSection
from mapl.runs.part import build_part
from mapl.runs.round import play_round

if TYPE_CHECKING:
    from mapl.peer.post import PeerPost

Sample = tuple[Letter, Schema]
"""A good letter, and what its reader expects."""
KINDS = [
    ("mapl", "none"), ("mapl+", "none"), ("courier", "none"), ("fedsim", "none"), ("fedproto", "none"),
    ("proxyfl", "none"), ("dfedavgm", "none"), ("mapl", "bfloat16"), ("mapl", "int8"), ("mapl", "top-k"),
]  # fmt: skip
READER = 10**9
LENGTH = 3
"""The number of rounds of the runs that the letters are of."""
WAITS = [WaitSection(first=1e-9, patience=1e-9, staleness=staleness) for staleness in (0, 1, 5)]
"""A peer that waits for nothing but what has arrived."""
PEERS = find_spec("cryptography") is not None
"""Whether peers are installed."""
SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 3e38, -3e38, 1e-45, -9.0, 0.0, 2.0**63]


def tiny(image: tuple[int, int, int], embedding: int) -> nn.Module:
    """A backbone, so that letters with whole models are small, too."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * image[0], embedding))


def tinier(image: tuple[int, int, int], embedding: int) -> nn.Module:
    """Another architecture."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(image[0], embedding))


def good_letters() -> list[Sample]:
    """Letters of real runs: several methods, and all ways to compress."""
    samples: list[Sample] = []

    class Watched(MemoryPost):
        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            for reader, asked in mail.requests.items():
                for sender in asked.tolist()[:2]:
                    if sender in mail.letters:
                        samples.append((mail.letters[sender], mail.expects(reader)))
            return super().exchange(mail)

    for name, compress in KINDS:
        backbones = ["fuzz_letters:tiny"] if name == "dfedavgm" else ["fuzz_letters:tiny", "fuzz_letters:tinier"]
        method = {"courier": "fuzz_letters:tiny", "features": 4} if name in ("courier", "proxyfl") else {}
        over = {"model": {"backbones": backbones}, "method": method, "network": {"compress": {"kind": compress}}}
        part = build_part(small(name, rounds=LENGTH, **over), transport=Watched())
        for t in range(LENGTH):
            play_round(part, t)
    return [(replace(letter, tensors={n: t.clone() for n, t in letter.tensors.items()}), s) for letter, s in samples]


# Bytes


def flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def grown(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.randint(1, 40)) + data[at:]


def edited_header(draw: random.Random, data: bytes) -> bytes:
    """One character of the header is another one, or is doubled. The length and the checksum are made to fit."""
    end = 8 + int.from_bytes(data[:8], "little")
    at = draw.randrange(8, end)
    new = bytes([draw.choice(b'0123456789abcdef"{}[]:, -=.')])
    header = data[8:at] + (new if draw.random() < 0.5 else data[at : at + 1] + new) + data[at + 1 : end]
    return resealed(header, data[end:])


def edited_payload(draw: random.Random, data: bytes) -> bytes:
    """Some numbers are special ones, or random bits."""
    end = 8 + int.from_bytes(data[:8], "little")
    payload = bytearray(data[end:])
    for _ in range(draw.randint(1, 3)):
        dtype = draw.choice([torch.float32, torch.float64, torch.int64, torch.bfloat16])
        value = draw.choice(SPECIAL)
        number = torch.tensor([0 if dtype == torch.int64 and value != value else value], dtype=torch.float64)
        number = number.clamp(-(2.0**62), 2.0**62) if dtype == torch.int64 else number
        raw = bytes(number.to(dtype).view(torch.uint8).tolist())
        if draw.random() < 0.3:
            raw = draw.randbytes(len(raw))
        at = draw.randrange(0, max(1, len(payload) - len(raw) + 1), 2)
        payload[at : at + len(raw)] = raw[: len(payload) - at]
    return resealed(data[8:end], bytes(payload))


def resealed(header: bytes, payload: bytes) -> bytes:
    data = len(header).to_bytes(8, "little") + header + payload
    return sealed(data) if b" checksum=" in header else data


def renumbered(draw: random.Random, data: bytes) -> bytes:
    """Another round or sender in the header."""
    end = 8 + int.from_bytes(data[:8], "little")
    field, number = draw.choice([b"round=", b"round=", b"sender="]), draw.choice([0, 1, 2, LENGTH, 10**12 - 1])
    at = data.index(field, 8, end) + len(field)
    return resealed(data[8:at] + b"%012d" % number + data[at + 12 : end], data[end:])


ON_THE_WIRE: list[Callable[[random.Random, bytes], bytes]] = [
    flipped, cut, grown, edited_header, edited_payload, renumbered,
]  # fmt: skip


# Letters in memory


def changed_letter(draw: random.Random, letter: Letter) -> Letter:
    """The letter with one or two things changed. Its sender and run are kept."""
    for _ in range(draw.randint(1, 2)):
        letter = draw.choice(IN_MEMORY if letter.tensors else [other_fields])(draw, letter)
    return letter


def with_value(draw: random.Random, letter: Letter) -> Letter:
    name = draw.choice(list(letter.tensors))
    tensor = letter.tensors[name].clone()
    if not tensor.numel() or tensor.is_complex():
        return letter
    value = draw.choice(SPECIAL)
    if not tensor.is_floating_point():
        info = torch.iinfo(tensor.dtype) if tensor.dtype != torch.bool else torch.iinfo(torch.uint8)
        value = draw.choice([info.min, info.max, -9 if info.min else 9, 0, 1])
    flat = tensor.view(-1)
    # A cast makes infinite what the dtype cannot hold; `fill_` refuses it.
    number = torch.tensor(value, dtype=torch.float64 if tensor.is_floating_point() else None).to(tensor.dtype)
    if draw.random() < 0.5:
        flat.copy_(number.expand_as(flat))
    else:
        flat[draw.randrange(len(flat))] = number
    return replace(letter, tensors={**letter.tensors, name: tensor})


def scaled(draw: random.Random, letter: Letter) -> Letter:
    name = draw.choice(list(letter.tensors))
    tensor = letter.tensors[name]
    factor = draw.choice([-1, 100, 1e10, 1e30])
    return replace(letter, tensors={**letter.tensors, name: (tensor * factor).to(tensor.dtype)})


def other_structure(draw: random.Random, letter: Letter) -> Letter:
    name = draw.choice(list(letter.tensors))
    tensor, rest = letter.tensors[name], {n: t for n, t in letter.tensors.items() if n != name}
    forms: list[dict[str, Tensor]] = [
        rest, {name: tensor.abs().to(draw.choice([torch.float64, torch.float16, torch.int32]))},
        {name: tensor.unsqueeze(0)},
        {name: tensor.flatten()[:-1]}, {name: tensor, "more": torch.zeros(2)}, {f"{name} ": tensor},
        {name: tensor.to(torch.complex64)}, {"other": tensor},
    ]  # fmt: skip
    form = draw.choice(forms)
    return replace(letter, tensors=form if form is rest else {**rest, **form})


def other_fields(draw: random.Random, letter: Letter) -> Letter:
    samples = draw.choice([0, 1, -1, 10**12, 10**30, letter.samples])
    round = draw.choice([*[letter.round] * 4, letter.round + 1, max(0, letter.round - 1), -1, 10**12])
    architecture = draw.choice(["", "0" * 16, "CNN", letter.architecture])
    return replace(letter, samples=samples, round=round, architecture=architecture)


IN_MEMORY: list[Callable[[random.Random, Letter], Letter]] = [with_value, scaled, other_structure, other_fields]


# Verdicts


def verdict_of_bytes(data: bytes, schema: Schema) -> str:
    try:
        letter = decode(data, schema)
    except LetterError as error:
        return error.reason
    assert encode(letter) == data, "a letter was read that has another encoding"
    assert all(t.isfinite().all() for t in letter.tensors.values() if t.is_floating_point())
    return "read"


def verdict_of_peer(draw: random.Random, data: bytes, letter: Letter, schema: Schema) -> str:
    """What a peer makes of an answer of the letter's sender: why it is refused, "read", or "unused".

    It may have read the good letter before, and it may be a round ahead or behind.
    """
    from mapl.peer.post import OF_THE_ROUND, PeerPost

    wait = draw.choice(WAITS)
    post = PeerPost(Nowhere(), lambda: {letter.sender: "sender"}, wait, LENGTH)
    post.wire = Deaf()
    now, before = draw.randrange(LENGTH), -1
    if draw.random() < 0.2 and now > letter.round:
        _, (found,) = peer_reads(post, encode(letter), letter.round, letter.sender, schema)
        before = found.round
    mail, read = peer_reads(post, data, now, letter.sender, schema)
    refused = mail.refused.by_sender
    assert refused.keys() <= {letter.sender}
    reasons = list(refused.get(letter.sender, {}))
    assert len(read) + sum(refused.get(letter.sender, {}).values()) <= 1
    for found in read:
        assert encode(found) == data, "a letter was read that has another encoding"
        assert max(before + 1, now - wait.staleness) <= found.round < LENGTH, f"round {found.round} in round {now}"
    outcome = "read" if read else reasons[0] if reasons else "unused"
    if draw.random() < 0.05:
        alone = verdict_of_bytes(data, replace(schema, sender=letter.sender, round=None))
        # A peer looks at the round first: a replay, or a round beyond the run, is refused whatever else is wrong.
        # A late letter that passes its checks may be too old, and one of another form was made for another round.
        unused = alone == "read" or data == NONE or (alone in OF_THE_ROUND and claimed(data) < now)
        assert outcome in ("round", alone) or (outcome == "unused" and unused), (outcome, alone)
    return outcome


def claimed(data: bytes) -> int:
    """The round that a letter claims; one that claims none is nobody's."""
    found = re.search(rb" round=([0-9]{12}) ", data)
    return int(found[1]) if found else LENGTH


def peer_reads(post: PeerPost, data: bytes, round: int, sender: int, schema: Schema) -> tuple[Mail, Sequence[Letter]]:
    """The letters that a peer takes from an answer, none or one."""
    post.on_letter("sender", data)
    requests = {READER: torch.tensor([sender])}
    mail = Mail(round, "letters", {}, requests, lambda reader: schema, rounds=post.rounds)
    return mail, post.exchange(mail)[READER].pile.letters


class Nowhere(Outbox):
    """An outbox that writes nothing to disk."""

    def __init__(self) -> None:
        pass

    def put(self, round: int, letter: bytes) -> bytes:
        return letter


class Deaf:
    """A connection over which nothing comes but what a test passes to the post itself."""

    def ask(self, sender: str, round: int | None, patience: float) -> None:
        pass

    def asked(self, sender: str) -> bool:
        return True

    def alive(self) -> frozenset[str]:
        return frozenset()

    def written(self) -> None:
        pass

    def maintain(self, silent: bool = False) -> None:
        pass


def verdict_of_post(post: MemoryPost | EncodedPost, letter: Letter, schema: Schema) -> str:
    """Why the letter does not reach its reader, "read" if it does."""
    requests = {READER: torch.tensor([letter.sender])}
    assert schema.round is not None
    mail = Mail(schema.round, "letters", {letter.sender: letter}, requests, lambda reader: schema, rounds=post.rounds)
    inbox = inspect(mail, post.exchange(mail), own=None)[READER]
    reasons = mail.refused.by_sender.get(letter.sender, {})
    assert len(inbox) + sum(reasons.values()) == 1
    return "read" if len(inbox) else next(iter(reasons))


@dataclass
class Findings:
    """How many letters had which outcome, the seconds of CPU of the slowest one, and the MiB by which memory grew."""

    outcomes: Counter[str]
    slowest: float
    grown_by: float


def fuzz(letters: int, seed: int = 0) -> Findings:
    """Raises if a property does not hold."""
    draw, samples, outcomes = random.Random(seed), good_letters(), Counter[str]()
    encoded = [encode(letter) for letter, _ in samples]
    before, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    for number in range(letters):
        which = draw.randrange(len(samples))
        letter, schema = samples[which]
        started = time.process_time()
        if number % 10 == 0:
            letter = changed_letter(draw, letter)
            outcome = verdict_of_post(MemoryPost(), letter, schema)
            over_bytes = verdict_of_post(EncodedPost(), letter, schema)
            assert outcome == over_bytes, f"{outcome} in memory, {over_bytes} over bytes: {letter}"
        else:
            data = draw.choice(ON_THE_WIRE)(draw, encoded[which])
            outcome = verdict_of_peer(draw, data, letter, schema) if PEERS else verdict_of_bytes(data, schema)
        assert outcome in ("read", "unused", *get_args(Reason))
        outcomes[outcome] += 1
        slowest = max(slowest, time.process_time() - started)
    grown_by = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert slowest < 1, f"a letter took {slowest:.1f} s"
    assert grown_by < 200, f"memory grew by {grown_by:.0f} MiB"
    return Findings(outcomes, slowest, grown_by)


def main() -> None:
    letters = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a refused letter warns
        found = fuzz(letters, seed)
    print(f"{letters:,} letters changed at random, seed {seed}: all read, unused or refused:")
    for outcome, number in found.outcomes.most_common():
        print(f"  {outcome:<12} {number:>8,}")
    print(f"slowest letter {found.slowest:.2f} s of CPU, memory grew by {found.grown_by:.0f} MiB")


if __name__ == "__main__":
    main()
