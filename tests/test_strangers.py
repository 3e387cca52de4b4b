"""Strangers and bad members around a network that trains: nobody gets in, nothing stops it, and all is counted."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mapl import Letter, Recipe
from mapl.network import encode

pytest.importorskip("zenoh", reason="a stranger needs zenoh")
pytest.importorskip("cryptography", reason="a stranger needs certificates")

from conftest import command, in_child
from fuzz_letters import resealed
from mapl.network.letter import checksum, checksum_place
from mapl.peer import certificates
from mapl.peer.authority import create_network, invite, revoke
from mapl.peer.invitations import Invitation
from mapl.peer.joining import join
from mapl.peer.local import HOST, LocalNetwork, make_network
from mapl.peer.process import card
from mapl.peer.seen import read_status
from mapl.peer.settings import read_settings
from mapl.peer.status import differences
from mapl.runs.folder import load
from mapl.runs.part import build_part
from strangers import SECONDS, Live, Puppet, addresses, ask, close_all, live_network, read, refused, session

pytestmark = pytest.mark.slow

CLIENTS, RUNNING, ROUNDS = 6, 3, 20_000
LIMIT = 200_000
RECIPE = Recipe.of(
    method="courier",
    clients=CLIENTS,
    rounds=ROUNDS,
    data="digits",
    partition={"clusters": 1, "shots": 2, "test_shots": 5},
    model={"backbones": ["mlp"]},
    network={"letter_limit": LIMIT},
    evaluate={"every": 1000},
    engine={"device": "cpu", "workers": 1},
    train={"threads": 1},
)
WAIT = {"patience": 1.0, "first": 3.0, "linger": 0.0}
BAD, GONE = 3, 4
"""The number of the member that is bad, and of the one that is revoked."""


@pytest.fixture(scope="module")
def places() -> list[str]:
    """Where the first peer expects two more."""
    return addresses(2)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, places: list[str]) -> Iterator[Live]:
    with live_network(tmp_path_factory.mktemp("live"), RECIPE, RUNNING, WAIT, places) as live:
        yield live


@pytest.fixture(autouse=True)
def sessions() -> Iterator[None]:
    """A test's sessions end with it."""
    yield
    close_all()


@pytest.fixture
def bad(live: Live) -> Iterator[Puppet]:
    """A member that is bad, and that all others ask for its letters."""
    member = Puppet(live.identity(BAD), live.addresses)
    live.until(lambda: all(f"peer-{BAD}" in status["alive"] for status in live.statuses()))
    yield member
    close_all()
    live.until(lambda: not any(f"peer-{BAD}" in status["alive"] for status in live.statuses()))
    live.assert_unharmed()


def signed(live: Live, folder: Path, name: str, number: int, host: str, days: int) -> dict[str, str]:
    """TLS settings with a certificate that the network's authority signed."""
    folder.mkdir()
    key, authority = certificates.new_key(), live.authority
    signer = certificates.read_key((authority.folder / "ca.key").read_bytes(), "ca.key")
    pem = certificates.issue(authority.authority, signer, key.public_key(), name, number, [host], days)
    (folder / "pem").write_bytes(pem)
    (folder / "key").write_bytes(certificates.key_pem(key))
    pairs = [
        (f"{way}_{what}", str(folder / file))
        for way in ("listen", "connect")
        for what, file in (("certificate", "pem"), ("private_key", "key"))
    ]
    return {**dict(pairs), "close_link_on_expiration": False}


def test_who_has_no_certificate_of_this_network_that_is_valid_today_is_not_even_connected(
    live: Live, tmp_path: Path
) -> None:
    name, me = f"peer-{GONE}", live.identity(GONE)
    other = create_network("other", name, [HOST], RECIPE, tmp_path / "other")
    nothing = {f"{way}_{what}": None for way in ("listen", "connect") for what in ("certificate", "private_key")}
    strangers: dict[str, dict[str, Any]] = {
        "another network's certificate": {"identity": other, "tls": {"root_ca_certificate": str(me.ca_path)}},
        "no certificate": {"tls": {"enable_mtls": False, **nothing}},
        "expired": {"tls": signed(live, tmp_path / "expired", name, GONE, HOST, -1)},
        "plain tcp": {"scheme": "tcp"},
        "plain udp": {"scheme": "udp"},
        "tls over tcp": {"scheme": "tls"},
        "valid": {"tls": signed(live, tmp_path / "valid", name, GONE, HOST, 1)},
    }
    sessions = {what: session(how.pop("identity", me), live.addresses, **how) for what, how in strangers.items()}
    zids = {what: str(one.info.zid()) for what, one in sessions.items()}
    valid, network = sessions["valid"], me.network_id
    live.until(lambda: all(ask(valid, network, f"peer-{number}") for number in live.numbers))
    live.until(lambda: all(zids["valid"] in seen for seen in live.seen()))
    time.sleep(1.0)
    for what, one in sessions.items():
        if what != "valid":
            assert not list(one.info.peers_zid()), what
            assert not [reply for n in live.numbers for reply in ask(one, network, f"peer-{n}", timeout=0.3)], what
            assert not any(zids[what] in seen for seen in live.seen()), what
    live.assert_unharmed()


def test_a_peer_is_not_connected_with_whoever_is_at_an_address_that_its_certificate_does_not_name(
    live: Live, places: list[str], tmp_path: Path
) -> None:
    member = live.identity(5)
    wrong = session(member, listen=places[0], tls=signed(live, tmp_path / "wrong", member.name, 5, "10.9.9.9", 1))
    right = session(member, listen=places[1], tls=signed(live, tmp_path / "right", member.name, 5, HOST, 1))
    live.until(lambda: str(right.info.zid()) in live.seen()[0])
    time.sleep(2.5)  # a peer dials every 2 s
    assert str(wrong.info.zid()) not in live.seen()[0]


def test_a_member_is_not_heard_under_another_name(live: Live, bad: Puppet) -> None:
    others = ["peer-1/letters", f"peer-{GONE}/letters", f"peer-{GONE}/card", "*/letters", "**", "*/card"]
    for key in others:
        bad.declare(f"{bad.prefix}/{key}")
    for name in ("peer-0", f"peer-{GONE}", "nobody"):
        bad.be_alive_as(name)
        bad.session.put(f"{bad.prefix}/{name}/letters", b"x")
        bad.session.put(f"{bad.prefix}/{name}/alive", b"x")
    live.play(5)
    assert bad.asked[f"{bad.me}/letters", f"{bad.me}/letters"] >= 5 * RUNNING  # under its own name it is
    assert {asked for _, asked in bad.asked} <= {f"{bad.me}/letters", f"{bad.me}/card"}, bad.asked
    for status in live.statuses():
        assert set(status["alive"]) <= {f"peer-{n}" for n in (*live.numbers, BAD)}


# Letters

Make = Callable[[Letter], bytes]


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    return lambda letter: encode(replace(letter, tensors={n: change(t) for n, t in letter.tensors.items()}))


def with_header(old: bytes, new: bytes) -> Make:
    """With a checksum that is right."""

    def make(letter: Letter) -> bytes:
        data = encode(letter).replace(old, new)
        end = 8 + int.from_bytes(data[:8], "little")
        return resealed(data[8:end], data[end:])

    return make


BAD_LETTERS: Mapping[str, tuple[Make, str]] = {
    "another version": (with_header(b"version=0002", b"version=0003"), "version"),
    "another sender": (lambda letter: encode(replace(letter, sender=1)), "sender"),
    "another run": (lambda letter: encode(replace(letter, run="f" * 16)), "run"),
    "other names": (lambda letter: encode(replace(letter, tensors={"x": torch.zeros(3)})), "names"),
    "wrong shapes": (with_tensors(lambda tensor: tensor[:-1]), "shape"),
    "wrong dtype": (with_tensors(torch.Tensor.double), "dtype"),
    "NaN": (with_tensors(lambda tensor: tensor * torch.nan), "finite"),
    "huge": (with_tensors(lambda tensor: 1000 * tensor), "norm"),
    "no samples": (lambda letter: encode(replace(letter, samples=0)), "samples"),
    "truncated": (lambda letter: encode(letter)[:-7], "checksum"),
    "random bytes": (lambda letter: torch.randint(0, 256, (9000,), dtype=torch.uint8).numpy().tobytes(), "format"),
    "too large": (lambda letter: bytes(LIMIT + 1), "size"),
    "a round beyond the run": (lambda letter: encode(replace(letter, round=ROUNDS)), "round"),
    "empty": (lambda letter: b"", ""),
}  # fmt: skip
"""How a letter is made bad, and the reason under which it is counted. An empty answer says that there is no letter."""


def test_every_bad_letter_is_counted_by_sender_and_reason_and_training_goes_on(live: Live, bad: Puppet) -> None:
    good, kinds = replace(read(bad.ask("peer-0")[0]), sender=BAD), list(BAD_LETTERS.values())

    def kind(round: int) -> tuple[Make, str]:
        return kinds[round % len(kinds)]

    bad.answer = lambda round: kind(round)[0](replace(good, round=round))
    reasons = {reason for _, reason in kinds if reason}
    live.until(lambda: all(counted(live.status(n)).keys() >= reasons for n in live.numbers))
    bad.answer = lambda round: None
    live.play(2)
    for number in live.numbers:
        status, lines = live.status(number), live.history(number)
        assert counted(status).keys() == reasons
        total = Counter[str]()
        for why in refused(lines[: status["round"]], BAD).values():
            total.update(why)
        assert counted(status) == total
        assert f"peer-{BAD}" not in status["neighbours"]


def counted(status: Mapping[str, Any]) -> dict[str, int]:
    """Why the bad member's letters were left out, as a peer's status has it."""
    reasons: dict[str, int] = status["refused"].get(f"peer-{BAD}", {})
    return reasons


def test_a_replayed_letter_is_refused(live: Live, bad: Puppet) -> None:
    good = replace(read(bad.ask("peer-0")[0]), sender=BAD)
    bad.answer = lambda round: encode(replace(good, round=round))
    live.until(lambda: all(f"peer-{BAD}" in status["neighbours"] for status in live.statuses()))
    first = max(live.play(2))
    before = [counted(live.status(number)).get("round", 0) for number in live.numbers]
    bad.answer = lambda round: encode(replace(good, round=first - 2))
    live.until(
        lambda: all(
            counted(live.status(n)).get("round", 0) > then for n, then in zip(live.numbers, before, strict=True)
        )
    )


def test_a_letter_that_is_far_too_large_ends_the_connection_and_takes_no_memory(live: Live, bad: Puppet) -> None:
    """Zenoh ends it while the letter arrives. So nobody can count the letter: it is missing."""
    large = bytes(256 * 2**20)
    bad.answer = lambda round: large
    gone: set[int] = set()

    def all_have_ended_it() -> bool:
        gone.update(n for n in live.numbers if f"peer-{BAD}" not in live.status(n)["alive"])
        return len(gone) == RUNNING

    live.until(all_have_ended_it)
    bad.answer = lambda round: None
    live.assert_unharmed()


def test_training_goes_on_while_somebody_sends_a_letter_of_a_gigabyte(live: Live, bad: Puppet) -> None:
    huge = bytes(10**9)
    bad.answer = lambda round: huge
    live.until(lambda: bad.asked.total() >= RUNNING)
    live.play(5)
    assert all(f"peer-{BAD}" in status["last_exchange"]["missing"] for status in live.statuses())
    bad.answer = lambda round: None
    live.assert_unharmed()


# News


def certificates_of(live: Live) -> list[str]:
    return [live.identity(number).own.certificate.decode() for number in range(CLIENTS)]


def test_news_that_prove_nothing_are_ignored(live: Live, bad: Puppet, tmp_path: Path) -> None:
    pems = certificates_of(live)
    damaged = pems[0].replace("A", "B", 5)
    kinds = [
        b"",
        b"\xff" * 1000,
        b"[" * 200_000,
        b'{"certificates": 1, "revocations": {}}',
        json.dumps({"certificates": [damaged, 7, None], "revocations": ""}).encode(),
        json.dumps({"certificates": [""] * 60_000, "revocations": ""}).encode(),
        json.dumps({"certificates": pems * 30, "revocations": ""}).encode(),
        json.dumps({"certificates": [], "revocations": "\ud800"}).encode(),
        json.dumps({"certificates": [], "revocations": live.authority.revocations().decode().replace("0", "1")}).encode(),
        bytes(LIMIT),
    ]  # fmt: skip
    began, members = live.rounds(), [status["members"] for status in live.statuses()]
    for number in range(300):
        bad.bring(kinds[number % len(kinds)], f"peer-{number % 5}")  # anybody may, under any name
    # What proves itself is read, even after some that does not.
    again = Path(signed(live, tmp_path / "again", "peer-5", 5, HOST, 30)["connect_certificate"]).read_text()
    bad.bring(json.dumps({"certificates": [damaged, again], "revocations": ""}).encode())
    live.until(lambda: all(live.identity(n).members()["peer-5"].certificate.decode() == again for n in live.numbers))
    bad.bring(bytes(8 * 2**20))  # more than a message may have: it ends the connection
    live.assert_unharmed()
    assert all(now > then for now, then in zip(live.rounds(), began, strict=True))
    assert [status["members"] for status in live.statuses()] == members
    assert all(live.identity(number).revoked_names() == set() for number in live.numbers)


# Questions

QUESTIONS = [
    "round=abc", "round=1;wait=1e99", "round=-5;wait=-1", "wait=nan;round=99999", f"round={'9' * 5000}", "newest;wait=inf",
    "", ";=;round", "round=19999;wait=nan", "round=\x00", f"newest;{'x' * 10_000}",
]  # fmt: skip


def test_ten_thousand_questions_that_make_no_sense_leave_no_trace(live: Live, bad: Puppet) -> None:
    for question in QUESTIONS:
        assert all(len(read(data).tensors) == 2 for data in bad.ask("peer-0", question, timeout=0.2))
    began = live.rounds()
    for number in range(10_000):
        key = f"{bad.prefix}/peer-{number % RUNNING}/{'letters' if number % 4 else 'card'}"
        bad.session.get(f"{key}?{QUESTIONS[number % len(QUESTIONS)]}", lambda reply: None, timeout=1.0)
    live.assert_unharmed()
    assert all(now > then for now, then in zip(live.rounds(), began, strict=True))


def test_a_question_with_a_payload_is_not_kept(live: Live, bad: Puppet) -> None:
    """Others are, until the letter is written, and then they would be kept with all that is in them."""
    question = f"round={ROUNDS - 1};wait=60"
    for more in ({"payload": b"x"}, {"attachment": b"x"}):
        began = time.monotonic()
        assert bad.ask("peer-0", question, timeout=SECONDS, **more) == []
        assert time.monotonic() - began < SECONDS / 2
    assert bad.ask("peer-0", question, timeout=0.5) == []


# Cards


def test_the_log_names_the_member_and_the_settings_that_do_not_fit(live: Live, tmp_path: Path) -> None:
    """One with another recipe, and one whose card is a thousand brackets."""
    theirs = RECIPE.model_copy(update={"model": RECIPE.model.model_copy(update={"embedding": 32})})
    misfit, nested = live.identity(5), live.identity(GONE)
    own = card(misfit, theirs, build_part(theirs, holds=[misfit.number], run=theirs.fingerprint()))
    own |= {"classes": 7, "settings": {**own["settings"], "method.name": "mapl"}}
    deep = b'{"classes": ' + b"[" * 980 + b"]" * 980 + b', "run": "\\ud800\\u001b[2J"}'
    puppets = [Puppet(misfit, live.addresses, own), Puppet(nested, live.addresses, deep)]
    expected = f"{misfit.name} does not fit this network: method.name is mapl there and courier here"
    live.until(
        lambda: all(f"{nested.name} does not fit" in live.log(n) and expected in live.log(n) for n in live.numbers)
    )
    for number in live.numbers:
        assert f"{misfit.name} does not fit this network: its classes 7, ours 10" in live.log(number)
        assert f"{misfit.name} does not fit this network: model.embedding is 32 there and 64 here" in live.log(number)
        assert "\x1b" not in live.log(number)
    assert len(puppets) == 2
    live.assert_unharmed()


def test_no_depth_of_a_card_is_too_much() -> None:
    """A card is read in a thread with a short stack, and compared where it is longer."""
    ours = {"run": "0" * 16, "classes": 10, "image": [1, 8, 8], "settings": {}}

    def compared(theirs: dict[str, Any], frames: int) -> list[str]:
        return compared(theirs, frames - 1) if frames else differences(ours, theirs)

    theirs: dict[str, Any] = {}
    for depth in (*range(850, 1000), 60_000):
        with suppress(RecursionError):
            theirs = json.loads('{"classes": ' + "[" * depth + "]" * depth + "}")
        assert compared(theirs, 60)


# Members go and come


def test_whoever_is_revoked_is_out_and_whoever_joins_is_in(live: Live, tmp_path: Path) -> None:
    """The number of the one becomes the other's, while the others train."""
    name, authority = f"peer-{GONE}", live.authority
    gone, letters = Puppet(live.identity(GONE), live.addresses), f"mapl/{authority.network_id}/{name}/letters"
    live.until(lambda: all(name in status["alive"] for status in live.statuses()))
    live.until(lambda: gone.asked[letters, letters] > 0)
    assert all(gone.ask(f"peer-{number}") for number in live.numbers)
    revoke(authority, name)
    live.until(lambda: all(live.identity(n).revoked_names() == {name} for n in live.numbers))
    live.play(1)  # the round in which a peer hears of it is its last one
    asked = gone.asked.total()
    again = Puppet(gone.identity, live.addresses)
    live.play(5)
    for puppet in (gone, again):
        assert not any(puppet.ask(f"peer-{number}", timeout=0.3) for number in live.numbers)
    assert (gone.asked.total(), again.asked.total()) == (asked, 0)
    assert not any(name in status["alive"] for status in live.statuses())
    assert [status["members"] for status in live.statuses()] == [CLIENTS - 1] * RUNNING

    newcomer = joining(live, "newcomer", tmp_path)
    assert newcomer.identity.number == GONE
    good = replace(read(newcomer_letter(live, newcomer)), sender=GONE)
    newcomer.answer = lambda round: encode(replace(good, round=round))
    live.until(lambda: all("newcomer" in status["neighbours"] for status in live.statuses()))
    live.until(lambda: all("newcomer" not in status["last_exchange"]["missing"] for status in live.statuses()))
    live.assert_unharmed()


def joining(live: Live, name: str, folder: Path) -> Puppet:
    """A new member, who was invited by the authority and enrolled by the authority's peer."""
    path = folder / f"{name}.invitation"
    invite(live.authority, name, live.addresses[0], path)
    puppet = Puppet(join(Invitation.load(path), [HOST], folder / name), live.addresses)
    members = [certificate.decode() for certificate in (puppet.identity.own.certificate,)]
    puppet.bring(json.dumps({"certificates": members, "revocations": ""}).encode())
    return puppet


def newcomer_letter(live: Live, newcomer: Puppet) -> bytes:
    """A letter of the first peer, once it answers the newcomer."""
    found: list[bytes] = []

    def answered() -> bool:
        found.extend(newcomer.ask("peer-0", timeout=0.5))
        return bool(found)

    live.until(answered)
    return found[0]


# Ports and disks


def test_a_port_that_is_in_use_is_one_sentence(live: Live, tmp_path: Path) -> None:
    file = live.files[5]
    host, _, port = read_settings(file).net.listen.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind((host, int(port)))
        process = in_child(command, ["peer", "run", str(file)], tmp_path / "said")
        process.join(SECONDS)
    assert process.exitcode == 2
    said = (tmp_path / "said").read_text()
    assert f"net.listen: {host}:{port}" in said
    assert len(said.strip().splitlines()) == 1, said
    assert not (file.parent / "state" / "run").exists()


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of its own in a folder; skips the test where nothing can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_sentence_and_room_is_enough_to_go_on(tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"clients": 2, "rounds": 40})
    file = make_network(tmp_path / "net", recipe, {"wait": {"first": 0.1, "patience": 0.1, "linger": 0.0}})[0]
    state, log = file.parent / "state", file.parent / "peer.log"
    with small_disk(state, 8 * 2**20), LocalNetwork([file]) as network:
        network.start(0)
        end = time.monotonic() + SECONDS
        while not (state / "status.json").exists() or json.loads((state / "status.json").read_text())["round"] < 5:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        with suppress(OSError), (state / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        assert network.wait(SECONDS)
        assert network.status(0) == 2
        said = log.read_text().strip().splitlines()
        assert sum("No space left" in line for line in said) == 1, said
        assert not any("Traceback" in line for line in said), said
        assert not list(state.rglob(".*"))
        before = read_status(state)["round"]
        for path in (state / "letters").iterdir():
            assert checksum(path.read_bytes()) == path.read_bytes()[checksum_place(path.read_bytes()) :][:16].decode()
        (state / "ballast").unlink()
        network.start(0)
        assert network.wait(SECONDS)
        assert network.status(0) == 0, log.read_text()
        record = load(state / "run")
        assert before >= 5
        assert [line.round for line in record.rounds] == list(range(40))
