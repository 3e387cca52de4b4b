"""Joining a network: who gets a certificate, who does not, and what a stranger can do to the service."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conftest import command, in_child
from identities import HERE, NOW, RECIPE, at, contents, invited, joined, new_network
from mapl.cli import main
from mapl.cli.app import app
from mapl.errors import MaplError
from mapl.peer import authority, certificates, enrolment, joining
from mapl.peer.authority import enrol, revoke
from mapl.peer.enrolment import CONNECTIONS, LIMIT, Enrolment, Request, answer
from mapl.peer.identity import Identity, IdentityError
from mapl.peer.invitations import Book
from mapl.peer.joining import join
from mapl.recipe import to_toml
from test_identity import refused, signed_by


@pytest.fixture
def alice(tmp_path) -> Identity:
    return new_network(tmp_path / "alice")


def asked(invitation, key=None, name=None, hosts=(HERE,), token=None) -> bytes:
    """A request, with anything in it."""
    csr = certificates.new_request(key or certificates.new_key(), name or invitation.name, hosts)
    return Request(token=token or invitation.token, csr=csr.decode()).text()


def said(identity: Identity, body: bytes) -> tuple[int, dict]:
    """Status and contents of the answer."""
    status, text, _ = answer(identity, body)
    return status, json.loads(text)


# From the invitation to the identity


def test_from_a_network_to_three_members(alice, tmp_path):
    bob, carol = joined(alice, "bob", hosts=["box.example.org", "10.0.0.2"]), joined(alice, "carol")
    for member, number in ((bob, 1), (carol, 2)):
        assert (member.network, member.network_id, member.number) == (alice.network, alice.network_id, number)
        assert not member.is_authority
        assert member.recipe() == RECIPE
        assert member.addresses[0].startswith(f"quic/{HERE}:")
    assert bob.own.hosts == ("box.example.org", "10.0.0.2")
    assert alice.by_number() == carol.by_number() == {0: "alice", 1: "bob", 2: "carol"}
    assert bob.by_number() == {0: "alice", 1: "bob"}
    assert bob.admit(carol.own.certificate) == carol.own
    assert list(Book.load(alice.folder).pending()) == []


def test_the_private_key_is_in_nothing_that_the_service_receives(alice, tmp_path, monkeypatch):
    received, real = [], ssl.SSLSocket.recv_into

    def recording(self, buffer, nbytes=None, flags=0):
        got = real(self, buffer, nbytes, flags)
        if threading.current_thread() is not threading.main_thread():
            received.append(bytes(memoryview(buffer)[:got]))
        return got

    monkeypatch.setattr(ssl.SSLSocket, "recv_into", recording)
    bob = joined(alice, "bob")
    sent = b"".join(received)
    assert sent.startswith(b"POST /enrol HTTP/1.1")
    request = Request.model_validate_json(sent[sent.index(b"{") :])
    secret = certificates.read_key(bob.key_path.read_bytes(), "").private_numbers().private_value
    written = secret.to_bytes(32, "big")
    csr = base64.b64decode("".join(request.csr.splitlines()[1:-1]))
    for whole in (sent, csr):
        assert written not in whole
        assert base64.b64encode(written)[:20] not in whole
        assert written.hex().encode() not in whole
        assert b"PRIVATE" not in whole
    assert bob.key_path.read_bytes().splitlines()[1] not in sent


def test_name_and_number_are_those_of_the_invitation_whatever_is_asked_for(alice):
    made = invited(alice, "bob")
    status, text = said(alice, asked(made, name="mallory"))
    assert status == 200
    member = alice.admit(text["certificate"].encode())
    assert (member.name, member.number) == ("bob", 1)
    assert list(alice.members()) == ["alice", "bob"]


# Who gets none


def test_a_token_works_for_one_key_which_may_ask_again(alice, monkeypatch):
    made, key = invited(alice, "bob"), certificates.new_key()
    status, first = said(alice, asked(made, key))
    assert status == 200
    joined(alice, "carol")
    status, second = said(alice, asked(made, key))
    assert (status, second["certificate"]) == (200, first["certificate"])
    assert len(second["members"]) == 3
    before = contents(alice.folder)
    status, refusal = said(alice, asked(made))
    assert (status, list(refusal)) == (409, ["error"])
    assert contents(alice.folder) == before
    at(monkeypatch, 8)
    assert said(alice, asked(made, key))[0] == 410


def test_a_crash_before_the_certificate_is_stored_costs_nothing(alice, monkeypatch):
    made, key = invited(alice, "bob"), certificates.new_key()
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_signed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            answer(alice, asked(made, key))
    assert said(alice, asked(made))[0] == 409, "it belongs to that key already"
    assert invited(alice, "carol").number == 2, "and so does the number"
    assert said(alice, asked(made, key))[0] == 200
    assert alice.by_number() == {0: "alice", 1: "bob"}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"token": "A" * 43}, 403),
        ({"token": "A" * 101}, 400),
        ({"token": ""}, 403),
        ({"token": "é" * 10}, 403),
        ({"csr": ""}, 400),
        ({"csr": "x" * 9000}, 400),
        ({"csr": "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"}, 400),
        ({"more": 1}, 400),
        ({"csr": None}, 400),
        ({"token": 1}, 400),
    ],
)
def test_a_wrong_request_gets_nothing_and_changes_nothing(change, status, alice):
    made = invited(alice, "bob")
    before = contents(alice.folder)
    found, text = said(alice, json.dumps({**json.loads(asked(made)), **change}).encode())
    assert (found, list(text)) == (status, ["error"])
    assert text["error"].isprintable()
    assert contents(alice.folder) == before
    assert said(alice, asked(made))[0] == 200, "the invitation is as good as before"


@pytest.mark.parametrize(
    "hosts", [["*"], ["a b"], ["0.0.0.0"], [], [f"10.0.0.{n}" for n in range(17)], ["carol"], ["alice"]]
)
def test_hosts_that_nobody_should_have(hosts, alice):
    """Alice is a member and carol is invited: with their name as a host, bob could answer for them."""
    invited(alice, "carol")
    made = invited(alice, "bob")
    before = contents(alice.folder)
    hosts = hosts or [f"a{n}" for n in range(40)]
    assert said(alice, asked(made, hosts=hosts))[0] in (400, 403)
    assert contents(alice.folder) == before


def test_requests_of_other_kinds(alice):
    """An RSA key, another curve, an e-mail address for a host, no host at all, another's signature."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    made = invited(alice, "bob")

    def made_with(key, *names):
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    here, key = x509.DNSName("here"), certificates.new_key()
    forged = bytearray(base64.b64decode(b"".join(made_with(key, here).splitlines()[1:-1])))
    forged[-1] ^= 1
    requests = [
        made_with(rsa.generate_private_key(65537, 2048), here),
        made_with(ec.generate_private_key(ec.SECP384R1()), here),
        made_with(key, here, x509.RFC822Name("a@example.org")),
        made_with(key),
        b"-----BEGIN CERTIFICATE REQUEST-----\n%s\n-----END CERTIFICATE REQUEST-----\n" % base64.b64encode(forged),
        alice.own.certificate,
    ]
    for csr in requests:
        body = Request(token=made.token, csr=csr.decode()).text()
        assert said(alice, body)[0] == 400
    assert said(alice, Request(token=made.token, csr=made_with(key, here).decode()).text())[0] == 200


def test_an_invitation_that_is_over_withdrawn_or_replaced(alice, monkeypatch):
    replaced = invited(alice, "bob")
    made = invited(alice, "bob")
    assert said(alice, asked(replaced))[0] == 403
    revoke(alice, "bob")
    assert said(alice, asked(made))[0] == 403
    over = invited(alice, "bob", days=3)
    at(monkeypatch, 3.01)
    assert said(alice, asked(over))[0] == 410
    assert list(alice.members()) == ["alice"]


def test_the_invitation_of_somebody_who_was_revoked(alice):
    made, key = invited(alice, "bob"), certificates.new_key()
    assert said(alice, asked(made, key))[0] == 200
    book = (alice.folder / "invitations.json").read_bytes()
    revoke(alice, "bob")
    assert said(alice, asked(made, key))[0] == 403
    (alice.folder / "invitations.json").write_bytes(book)  # as from an old copy of the folder
    assert said(alice, asked(made, key))[0] == 403
    refused("revoked", alice.admit, signed_by(alice, "bob", 1))


def test_a_new_certificate_for_a_member(alice, tmp_path, monkeypatch):
    """It lost its folder, or 825 days are nearly over. Name and number stay."""
    bob, carol = joined(alice, "bob"), joined(alice, "carol")
    at(monkeypatch, 800)
    renewed = joined(alice, "bob", folder=tmp_path / "again", again=True)
    assert (renewed.name, renewed.number) == ("bob", 1)
    assert renewed.own.serial != bob.own.serial
    carol.admit(renewed.own.certificate)
    for member in (alice, carol):
        assert member.members()["bob"] == renewed.own
    at(monkeypatch, 830)
    assert list(carol.members()) == ["alice", "bob"], "carol's own is over"


def test_only_the_authority_serves(alice):
    bob = joined(alice, "bob")
    refused("authority", Enrolment, bob.folder, HERE, 0)


def test_many_join_at_once(tmp_path):
    alice = new_network(tmp_path / "alice", recipe=RECIPE.model_copy(update={"clients": 9}))
    names = [f"peer-{n}" for n in range(1, 9)]
    with Enrolment(alice.folder, HERE, 0) as service, ThreadPoolExecutor(8) as pool:
        invitations = [invited(alice, name, service.port) for name in names]
        found = list(pool.map(lambda i: join(i, [HERE], tmp_path / i.name), invitations))
    assert [identity.number for identity in found] == list(range(1, 9))
    assert list(alice.members()) == ["alice", *names]
    keys = {entry.name: entry.used for entry in Book.load(alice.folder).entries}
    assert keys == {identity.name: identity.own.key for identity in found}


# The other end is not who it should be


def test_the_service_of_another_network(alice, tmp_path):
    other = new_network(tmp_path / "other")
    with Enrolment(other.folder, HERE, 0) as service:
        refused("authority", join, invited(alice, "bob", service.port), [HERE], tmp_path / "bob")
    assert not [path for path in tmp_path.iterdir() if "bob" in path.name and path.suffix != ".invitation"]


@pytest.mark.parametrize("hosts", [[HERE], [HERE, "alice"]])
def test_another_member_at_the_inviters_address(hosts, alice, tmp_path):
    """Even one whose certificate has the inviter's name as a host."""
    bob = joined(alice, "bob")
    key = certificates.new_key()
    signer = certificates.read_key((alice.folder / "ca.key").read_bytes(), "")
    bob.certificate_path.write_bytes(certificates.issue(alice.authority, signer, key.public_key(), "bob", 1, hosts, 9))
    bob.key_path.write_bytes(certificates.key_pem(key))
    service = Enrolment(alice.folder, HERE, 0)
    service.identity = Identity.load(bob.folder)
    asked_for = []
    with service, pytest.MonkeyPatch.context() as patch:
        patch.setattr(enrolment, "answer", lambda *_: asked_for.append(1))
        refused("authority", join, invited(alice, "carol", service.port), [HERE], tmp_path / "carol")
    assert not asked_for, "and it never sees the token"
    assert not (tmp_path / "carol").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda alice, found: {"certificate": signed_by(alice, "bob", 1).decode()}, "key"),
        (lambda alice, found: {"certificate": signed_by(alice, "bob", 2).decode()}, "name"),
        (lambda alice, found: {"certificate": signed_by(alice, "carol", 1).decode()}, "name"),
        (lambda alice, found: {"certificate": ""}, "format"),
        (lambda alice, found: {"revoked": "{}"}, "format"),
        (lambda alice, found: {"revoked": found["revoked"].replace('"sequence":0', '"sequence":1')}, "authority"),
        (lambda alice, found: {"members": 1}, "format"),
    ],
)
def test_an_answer_that_is_not_what_was_promised(change, reason, alice, tmp_path, monkeypatch):
    real = enrolment.answer

    def another(identity, body):
        status, text, sentence = real(identity, body)
        found = json.loads(text)
        return status, json.dumps({**found, **change(alice, found)}).encode(), sentence

    monkeypatch.setattr(enrolment, "answer", another)
    refused(reason, joined, alice, "bob")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "bob.invitation"]


def test_members_of_an_answer_that_are_none_are_left_out(alice, tmp_path, monkeypatch):
    other, real = new_network(tmp_path / "other"), enrolment.answer

    def another(identity, body):
        status, text, sentence = real(identity, body)
        found = json.loads(text)
        strangers = [signed_by(other, "mallory", 3).decode(), "nothing"]
        return status, json.dumps({**found, "members": found["members"] + strangers}).encode(), sentence

    monkeypatch.setattr(enrolment, "answer", another)
    assert list(joined(alice, "bob").members()) == ["alice", "bob"]


# Nobody answers


def test_nobody_is_there(alice, tmp_path):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    made = invited(alice, "bob", port)
    assert f"{HERE}:{port}" in refused("unreachable", join, made, [HERE], tmp_path / "bob")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "bob.invitation"]
    with Enrolment(alice.folder, HERE, port):
        assert join(made, [HERE], tmp_path / "bob").name == "bob", "the invitation is as good as before"


def test_an_answer_that_is_lost_is_asked_for_again(alice, monkeypatch):
    lost, real = [], enrolment._Handler._reply

    def losing(self, status, body):
        if len(lost) < 2:
            lost.append(status)
            self.close_connection = True
        else:
            real(self, status, body)

    monkeypatch.setattr(joining, "PAUSE", 0.01)
    monkeypatch.setattr(enrolment._Handler, "_reply", losing)
    bob = joined(alice, "bob")
    assert lost == [200, 200]
    assert alice.members()["bob"] == bob.own


def test_no_answer_at_all_leaves_nothing(alice, tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "PAUSE", 0.01)
    monkeypatch.setattr(enrolment._Handler, "_reply", lambda *_: None)
    refused("unreachable", joined, alice, "bob")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "bob.invitation"]
    monkeypatch.undo()
    assert joined(alice, "bob", again=True).number == 1


def test_a_folder_that_is_taken_does_not_use_the_invitation_up(alice, tmp_path):
    (tmp_path / "bob").mkdir()
    refused("files", joined, alice, "bob")
    assert list(Book.load(alice.folder).pending()) == ["bob"]


def test_a_recipe_that_cannot_be_read_does_not_use_the_invitation_up(alice, tmp_path):
    with Enrolment(alice.folder, HERE, 0) as service:
        made = invited(alice, "bob", service.port).model_copy(update={"recipe": "clients = 4\nlater = 1\n"})
        with pytest.raises(MaplError, match="later"):
            join(made, [HERE], tmp_path / "bob")
    assert list(Book.load(alice.folder).pending()) == ["bob"]
    assert not (tmp_path / "bob").exists()


def test_a_wrong_clock_is_a_sentence_and_the_identity_is_there(alice, tmp_path, monkeypatch):
    """The invitation is used up by then. The clock of whoever joins is four days slow."""

    def clock():
        return NOW() - certificates.EARLIER * (2 if threading.current_thread() is threading.main_thread() else 0)

    with Enrolment(alice.folder, HERE, 0) as service:
        made = invited(alice, "bob", service.port)
        monkeypatch.setattr(certificates, "now", clock)
        refused("expired", join, made, [HERE], tmp_path / "bob")
    monkeypatch.undo()
    assert list(Identity.load(tmp_path / "bob").members()) == ["alice", "bob"]


# Strangers


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    alice = new_network(tmp_path_factory.mktemp("service") / "alice")
    with Enrolment(alice.folder, HERE, 0) as running:
        yield running


def exchanged(service: Enrolment, data: bytes, secured: bool = True) -> bytes:
    """What comes back for these bytes, over TLS or without."""
    connection = socket.create_connection((HERE, service.port), timeout=10)
    with suppress(OSError):
        if secured:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=service.identity.authority.decode())
            connection = context.wrap_socket(connection, server_hostname="alice")
        connection.sendall(data)
        # What is closed here is over there as well: a request that goes on is cut short.
        connection.shutdown(socket.SHUT_WR) if not secured else None
        got = b""
        while part := connection.recv(65536):
            got += part
        return got
    connection.close()
    return b""


def post(body: bytes, path: str = "/enrol", length: object = None) -> bytes:
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b"{}"), 400),
        (post(b""), 400),
        (post(b"{}", path="/"), 404),
        (post(b"{}", path="/enrol/../../etc"), 404),
        (post(b"", length=LIMIT + 1), 413),
        (post(b"", length="9" * 400), 411),
        (post(b"", length=-1), 411),
        (post(b"", length="٣"), 411),
        (b"POST /enrol HTTP/1.1\r\n\r\n", 411),
        (b"GET /enrol HTTP/1.1\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\n\r\n", 405),
        (b"POST /enrol HTTP/9.9\r\n\r\n", 400),
        (b"nonsense from somewhere else\r\n\r\n", 400),
        (b"POST /enrol HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"POST /enrol HTTP/1.1\r\nContent-Length: 65000\r\na: " + b"a" * 2000 + b"\r\n\r\n" + b" " * 65000, 400),
    ],
)
def test_a_bad_request_is_answered_with_one_sentence(request_, status, service):
    got = exchanged(service, request_)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), got[:200]
    assert json.loads(body)["error"].isprintable()
    assert b"Python" not in head


def test_a_request_without_end_is_cut_off_and_strangers_print_nothing(alice, capfd):
    """Whether the answer still arrives is left to the network: the other end goes on sending."""
    with Enrolment(alice.folder, HERE, 0) as service:
        got = exchanged(service, b"POST /" + b"a" * 2**22)
        assert got == b"" or got.startswith(b"HTTP/1.0 400")
        exchanged(service, b"no TLS at all", secured=False)
        socket.create_connection((HERE, service.port)).close()
        assert exchanged(service, post(b"{}")).startswith(b"HTTP/1.0 400"), "the next one is served"
    assert capfd.readouterr() == ("", "")


@given(st.binary(max_size=400))
def test_any_bytes_for_a_request(service, data):
    status, text, sentence = answer(service.identity, data)
    assert status == 400
    assert "Traceback" not in sentence
    assert list(json.loads(text)) == ["error"]


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_any_bytes_for_a_connection(service, data, secured):
    got = exchanged(service, data + b"\r\n\r\n", secured)
    if got and secured:
        assert got.startswith(b"HTTP/1.0 4") or b'"error"' in got
    assert exchanged(service, post(b"{}")).startswith(b"HTTP/1.0 400"), "the next one is served"


def test_the_17th_connection_is_closed_and_a_slow_one_does_not_last(alice, monkeypatch):
    seconds = 2.0
    monkeypatch.setattr(enrolment, "SECONDS", seconds)
    with Enrolment(alice.folder, HERE, 0) as service:
        started = time.monotonic()
        idle = [socket.create_connection((HERE, service.port)) for _ in range(CONNECTIONS)]
        time.sleep(0.2)  # until the last one is accepted
        while not exchanged(service, post(b"{}")):  # no place is left
            assert time.monotonic() - started < 10 * seconds
            time.sleep(0.05)
        assert time.monotonic() - started >= seconds
        for connection in idle:
            connection.close()


def test_a_request_that_drips_is_cut_off(alice, monkeypatch):
    """A byte now and then keeps no connection open: the deadline is for the whole of it."""
    monkeypatch.setattr(enrolment, "SECONDS", 0.5)
    with Enrolment(alice.folder, HERE, 0) as service:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=alice.authority.decode())
        connection = socket.create_connection((HERE, service.port))
        started = time.monotonic()
        with suppress(OSError):  # on a busy machine it may be cut off before it has shown its certificate
            connection = context.wrap_socket(connection, server_hostname="alice")
            while time.monotonic() - started < 10:
                connection.sendall(b"P")
                time.sleep(0.05)
        assert time.monotonic() - started < 5
        connection.close()


def test_a_mistake_of_the_service_is_said_and_does_not_stop_it(alice, monkeypatch):
    heard = []
    with Enrolment(alice.folder, HERE, 0, heard.append) as service:
        with monkeypatch.context() as patch:
            patch.setattr(enrolment, "enrol", lambda *_: 1 / 0)
            body = asked(invited(alice, "bob"))
            got = exchanged(service, post(body))
        assert got.startswith(b"HTTP/1.0 500")
        assert b"Traceback" not in got
        assert b"division" not in got
        assert exchanged(service, post(body)).startswith(b"HTTP/1.0 200")
    assert "ZeroDivisionError" in heard[0]
    assert "'bob' has joined with number 1" in heard[1]


def test_a_port_that_is_taken(alice):
    with socket.create_server((HERE, 0)) as taken:
        refused("unreachable", Enrolment(alice.folder, HERE, taken.getsockname()[1]).start)


# Commands


def cli(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["identity", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(to_toml(RECIPE))
    out = cli("create-network", "clinics", "--me", "alice", "--host", HERE, "--recipe", "recipe.toml")
    alice = Identity.load("clinics")
    assert alice.network_id in out
    assert alice.recipe() == RECIPE
    with Enrolment("clinics", HERE, 0) as service:
        assert "bob.invitation" in cli("invite", "clinics", "bob", "--at", f"{HERE}:{service.port}", "--number", 3)
        assert "alice, bob" in cli("join", "bob.invitation", "--host", HERE, "--out", "bob")
    cli("invite", "clinics", "carol", "--at", f"{HERE}:7447", "--days", 2)
    assert Identity.load("bob").number == 3

    found = json.loads(cli("list", "clinics", "--json"))
    assert (found["network"], found["name"], found["authority"]) == ("clinics", "alice", True)
    states = {row["name"]: (row["number"], row["state"]) for row in found["rows"]}
    assert states == {"alice": (0, "member"), "bob": (3, "member"), "carol": (1, "invited")}
    assert found["rows"][1]["hosts"] == [HERE]
    lines = [line for line in cli("list", "clinics").splitlines() if HERE in line or "invited" in line]
    assert len(lines) == 3
    assert not any("\x1b" in line for line in lines)

    cli("revoke", "clinics", "bob")
    cli("revoke", "clinics", "carol")
    rows = json.loads(cli("list", "clinics", "--json"))["rows"]
    assert [(row["name"], row["state"]) for row in rows] == [("alice", "member"), ("bob", "revoked")]


def test_a_network_without_a_recipe_trains_couriers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli("create-network", "net", "--me", "alice", "--host", HERE, "--out", "here", "--number", 2)
    made = Identity.load("here")
    assert (made.network, made.number, made.recipe().method.name) == ("net", 2, "courier")


def test_a_name_that_was_revoked_before_this_peer_knew_it(alice, tmp_path):
    joined(alice, "bob")
    revoke(alice, "bob")
    carol = joined(alice, "carol")
    rows = json.loads(cli("list", carol.folder, "--json"))["rows"]
    assert {"name": "bob", "number": None, "expires": None, "hosts": [], "state": "revoked"} in rows


@pytest.mark.parametrize(
    "arguments",
    [
        ["create-network", "Net", "--me", "alice", "--host", HERE],
        ["create-network", "net", "--me", "alice", "--host", "no host"],
        ["create-network", "alice", "--me", "alice", "--host", HERE],
        ["create-network", "net", "--me", "alice", "--host", HERE, "--recipe", "nowhere.toml"],
        ["invite", "alice", "bob", "--at", "elsewhere:7447"],
        ["invite", "alice", "alice", "--at", f"{HERE}:7447"],
        ["invite", "nowhere", "bob", "--at", f"{HERE}:7447"],
        ["join", "nowhere.invitation", "--host", HERE],
        ["join", "alice/network.json", "--host", HERE],
        ["list", "nowhere"],
        ["revoke", "alice", "nobody"],
        ["serve", "alice", "--listen", "7447"],
        ["serve", "nowhere", "--listen", f"{HERE}:0"],
    ],
)  # fmt: skip
def test_one_sentence_status_2_and_no_change(arguments, alice, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mapl", "identity", *arguments])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert contents(tmp_path) == before


def test_what_a_refusing_service_says_is_printed_as_text(alice, tmp_path, monkeypatch):
    monkeypatch.setattr(enrolment, "answer", lambda *_: (403, b'{"error": "\\u001b[31mred\\nand more"}', ""))
    sentence = refused("refused", joined, alice, "bob")
    assert "\x1b" not in sentence


@pytest.mark.slow
def test_serve_until_ctrl_c(alice, tmp_path):
    out = tmp_path / "out.txt"
    child = in_child(command, ["identity", "serve", str(alice.folder), "--listen", f"{HERE}:0"], out)
    while not (out.exists() and "waiting" in out.read_text()) and child.is_alive():
        time.sleep(0.01)
    port = int(out.read_text().split(":")[-1])
    bob = join(invited(alice, "bob", port), [HERE], tmp_path / "bob")
    os.kill(child.pid, signal.SIGINT)
    child.join()
    assert child.exitcode == 130
    assert "'bob' has joined with number 1" in out.read_text()
    assert alice.members()["bob"] == bob.own


def test_enrol_needs_no_service(alice):
    made, key = invited(alice, "bob"), certificates.new_key()
    assert enrol(alice, made.token, certificates.new_request(key, "bob", [HERE])).name == "bob"
    with pytest.raises(IdentityError, match="not known here"):
        enrol(alice, made.token[:-1], certificates.new_request(key, "bob", [HERE]))
