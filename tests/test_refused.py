"""A letter that fails a check is left out and counted by sender and reason, in memory and over bytes alike.

It never stops a round, and its reader goes on as if the letter had been lost.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mapl.methods
from conftest import assert_same, parameters, play, row_of, skip_without_umap, small
from fuzz_letters import changed_letter, fuzz
from mapl import Inbox, Letter, Recipe
from mapl.network import THIS_ROUND, EncodedPost, Mail, MemoryPost, Rounds, Schema, Spec, inspect
from mapl.network.compressor import INT8, Rounded
from mapl.network.inspection import FACTOR, too_large
from mapl.network.topk import TopK
from mapl.plugins import known
from mapl.report import write_report
from mapl.runs.chain import Round
from mapl.runs.folder import load
from mapl.runs.part import Part, build_part
from mapl.runs.run import run

CLIENTS, BAD = 4, 1
WRITING = [name for name, method in known(mapl.methods).items() if not method.silent]
Change = Callable[[Letter], Letter | None]

pytestmark = pytest.mark.filterwarnings("ignore:a letter is left out")


class Tampered:
    """A transport that changes the letters of one sender before they are carried. None loses them."""

    rounds = THIS_ROUND

    def __init__(self, change: Change, over_bytes: bool, leg: str = "letters", sender: int = BAD) -> None:
        self.post = EncodedPost() if over_bytes else MemoryPost()
        self.change, self.leg, self.sender = change, leg, sender

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        letters = dict(mail.letters)
        if mail.leg == self.leg and self.sender in letters:
            del letters[self.sender]
            if (changed := self.change(mail.letters[self.sender])) is not None:
                letters[self.sender] = changed
        return self.post.exchange(replace(mail, letters=letters))


def recipe(name: str, **over: Any) -> Recipe:
    skip_without_umap(name)
    warmup = {"method": {"warmup": 1}} if "warmup" in known(mapl.methods)[name].Settings.model_fields else {}
    return small(name, **{"clients": CLIENTS, "rounds": 2, "model": {"backbones": ["mlp"]}, **warmup, **over})


def tampered(made: Recipe, change: Change, over_bytes: bool = False, **more: Any) -> Part:
    return play(made, part=build_part(made, transport=Tampered(change, over_bytes, **more)))


@functools.cache
def without_letters_of_one(name: str) -> Part:
    return tampered(recipe(name), lambda letter: None)


def everything(part: Part) -> dict[str, torch.Tensor]:
    rows = {f"{c.id}.row": row_of(c, CLIENTS) for c in part.clients}
    return parameters(part) | rows | {f"{c.id}.{name}": t for c in part.clients for name, t in c.state.items()}


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda letter: replace(letter, tensors={**letter.tensors, name: change(letter.tensors[name])})


def first_number(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


FAULTS: dict[str, tuple[str, Change, str]] = {
    "no samples": ("mapl", lambda letter: replace(letter, samples=0), "samples"),
    "negative samples": ("mapl", lambda letter: replace(letter, samples=-5), "samples"),
    "negative batches": ("fedsim", with_tensor("batches", lambda x: torch.full_like(x, -9)), "range"),
    "batches that overflow": ("fedsim", with_tensor("batches", lambda x: torch.full_like(x, 2**62)), "range"),
    "negative counts": ("fedproto", with_tensor("held", lambda x: torch.full_like(x, -9)), "range"),
    "counts of many": ("fedproto", with_tensor("held", lambda x: x + 1), "range"),
    "no mass": ("proxyfl", with_tensor("mass", torch.zeros_like), "range"),
    "no neighbours": ("dfedavgm", with_tensor("degree", torch.zeros_like), "range"),
    "huge": ("mapl", with_tensor("prototypes", lambda x: torch.full_like(x, 3e38)), "norm"),
    "huge to a server": ("fedavg", with_tensor("model", first_number(3e38)), "norm"),
    "scaled by 100": ("mapl", with_tensor("prototypes", lambda x: 100 * x), "norm"),
    "infinite": ("mapl", with_tensor("prototypes", first_number(np.inf)), "finite"),
    "not a number": ("dfedavgm", with_tensor("model", first_number(np.nan)), "finite"),
    "dtype": ("mapl", with_tensor("prototypes", torch.Tensor.double), "dtype"),
    "shape": ("mapl", with_tensor("prototypes", lambda x: x[:-1]), "shape"),
    "another name": ("mapl", lambda letter: replace(letter, tensors={"x": torch.ones(3)}), "names"),
    "one tensor more": ("mapl", lambda x: replace(x, tensors={**x.tensors, "y": torch.ones(1)}), "names"),
    "complex": ("mapl", with_tensor("prototypes", lambda x: x.to(torch.complex64)), "dtype"),
    "another sender": ("mapl", lambda letter: replace(letter, sender=2), "sender"),
    "another run": ("mapl", lambda letter: replace(letter, run="0" * 16), "run"),
    "a later round": ("mapl", lambda letter: replace(letter, round=letter.round + 1), "round"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_letter_is_a_lost_letter_that_is_counted(fault: str) -> None:
    name, change, reason = FAULTS[fault]
    made, lost = recipe(name), without_letters_of_one(name)
    parts = [tampered(made, change, over_bytes) for over_bytes in (False, True)]
    for part in parts:
        assert_same(everything(part), everything(lost))
        for line in part.lines:  # type: ignore[attr-defined]
            assert line.refused is not None
            assert {sender: list(reasons) for sender, reasons in line.refused.items()} == {BAD: [reason]}
        assert all(line.refused is None for line in lost.lines)  # type: ignore[attr-defined]
    lines = [[replace(line, messages=0, bytes=0) if fault == "another sender" else line for line in part.lines]  # type: ignore[attr-defined]
             for part in parts]  # fmt: skip
    assert lines[0] == lines[1]


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "top-k"])
@pytest.mark.parametrize("over_bytes", [False, True])
def test_compressed_letters_are_checked_as_they_travel(kind: str, over_bytes: bool) -> None:
    def change(letter: Letter) -> Letter:
        name = next(n for n, t in letter.tensors.items() if t.is_floating_point())
        return with_tensor(name, first_number(np.nan))(letter)  # type: ignore[return-value]

    made = recipe("mapl", network={"compress": {"kind": kind, "keep": 0.2}})
    part, lost = tampered(made, change, over_bytes), tampered(made, lambda letter: None, over_bytes)
    assert_same(everything(part), everything(lost))
    assert [line.refused for line in part.lines] == [{BAD: {"finite": 3}}] * 2  # type: ignore[attr-defined]


def test_a_letter_that_cannot_be_decompressed_is_counted() -> None:
    """70 numbers need two scales; and positions ascend."""
    requests = {0: torch.tensor([1, 2])}
    numbers = torch.ones(70, dtype=torch.int8)
    letters = {
        i: Letter("0" * 16, i, 0, 1, "", {"x/int8": numbers, "x/scales": torch.ones(scales)})
        for i, scales in ((1, 1), (2, 2))
    }
    mail = Mail(0, "letters", letters, requests, pytest.fail)
    inboxes = Rounded(INT8).incoming(mail, MemoryPost().exchange(mail))
    assert inboxes[0].senders.tolist() == [2]
    assert mail.refused.by_sender == {1: {"compression": 1}}

    reader = TopK(0.5, refresh=10)
    for round, positions in enumerate([None, [2, 1]]):
        full, part = {"x": torch.ones(4)}, {"x/values": torch.zeros(2), "x/positions": torch.tensor(positions or [])}
        tensors = full if positions is None else {**part, "builds-on": torch.tensor([0])}
        mail = Mail(round, "letters", {1: Letter("0" * 16, 1, round, 1, "", tensors)}, requests, pytest.fail)
        inboxes = reader.incoming(mail, MemoryPost().exchange(mail))
        assert len(inboxes[0]) == (positions is None)
    assert mail.refused.by_sender == {1: {"compression": 1}}


@pytest.mark.parametrize("over_bytes", [False, True])
def test_a_full_letter_that_pretends_to_be_an_increment_stops_nobody(over_bytes: bool) -> None:
    def change(letter: Letter) -> Letter:
        base = {"builds-on": torch.tensor([-1])} if "builds-on" in letter.tensors else {}
        return replace(letter, tensors={**letter.tensors, **base})

    made = recipe("mapl", network={"compress": {"kind": "top-k", "keep": 0.1}}, rounds=3)
    part = tampered(made, change, over_bytes)
    reasons = [reason for line in part.lines for reason in (line.refused or {}).get(BAD, {})]  # type: ignore[attr-defined]
    assert reasons
    assert set(reasons) == {"range"}


@pytest.mark.parametrize("name", ["fedavg", "pfedsim", "fedproto"])
def test_a_server_that_writes_nonsense_is_not_followed(name: str) -> None:
    """Clients compare the one letter that they read with the one that they wrote."""
    tensor = {"fedavg": "model", "pfedsim": "backbone", "fedproto": "prototypes"}[name]
    made = recipe(name)
    part = build_part(made)

    class Mad(MemoryPost):
        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            if mail.leg != "replies":
                return super().exchange(mail)
            change = with_tensor(tensor, lambda x: 1000 * x)
            letters = {i: change(letter) for i, letter in mail.letters.items()}
            personal = {i: change(letter) for i, letter in mail.personal.items()}
            return super().exchange(replace(mail, letters=letters, personal=personal))  # type: ignore[arg-type]

    part.transport = Mad()
    play(made, part=part)
    assert [line.refused for line in part.lines] == [{CLIENTS: {"norm": CLIENTS}}] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WRITING)
def test_letters_changed_at_random_stop_nobody(name: str) -> None:
    draw = random.Random(name)
    part = tampered(recipe(name, rounds=4, evaluate={"every": 4}), lambda letter: changed_letter(draw, letter))
    assert part.round == 4
    for tensor in everything(part).values():
        assert tensor.isfinite().all()


def test_the_fuzzer_finds_nothing() -> None:
    outcomes = fuzz(1_500).outcomes
    assert sum(outcomes.values()) == 1_500
    assert {"read", "checksum", "format", "finite", "names", "shape", "dtype", "samples", "range"} <= outcomes.keys()


# Rounds


def read_by_20(mail: Mail, rounds: dict[int, int]) -> list[int]:
    """Whose letters reader 20 reads, if sender i wrote in round rounds[i]."""
    letters = {i: Letter("0" * 16, i, round, 1, "", {"x": torch.ones(4)}) for i, round in rounds.items()}
    inbox = inspect(mail, {20: Inbox.of(list(letters.values()))}, own=None)[20]
    mail.note({20: inbox})
    return inbox.senders.tolist()


def mail_of(round: int, **more: Any) -> Mail:
    schema = Schema("0" * 16, 10**6, {"x": Spec((4,))}, round=round)
    return Mail(round, "letters", {}, {20: torch.arange(8)}, lambda reader: schema, **more)


@pytest.mark.parametrize(
    ("rounds", "read"),
    [
        (Rounds(), [0, 1, 2, 3, 4]),
        (THIS_ROUND, [4]),
        (Rounds(late=2), [2, 3, 4]),
        (Rounds(late=9), [0, 1, 2, 3, 4]),
        (Rounds(late=1, early=1), [3, 4, 5]),
    ],
)
def test_a_letter_is_of_a_round_that_is_read(rounds: Rounds, read: list[int]) -> None:
    mail = mail_of(4, rounds=rounds)
    assert read_by_20(mail, {i: i for i in range(7)}) == read
    assert mail.refused.by_sender == {i: {"round": 1} for i in range(7) if i not in read}


def test_nobody_reads_a_letter_twice_or_an_older_one() -> None:
    known: dict[int, dict[int, int]] = {}
    assert read_by_20(mail_of(4, read=known), {0: 2, 1: 3, 2: 4}) == [0, 1, 2]
    assert known == {20: {0: 2, 1: 3, 2: 4}}
    mail = mail_of(5, read=known)
    assert read_by_20(mail, {0: 2, 1: 2, 2: 5, 3: 0}) == [2, 3]
    assert mail.refused.by_sender == {0: {"round": 1}, 1: {"round": 1}}
    assert known == {20: {0: 2, 1: 3, 2: 5, 3: 0}}
    assert read_by_20(mail_of(6, read=known), {0: 3, 1: 1}) == [0]


def test_a_letter_that_is_refused_is_not_one_that_was_read() -> None:
    known: dict[int, dict[int, int]] = {}
    assert read_by_20(mail_of(4, read=known), {0: 5}) == []
    assert read_by_20(mail_of(4, read=known), {0: 4}) == [0]


def test_nothing_is_remembered_where_letters_are_of_the_round_alone() -> None:
    part = play(recipe("mapl"))
    assert not any(part.read["letters"].values())


@pytest.mark.parametrize("name", ["mapl", "fedavg", "fedsim"])
def test_a_letter_that_is_repeated_is_a_lost_letter_that_is_counted(name: str) -> None:
    """From the second round on, the first letter of one client, or of the server, comes again and again."""
    repeats = BAD if name == "mapl" else CLIENTS

    class Repeating:
        """It says nothing of rounds: any earlier one is welcome, once."""

        def __init__(self, again: bool) -> None:
            self.again, self.post = again, MemoryPost()
            self.first: dict[tuple[str, int], Letter] = {}

        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            inboxes = {}
            for reader, inbox in self.post.exchange(mail).items():
                letters = []
                for letter in (inbox.pile.letters[position] for position in inbox.positions.tolist()):
                    copy = replace(letter, tensors={n: t.clone() for n, t in letter.tensors.items()})
                    first = self.first.setdefault((f"{reader} {mail.leg}", letter.sender), copy)
                    if letter.sender != repeats or mail.round == 0:
                        letters.append(letter)
                    elif self.again:
                        letters.append(first)
                inboxes[reader] = Inbox.of(letters)
            return inboxes

    made = recipe(name, rounds=3)
    again, lost = (play(made, part=build_part(made, transport=Repeating(again))) for again in (True, False))
    assert_same(everything(again), everything(lost))
    counts = [line.refused for line in again.lines]  # type: ignore[attr-defined]
    assert counts == [None, *[{repeats: {"round": CLIENTS if repeats == CLIENTS else CLIENTS - 1}}] * 2]
    assert [line.refused for line in lost.lines] == [None] * 3  # type: ignore[attr-defined]


# What a norm is compared with


@pytest.mark.parametrize(
    ("norms", "own", "expected"),
    [
        ([1, 1, 1.01 * FACTOR], None, [False, False, True]),
        ([1, 1, FACTOR], None, [False, False, False]),
        ([0, 0, 5], None, [False, False, False]),  # most letters are zero: nothing to compare with
        ([1e-30, 1, 1], None, [False, False, False]),  # a tiny letter does not push others out
        ([1, 2 * FACTOR], None, [False, False]),  # two letters, and no third opinion
        ([1, 2 * FACTOR], 1, [False, True]),
        ([2 * FACTOR], 1, [True]),
        ([1], 2 * FACTOR, [False]),
        ([2 * FACTOR], 0, [False]),
        ([np.inf], None, [True]),
        ([np.inf, np.inf, np.inf], None, [True, True, True]),
    ],
)
def test_a_norm_is_compared_with_the_median(norms: list[float], own: float | None, expected: list[bool]) -> None:
    assert too_large(np.array(norms, dtype=float), own).tolist() == expected


def test_each_reader_judges_by_what_it_got() -> None:
    """Sender 9 is large for reader 20 and ordinary for reader 21; other shapes of the same name are no measure."""
    size = {0: 1.0, 1: 1.0, 2: 1.0, 7: 1e3, 8: 1e3, 9: 1e3}
    letters = {i: Letter("0" * 16, i, 0, 1, "a" * 16, {"x": torch.full((4,), value)}) for i, value in size.items()}
    letters[5] = Letter("0" * 16, 5, 0, 1, "b" * 16, {"x": torch.full((6,), 1e6)})
    schema = Schema("0" * 16, 10**6, {"x": Spec((4,), by_architecture=True)}, architecture="a" * 16)
    requests = {20: torch.tensor([0, 1, 2, 5, 9]), 21: torch.tensor([0, 5, 7, 8, 9])}
    mail = Mail(0, "letters", letters, requests, lambda reader: schema)
    inboxes = inspect(mail, MemoryPost().exchange(mail), own={})
    assert [inboxes[reader].senders.tolist() for reader in (20, 21)] == [[0, 1, 2, 5], [0, 5, 7, 8, 9]]
    assert mail.refused.by_sender == {9: {"norm": 1}}


# What is left behind


@pytest.mark.usefixtures("coarse")
def test_history_and_report_say_how_many_letters_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mapl.cli.runs import conclude

    honest = Mail.__init__

    def some_without_samples(self: Mail, *args: Any, **more: Any) -> None:
        round, leg, letters, *rest = args
        honest(self, round, leg, {i: replace(x, samples=0) if i == 2 else x for i, x in letters.items()}, *rest, **more)

    monkeypatch.setattr(Mail, "__init__", some_without_samples)
    record = run(small("mapl", rounds=2), tmp_path / "run")
    assert record.refused == {2: {"samples": 6}}
    assert [r.refused for r in load(tmp_path / "run").rounds] == [{2: {"samples": 3}}] * 2
    for line in record.rounds:
        assert Round.of_line(line.line()) == line
    conclude(record, as_json=False, profiled=False, stopped=130)
    assert "6 letters were left out" in capsys.readouterr().out
    conclude(record, as_json=True, profiled=False, stopped=130)
    assert '"refused": {"2": {"samples": 6}}' in capsys.readouterr().out
    page = write_report([record], tmp_path / "report").read_text(encoding="utf-8")
    assert "were left out" in page


def test_a_run_without_bad_letters_says_nothing_about_them(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = run(small("mapl", rounds=1), tmp_path / "run")
    assert record.refused == {}
    assert "refused" not in (tmp_path / "run" / "history.jsonl").read_text()
