"""A peer's transport without a network: waiting, late letters, replays, and letters that are never changed."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.network import Letter, Mail, Schema, Spec, encode
from mapl.peer.outbox import NONE, Outbox
from mapl.peer.post import SHORTEST, SLOWER, Patience, PeerPost
from mapl.peer.settings import WaitSection

RUN = "0123456789abcdef"
NAMES = {0: "ann", 1: "bob", 2: "cat"}
ROUNDS = 50


def letter(sender: int, round: int, value: float = 1.0) -> Letter:
    return Letter(RUN, sender, round, 10, "", {"x": torch.full((3,), value)})


class FakeWire:
    """A network in memory: what each member would answer, by name and round, after how many seconds."""

    def __init__(self, post: PeerPost, answers: Mapping[str, Mapping[int | None, bytes]], after: float = 0.0) -> None:
        self.post = post
        self.answers = {name: dict(known) for name, known in answers.items()}
        self.after = after
        self.asked_for: list[tuple[str, int | None]] = []
        self.here = set(answers)
        self.open: set[str] = set()
        self.silences = 0
        post.wire = self

    def ask(self, sender: str, round: int | None, patience: float) -> None:
        self.asked_for.append((sender, round))
        known = self.answers.get(sender, {})
        data = known.get(round)
        if data is None:
            self.open.add(sender)
        elif self.after:
            threading.Timer(self.after, self.post.on_letter, (sender, data)).start()
            self.open.add(sender)
        else:
            self.post.on_letter(sender, data)

    def asked(self, sender: str) -> bool:
        return sender in self.open

    def alive(self) -> frozenset[str]:
        return frozenset(self.here)

    def written(self) -> None:
        pass

    def maintain(self, silent: bool = False) -> None:
        self.silences += silent


def post_of(folder: Path, **wait: Any) -> PeerPost:
    use = {"first": 0.2, "patience": 0.2, **wait}
    return PeerPost(Outbox(folder), lambda: NAMES, WaitSection(**use), ROUNDS)


def mail(round: int, asked: tuple[int, ...] = (1, 2)) -> Mail:
    def expects(reader: int) -> Schema:
        return Schema(RUN, 10_000, {"x": Spec((3,))}, round=round)

    return Mail(round, "letters", {0: letter(0, round)}, {0: torch.tensor(asked, dtype=torch.long)}, expects)


def read(post: PeerPost, round: int, asked: tuple[int, ...] = (1, 2)) -> list[tuple[int, int]]:
    """The senders and rounds of the letters that client 0 reads."""
    sent = mail(round, asked)
    inbox = post.exchange(sent)[0]
    post.seen = sent  # type: ignore[attr-defined]
    return list(zip(inbox.senders.tolist(), inbox.pile.rounds[inbox.positions].tolist(), strict=True))


def test_letters_are_read_in_the_order_of_senders_whoever_answers_first(tmp_path: Path) -> None:
    post = post_of(tmp_path)
    FakeWire(post, {"cat": {5: encode(letter(2, 5))}, "bob": {5: encode(letter(1, 5))}})
    assert read(post, 5) == [(1, 5), (2, 5)]
    assert (post.last.asked, post.last.read, post.last.missing) == (2, 2, [])


def test_a_round_waits_for_letters_and_not_longer(tmp_path: Path) -> None:
    post = post_of(tmp_path, patience=30.0, first=30.0)
    FakeWire(post, {"bob": {0: encode(letter(1, 0))}, "cat": {0: encode(letter(2, 0))}}, after=0.3)
    started = time.monotonic()
    assert read(post, 0) == [(1, 0), (2, 0)]
    assert 0.25 < time.monotonic() - started < 10


def test_who_missed_the_deadline_is_asked_but_not_waited_for_until_it_is_back(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=0.2, patience=30.0)
    wire = FakeWire(post, {"bob": {n: encode(letter(1, n)) for n in range(9)}})
    assert read(post, 0) == [(1, 0)]
    assert post.last.missing == ["cat"]
    started = time.monotonic()
    wire.open.clear()
    assert read(post, 1) == [(1, 1)]
    assert ("cat", 1) in wire.asked_for
    assert time.monotonic() - started < 5
    # Now it is back: it shows that it is alive, and answers after a while.
    wire.answers["cat"] = {2: encode(letter(2, 2))}
    wire.after = 0.2
    post._alive = frozenset({"bob"})
    wire.here.add("cat")
    wire.open.clear()
    assert read(post, 2) == [(1, 2), (2, 2)]


@pytest.mark.parametrize(("staleness", "expected"), [(0, []), (1, []), (2, [(1, 3)]), (9, [(1, 3)])])
def test_a_late_letter_stands_in_for_a_missing_one_if_it_is_not_too_old(
    tmp_path: Path, staleness: int, expected: list[tuple[int, int]]
) -> None:
    post = post_of(tmp_path, staleness=staleness, first=0.05, patience=0.05)
    FakeWire(post, {"bob": {}})
    assert read(post, 3, (1,)) == []
    post.on_letter("bob", encode(letter(1, 3)))  # after the deadline
    assert read(post, 5, (1,)) == expected
    assert post.last.stale == len(expected)


def test_no_letter_is_read_twice(tmp_path: Path) -> None:
    post = post_of(tmp_path, staleness=5, first=0.05, patience=0.05)
    data = encode(letter(1, 3))
    FakeWire(post, {"bob": {3: data, 4: data, 5: data}})
    assert read(post, 3, (1,)) == [(1, 3)]
    assert read(post, 4, (1,)) == []
    assert read(post, 5, (1,)) == []
    assert not post.seen.refused.by_sender  # type: ignore[attr-defined]


def test_a_late_letter_of_another_form_is_no_reason_to_stop_waiting_for_the_one_of_this_round(tmp_path: Path) -> None:
    """The letters of some methods change during a run. One that was sent twice arrives a round late."""
    post = post_of(tmp_path, first=30.0)
    wire = FakeWire(post, {"bob": {5: encode(letter(1, 5))}}, after=0.3)
    other = replace(letter(1, 4), tensors={"y": torch.zeros(7)})
    post.on_letter("bob", encode(other))
    assert read(post, 5, (1,)) == [(1, 5)]
    assert not post.seen.refused.by_sender  # type: ignore[attr-defined]
    assert wire.asked_for == [("bob", 5)]


def test_a_late_letter_that_is_damaged_is_counted_and_the_one_of_this_round_is_awaited(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=30.0)
    FakeWire(post, {"bob": {5: encode(letter(1, 5))}}, after=0.3)
    post.on_letter("bob", encode(letter(1, 4))[:-3])
    assert read(post, 5, (1,)) == [(1, 5)]
    assert post.seen.refused.by_sender == {1: {"checksum": 1}}  # type: ignore[attr-defined]


def test_a_sender_that_is_ahead_is_read(tmp_path: Path) -> None:
    post = post_of(tmp_path)
    FakeWire(post, {"bob": {3: encode(letter(1, 7))}})
    assert read(post, 3, (1,)) == [(1, 7)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (encode(letter(2, 5)), "sender"),
        (encode(letter(1, 3)), "round"),
        (encode(letter(1, ROUNDS)), "round"),
        (encode(replace(letter(1, 5), run="f" * 16)), "run"),
        (encode(replace(letter(1, 5), tensors={"x": torch.zeros(4)})), "shape"),
        (encode(replace(letter(1, 5), tensors={"x": torch.full((3,), float("nan"))})), "finite"),
        (encode(replace(letter(1, 5), tensors={"y": torch.zeros(3)})), "names"),
        (encode(replace(letter(1, 5), samples=0)), "samples"),
        (encode(letter(1, 5))[:-3], "checksum"),
        (b"\x00" * 20_000, "size"),
        (b"not a letter", "format"),
    ],
)
def test_a_bad_letter_is_left_out_counted_and_does_not_stop_the_round(
    tmp_path: Path, answer: bytes, reason: str
) -> None:
    post = post_of(tmp_path, staleness=0)
    wire = FakeWire(post, {"bob": {4: encode(letter(1, 4)), 5: answer}, "cat": {5: encode(letter(2, 5))}})
    assert read(post, 4, (1,)) == [(1, 4)]
    with pytest.warns(UserWarning, match="left out"):
        assert read(post, 5) == [(2, 5)]
    assert post.seen.refused.by_sender == {1: {reason: 1}}  # type: ignore[attr-defined]
    wire.answers["bob"][6] = encode(letter(1, 6))
    assert read(post, 6, (1,)) == [(1, 6)]


@given(data=st.binary(max_size=300))
@settings(max_examples=50)
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    post = post_of(tmp_path_factory.mktemp("post"), first=30.0)
    FakeWire(post, {"bob": {0: data}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a refused letter warns
        assert read(post, 0, (1,)) == []
    assert post.seen.refused.by_sender or data == NONE  # type: ignore[attr-defined]


def test_a_member_that_writes_no_letter_this_round_is_not_waited_for(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=30.0)
    FakeWire(post, {"bob": {0: NONE}})
    started = time.monotonic()
    assert read(post, 0, (1,)) == []
    assert time.monotonic() - started < 5
    assert post.last.missing == []


def test_async_never_waits_and_reads_what_has_arrived(tmp_path: Path) -> None:
    post = post_of(tmp_path, mode="async", staleness=5, first=30.0, patience=30.0)
    wire = FakeWire(post, {"bob": {}})
    started = time.monotonic()
    assert read(post, 0, (1,)) == []
    assert time.monotonic() - started < 10
    post.on_letter("bob", encode(letter(1, 0)))  # meanwhile
    assert read(post, 3, (1,)) == [(1, 0)]
    assert {round for _, round in wire.asked_for} == {None}


def test_a_letter_that_has_arrived_is_read_however_late_the_machine_notices(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=1e-9, patience=1e-9)
    FakeWire(post, {"bob": {n: encode(letter(1, n)) for n in (0, 1)}})
    assert read(post, 0, (1,)) == [(1, 0)]
    assert read(post, 1, (1,)) == [(1, 1)]
    assert post.last.missing == []


def test_clients_that_nobody_has_heard_of_are_not_waited_for(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=30.0)
    FakeWire(post, {"bob": {0: encode(letter(1, 0))}})
    assert read(post, 0, (1, 7, 8)) == [(1, 0)]


def test_nobody_waits_for_a_member_that_is_revoked(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=30.0)
    FakeWire(post, {"bob": {0: encode(letter(1, 0))}})
    members = dict(NAMES)
    post.numbers = lambda: members
    threading.Timer(0.2, members.pop, (2,)).start()
    started = time.monotonic()
    assert read(post, 0) == [(1, 0)]
    assert 0.1 < time.monotonic() - started < 10
    assert post.last.missing == []


def test_a_connection_that_brings_nothing_for_some_rounds_is_opened_anew(tmp_path: Path) -> None:
    post = post_of(tmp_path, first=0.01, patience=0.01, staleness=0)
    wire = FakeWire(post, {"bob": {}})
    for round in range(3):
        assert read(post, round) == []
    assert wire.silences == 0
    read(post, 3)
    assert wire.silences == 1
    for round in range(4, 7):  # the new one gets as many rounds
        read(post, round)
    assert wire.silences == 2


def test_a_connection_that_brings_letters_that_are_not_used_is_not_silent(tmp_path: Path) -> None:
    """Whoever has fallen far behind gets the oldest letter that others still have, again and again."""
    post = post_of(tmp_path, staleness=0)
    ahead = encode(letter(1, 20))
    wire = FakeWire(post, {"bob": dict.fromkeys(range(10), ahead)})
    assert [read(post, round, (1,)) for round in range(10)] == [[(1, 20)], *[[]] * 9]
    assert wire.silences == 0


def test_what_was_sent_once_is_sent_again_after_a_crash(tmp_path: Path) -> None:
    first = Outbox(tmp_path)
    assert first.put(4, b"one") == b"one"
    again = Outbox(tmp_path)
    assert again.put(4, b"another") == b"one"
    assert again.read(4) == b"one"
    assert again.newest == 4


@given(rounds=st.lists(st.integers(0, 60), min_size=1, max_size=30), asked=st.integers(0, 60))
def test_an_outbox_keeps_the_newest_and_answers_with_the_oldest_that_is_not_before(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[int], asked: int
) -> None:
    outbox = Outbox(tmp_path_factory.mktemp("outbox"), keep=4)
    rounds = sorted(set(rounds))  # a peer's rounds never go back
    for round in rounds:
        outbox.put(round, b"%d" % round)
    kept = rounds[-4:]
    later = [round for round in kept if round >= asked]
    assert outbox.read(asked) == (b"%d" % min(later) if later else None)
    assert outbox.read(None) == b"%d" % rounds[-1]
    assert {path.name for path in (outbox.folder).iterdir()} == {f"{n:06}.letter" for n in kept}


def test_rounds_in_which_somebody_came_or_went_do_not_count_for_patience(tmp_path: Path) -> None:
    post = post_of(tmp_path, patience="auto", first=30.0)
    letters = {name: {n: encode(letter(i, n)) for n in range(4)} for i, name in ((1, "bob"), (2, "cat"))}
    wire = FakeWire(post, letters, after=0.05)

    def play(round: int) -> float:
        wire.open.clear()
        assert len(read(post, round)) == 2
        return post.patience.seconds()

    assert play(0) == 30.0  # all have just come
    wire.here.remove("cat")
    assert play(1) == 30.0
    assert play(2) == SHORTEST  # nobody came or went since
    wire.here.add("cat")
    wire.after = 1.0
    assert play(3) == SHORTEST


def test_patience_follows_what_usual_rounds_needed() -> None:
    patience = Patience(WaitSection(first=60.0))
    assert patience.seconds() == 60.0
    patience.note(3.0, usual=True)
    assert patience.seconds() == SLOWER * 3.0
    patience.note(500.0, usual=False)
    assert patience.seconds() == SLOWER * 3.0
    for _ in range(10):
        patience.note(0.01, usual=True)
    assert patience.seconds() == SHORTEST
    assert Patience(WaitSection(mode="async")).seconds() == 0.0
    for _ in range(20):  # a member that always answers just in time
        patience.note(0.99 * patience.seconds(), usual=True)
    assert patience.seconds() <= SLOWER * 60.0
    fixed = Patience(WaitSection(patience=7.0, first=9.0))
    assert fixed.seconds() == 9.0
    fixed.note(0.1, usual=True)
    assert fixed.seconds() == 7.0
