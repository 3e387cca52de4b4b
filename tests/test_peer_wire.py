"""A peer's connection without a network: requests that wait, who is lost, and when one may leave."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

import zenoh

from identities import joined, new_network
from mapl.peer import news, wire
from mapl.peer.authority import revoke
from mapl.peer.outbox import NONE, Outbox
from mapl.peer.settings import NetSection
from mapl.peer.wire import RETURNING, ZenohWire


class Query:
    """A request as zenoh hands it over."""

    payload = attachment = None

    def __init__(self, round: int, wait: float = 60.0) -> None:
        self.parameters = {"round": str(round), "wait": str(wait)}
        self.answer: bytes | None = None
        self.dropped = False

    def reply(self, key: str, letter: bytes, **_: Any) -> None:
        self.answer = letter

    def drop(self) -> None:
        self.dropped = True


class Session:
    """A session in which nothing happens."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def liveliness(self) -> Session:
        return self

    def declare_token(self, key: str) -> str:
        self.tokens.append(key)
        return key

    def close(self) -> None:
        pass


@pytest.fixture
def alice(tmp_path: Path) -> ZenohWire:
    """The connection of the first of two members. It was opened long ago."""
    identity = new_network(tmp_path / "alice")
    joined(identity, "bob")
    made = ZenohWire(identity, NetSection(), Outbox(tmp_path / "state"), lambda *_: None, {}, 1000)
    made._session = Session()
    made._members = frozenset(identity.members())
    return made


def shows(alice: ZenohWire, what: str, kind: Any = zenoh.SampleKind.PUT) -> None:
    """Bob shows that he is alive or done, or no longer does."""
    alice._on_token(SimpleNamespace(key_expr=f"{alice.prefix}/bob/{what}", kind=kind))


def test_a_request_waits_for_its_letter_and_no_longer_than_it_said(alice: ZenohWire) -> None:
    patient, late, hasty = Query(3), Query(9), Query(3, wait=0.0)
    for query in (patient, late, hasty):
        alice._on_query(query)
    time.sleep(0.01)
    alice.outbox.put(2, b"two")
    alice.written()
    assert hasty.dropped
    assert not patient.dropped
    alice.outbox.put(3, b"three")
    alice.written()
    assert (patient.answer, patient.dropped, hasty.answer) == (b"three", True, None)
    assert (late.answer, late.dropped) == (None, False)
    assert (alice.letters_out, alice.bytes_out) == (1, 5)


def test_a_letter_that_is_written_while_somebody_asks_for_it_is_sent(
    alice: ZenohWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter is written right after the outbox was found to be without it."""
    read, writing = alice.outbox.read, threading.Thread(target=lambda: (alice.outbox.put(0, b"zero"), alice.written()))

    def slow(round: int | None) -> bytes | None:
        letter = read(round)
        if not writing.ident:
            writing.start()
            writing.join(0.2)
        return letter

    monkeypatch.setattr(alice.outbox, "read", slow)
    query = Query(0)
    alice._on_query(query)
    writing.join(10)
    assert query.answer == b"zero"


def test_a_peer_that_is_done_waits_for_who_is_not_and_for_who_was_lost_lately(alice: ZenohWire) -> None:
    alice._served = time.monotonic()
    assert alice._may_leave(60.0)
    shows(alice, "alive")
    assert not alice._may_leave(60.0)
    shows(alice, "alive", zenoh.SampleKind.DELETE)
    assert not alice._may_leave(60.0)
    alice._lost["bob"] -= 61.0
    assert alice._may_leave(60.0)
    alice._lost["bob"] += 61.0
    alice._members -= {"bob"}
    assert alice._may_leave(60.0)  # he was revoked
    alice._members |= {"bob"}
    shows(alice, "alive")
    shows(alice, "done")
    assert alice._may_leave(60.0)
    shows(alice, "alive", zenoh.SampleKind.DELETE)
    shows(alice, "done", zenoh.SampleKind.DELETE)
    assert alice._may_leave(60.0)  # he left because he is done
    shows(alice, "alive")
    alice._done.clear()
    alice._served -= 61.0
    assert alice._may_leave(60.0)  # he is there, but has not asked for a long time


def test_a_peer_that_opens_its_connection_anew_does_not_forget_who_was_there(alice: ZenohWire) -> None:
    alice._served = time.monotonic()
    shows(alice, "alive")
    alice._disconnect()
    assert not alice._may_leave(60.0)


def test_a_process_does_not_end_while_its_connection_is_being_closed(
    alice: ZenohWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CLOSING", 0.01)
    closed: list[float] = []

    def close() -> None:
        time.sleep(0.3)
        closed.append(time.monotonic())

    alice._session.close = close
    alice.__exit__()
    assert len(closed) == 1


def test_a_peer_that_is_started_again_gives_others_the_time_to_dial_it(alice: ZenohWire) -> None:
    alice._served = alice._opened_at = time.monotonic()
    assert not alice._may_leave(60.0)
    alice._opened_at -= RETURNING + 0.1
    assert alice._may_leave(60.0)


def test_a_peer_that_is_done_still_hears_who_is_revoked(alice: ZenohWire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is opened anew without that member, and shows again that it is done."""
    first, second = alice._session, Session()

    def connect() -> None:
        alice._session, alice._members = second, frozenset(alice.identity.members())
        alice._show_done()

    monkeypatch.setattr(alice, "_connect", connect)
    monkeypatch.setattr(wire, "GOODBYE", 0.0)
    shows(alice, "alive")
    revoke(alice.identity, "bob")
    began = time.monotonic()
    alice.linger(30.0, lambda: len(second.tokens) > 0)
    assert time.monotonic() - began < 10.0
    assert first.tokens == second.tokens == [f"{alice.me}/done"]
    assert alice._members == {"alice"}


def test_news_of_a_large_network_fit_into_messages_and_are_told_again(
    alice: ZenohWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "TOGETHER", 1)
    told: list[bytes] = []
    info = SimpleNamespace(peers_zid=lambda: ["one"], zid=lambda: "me")
    session = SimpleNamespace(info=info, put=lambda key, data, **more: told.append(data), zid=lambda: "me")
    alice.herald._alive = lambda: frozenset({"bob"})
    alice.herald._tell(session)
    assert len(told) == 2
    alice.herald._tell(session)
    assert len(told) == 2  # nothing is new
    alice.herald._told_at -= news.AGAIN + 1
    alice.herald._tell(session)
    assert len(told) == 4


def test_a_member_that_comes_back_is_asked_for_its_card_again(alice: ZenohWire) -> None:
    alice.herald.cards["bob"] = {"run": "before"}
    shows(alice, "alive")
    assert alice.herald.cards == {}


def test_an_outbox_can_forget_the_letters_of_an_earlier_run(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    for round in (7, 8):
        outbox.put(round, b"letter")
    outbox.put(9, NONE)
    outbox.clear()
    assert outbox.put(0, b"first") == b"first"
    assert Outbox(tmp_path).read(0) == b"first"
    assert Outbox(tmp_path).newest == 0
