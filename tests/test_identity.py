"""Who is in a network of peers: certificates, members, revocations, and the files that say so."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapl.peer.identity
from identities import HERE, RECIPE, at, contents, invited, joined, new_network
from mapl.peer import certificates, revocations
from mapl.peer.authority import create_network, invite, revoke
from mapl.peer.identity import Identity, IdentityError
from mapl.peer.invitations import Book, Invitation
from mapl.peer.names import check_address, check_host, check_hosts, check_name, join_address, split_address
from mapl.recipe import Recipe


def refused(reason: str, call, *arguments) -> str:
    """The sentence of an IdentityError with this reason."""
    with pytest.raises(IdentityError) as error:
        call(*arguments)
    assert error.value.reason == reason, error.value
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def alice(tmp_path) -> Identity:
    return new_network(tmp_path / "alice")


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> tuple[Identity, Identity]:
    """Two members that no test changes."""
    alice = new_network(tmp_path_factory.mktemp("network") / "alice")
    return alice, joined(alice, "bob")


def signed_by(authority: Identity, name: str, number: int, hosts=(HERE,), days: int = 825) -> bytes:
    """A certificate that the authority's key signed past all checks."""
    key = certificates.read_key((authority.folder / "ca.key").read_bytes(), "")
    public = certificates.new_key().public_key()
    return certificates.issue(authority.authority, key, public, name, number, hosts, days)


# A new network


def test_a_network_and_its_first_member(alice):
    assert (alice.network, alice.name, alice.number, alice.clients) == ("clinics", "alice", 0, 4)
    assert alice.is_authority
    assert alice.addresses == ()
    assert len(alice.network_id) == 16
    assert list(alice.members()) == ["alice"]
    assert alice.by_number() == {0: "alice"}
    assert alice.recipe() == RECIPE
    assert alice.revoked_names() == frozenset()
    assert (alice.own.expires - certificates.now()).days >= 3649, "whoever has it has the authority's key as well"
    found = {path.name for path in alice.folder.iterdir()}
    files = {"network.json", "ca.pem", "ca.key", "me.pem", "me.key", "recipe.toml", "revoked.json", "invitations.json"}
    assert found == files | {"members"}


def test_two_networks_of_one_name_differ(tmp_path):
    first, second = (new_network(tmp_path / folder) for folder in "ab")
    assert first.network_id != second.network_id


def test_the_recipe_of_a_network_has_no_folder_of_the_machine_where_it_was_made(tmp_path):
    recipe = Recipe.of(method="courier", data={"name": "digits", "folder": "/home/alice/images"})
    assert new_network(tmp_path / "a", recipe=recipe).recipe().data.folder is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"network": "Clinics"}, "name"),
        ({"me": "al ice"}, "name"),
        ({"hosts": []}, "host"),
        ({"hosts": ["*.example.org"]}, "host"),
        ({"number": 4}, "number"),
        ({"number": -1}, "number"),
        ({"folder": Path("taken")}, "files"),
        ({"folder": Path("file/deep")}, "files"),
    ],
)
def test_no_network_and_no_folder_after_a_mistake(change, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    Path("file").touch()
    given = {"network": "clinics", "me": "alice", "hosts": [HERE], "recipe": RECIPE, "folder": Path("new"), **change}
    before = sorted(tmp_path.rglob("*"))
    refused(reason, lambda: create_network(**given))
    assert sorted(tmp_path.rglob("*")) == before


# Files


def test_secrets_are_never_readable_for_others_whatever_the_umask(tmp_path, monkeypatch):
    """Not even while they are written: every file that gets a secret is created with mode 600."""
    created, real = {}, os.open

    def watched(path, flags, mode=0o777, **more):
        if flags & os.O_CREAT:
            created[Path(path).name[1:].rpartition(".")[0]] = mode  # a file is written as .me.key.PID
        return real(path, flags, mode, **more)

    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", watched)
        alice = new_network(tmp_path / "alice")
        bob = joined(alice, "bob")
    finally:
        os.umask(before)
    for name in ("ca.key", "me.key", "invitations.json", "bob.invitation"):
        assert created[name] == 0o600, name
    secrets = [alice.folder / name for name in ("ca.key", "me.key", "invitations.json")]
    for path in (*secrets, bob.folder / "me.key", tmp_path / "bob.invitation"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for identity in (alice, bob):
        assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["me.key", "ca.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_may_read_or_change_is_refused(name, mode, alice):
    (alice.folder / name).chmod(mode)
    assert name in refused("permissions", Identity.load, alice.folder)


def test_the_book_of_invitations_has_no_token(alice):
    token = invited(alice, "bob").token
    assert len(token) == 43
    assert all(token.encode() not in data for data in contents(alice.folder).values())


DAMAGE = {
    "network.json": [(None, "files"), (b"", "format"), (b'{"version": 2}', "format"), (b"[" * 8000, "format")],
    "ca.pem": [(None, "files"), (b"", "format"), (b"x" * 9000, "format"), ("me.pem", "authority")],
    "me.pem": [(None, "files"), (b"", "format"), ("ca.pem", "format"), ("other/me.pem", "authority")],
    "me.key": [(None, "files"), (b"", "key"), ("ca.key", "key"), ("other/me.key", "key")],
    "ca.key": [(b"", "key"), ("me.key", "key")],
    "recipe.toml": [
        (None, "files"),
        (b"", "format"),
        (b"clients = 0", "format"),
        (b"\xff", "format"),
        (b"[", "format"),
    ],
    "revoked.json": [(None, "files"), (b"", "format"), ("other/revoked.json", "authority")],
}


@pytest.mark.parametrize(("name", "damage", "reason"), [(n, *case) for n, cases in DAMAGE.items() for case in cases])
def test_a_damaged_folder_is_one_sentence(name, damage, reason, network, tmp_path):
    folder = Path(shutil.copytree(network[0].folder, tmp_path / "copy"))
    if damage is None:
        (folder / name).unlink()
    elif isinstance(damage, bytes):
        (folder / name).write_bytes(damage)
    else:
        other = new_network(tmp_path / "other").folder.parent if damage.startswith("other/") else folder
        (folder / name).write_bytes((other / damage).read_bytes())
    refused(reason, Identity.load, folder)


def test_an_authority_that_did_not_sign_itself(alice):
    """Its key is right, but the rest of the certificate, such as how long it is valid, is somebody else's."""
    lines = alice.ca_path.read_bytes().splitlines()
    der = bytearray(base64.b64decode(b"".join(lines[1:-1])))
    place = der.index(b"Z", 40) - 1  # in the seconds of when it begins
    der[place] = ord("0") + (der[place] - ord("0") + 1) % 10
    alice.ca_path.write_bytes(b"\n".join([lines[0], base64.b64encode(der), lines[-1], b""]))
    refused("authority", Identity.load, alice.folder)


def test_a_folder_of_something_else(tmp_path):
    assert "network.json" in refused("files", Identity.load, tmp_path)
    refused("files", Identity.load, tmp_path / "nowhere")


def test_a_damaged_certificate_of_another_member_is_as_if_it_were_not_there(network, tmp_path):
    folder = Path(shutil.copytree(network[0].folder, tmp_path / "copy"))
    (folder / "members/bob.pem").rename(folder / "members/carol.pem")
    (folder / "members/dave.pem").write_bytes(b"nothing")
    assert list(Identity.load(folder).members()) == ["alice"]


def test_a_certificate_is_read_once_and_again_whenever_its_file_changes(network, tmp_path, monkeypatch):
    identity, reads = Identity.load(shutil.copytree(network[0].folder, tmp_path / "copy")), []
    path, real = identity.folder / "members/bob.pem", mapl.peer.identity.read
    monkeypatch.setattr(mapl.peer.identity, "read", lambda path, limit: reads.append(path.name) or real(path, limit))
    assert [list(identity.members()) for _ in range(3)] == [["alice", "bob"]] * 3
    assert reads.count("bob.pem") == 1
    good = path.read_bytes()
    path.write_bytes(good[:-40])
    assert list(identity.members()) == ["alice"]
    path.write_bytes(good)
    assert list(identity.members()) == ["alice", "bob"]
    path.unlink()
    assert list(identity.members()) == ["alice"]


@pytest.mark.parametrize("days", [-3, 3651])
def test_a_wrong_clock_is_named_with_what_it_says(days, network, monkeypatch):
    at(monkeypatch, days)
    sentence = refused("expired", Identity.load, network[0].folder)
    assert f"{certificates.now():%Y-%m-%d %H:%M} UTC" in sentence


def test_a_clock_that_is_a_day_slow_is_no_matter(network, monkeypatch):
    at(monkeypatch, -1)
    for identity in network:
        assert list(Identity.load(identity.folder).members()) == ["alice", "bob"]


def test_after_825_days_a_member_is_none(network, monkeypatch):
    alice, bob = network
    at(monkeypatch, 826)
    assert list(alice.members()) == ["alice"]
    assert alice.by_number() == {0: "alice"}
    refused("expired", alice.admit, bob.own.certificate)
    refused("expired", Identity.load, bob.folder)


def test_code_that_the_recipe_of_a_network_names_is_not_imported(alice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stranger.py").write_text("raise SystemExit('imported')\n")
    path = alice.folder / "recipe.toml"
    path.write_text(path.read_text().replace('name = "courier"', 'name = "stranger:Method"', 1))
    assert Identity.load(alice.folder).recipe().method.name == "stranger:Method"
    assert "stranger" not in sys.modules
    with pytest.raises(SystemExit, match="imported"):
        alice.recipe(trust=True)


# Certificates


def test_what_a_certificate_says(network):
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    _, bob = network
    found = x509.load_pem_x509_certificate(bob.certificate_path.read_bytes())
    assert found.subject.rfc4514_string() == "2.5.4.5=1,CN=bob"
    assert found.issuer.rfc4514_string() == "CN=clinics authority"
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["bob"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == [HERE]
    purposes = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == 827
    assert found.signature_hash_algorithm.name == "sha256"


def test_no_certificate_outlives_its_authority(alice, monkeypatch):
    at(monkeypatch, 3600)
    member = certificates.read_member(signed_by(alice, "bob", 1), alice.authority)
    assert member.expires == alice.own.expires


@pytest.mark.parametrize("kind", ["another authority", "of itself", "the authority's own", "garbage", "two", "a key"])
def test_a_certificate_that_is_not_of_this_network(kind, alice, tmp_path):
    """Another authority of the same name, which signs the same name and number, is another authority."""
    other = new_network(tmp_path / "other")
    good = signed_by(alice, "bob", 1)
    sent = {
        "another authority": (signed_by(other, "bob", 1), "authority"),
        "of itself": (other.authority, "authority"),
        "the authority's own": (alice.authority, "format"),
        "garbage": (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "format"),
        "two": (good + good, "format"),
        "a key": (alice.key_path.read_bytes(), "format"),
    }
    pem, reason = sent[kind]
    before = contents(alice.folder)
    refused(reason, alice.admit, pem)
    assert contents(alice.folder) == before
    assert alice.admit(good).name == "bob"


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [("Bob", 1, "name"), ("../bob", 1, "name"), ("a" * 41, 1, "name"), ("bob", 4, "number"), ("bob", -1, "number")],
)
def test_even_the_authority_cannot_make_such_a_member(name, number, reason, alice):
    refused(reason, alice.admit, signed_by(alice, name, number))
    assert list(alice.members()) == ["alice"]


@pytest.mark.parametrize(
    "change", ["an authority", "no purpose", "servers only", "no host", "two names", "no number", "01"]
)
def test_a_certificate_that_says_too_little_or_too_much(change, alice):
    """The authority signed it, but it is none that this program makes."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    good = x509.load_pem_x509_certificate(signed_by(alice, "bob", 1))
    parts = {type(extension.value): extension.value for extension in good.extensions}
    name, number = NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER
    subject = [x509.NameAttribute(name, "bob"), x509.NameAttribute(number, "01" if change == "01" else "1")]
    match change:
        case "an authority":
            parts[x509.BasicConstraints] = x509.BasicConstraints(ca=True, path_length=0)
        case "no purpose":
            del parts[x509.ExtendedKeyUsage]
        case "servers only":
            parts[x509.ExtendedKeyUsage] = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        case "no host":
            del parts[x509.SubjectAlternativeName]
        case "two names":
            subject.append(x509.NameAttribute(name, "carol"))
        case "no number":
            subject.pop()
    begins, expires = good.not_valid_before_utc, good.not_valid_after_utc
    builder = x509.CertificateBuilder(good.issuer, x509.Name(subject), good.public_key(), 1, begins, expires)
    for value in parts.values():
        builder = builder.add_extension(value, critical=False)
    key = certificates.read_key((alice.folder / "ca.key").read_bytes(), "")
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    refused("number" if change == "01" else "format", alice.admit, pem)


def test_a_member_is_remembered_in_the_usual_form(alice):
    pem = signed_by(alice, "bob", 1)
    member = alice.admit(b"a letter from bob\n" + pem.replace(b"\n", b"\r\n") + b"regards")
    assert member.certificate == pem == (alice.folder / "members/bob.pem").read_bytes()
    assert alice.members() == {"alice": alice.own, "bob": member}
    assert alice.by_number() == {0: "alice", 1: "bob"}
    assert member.serial > 0


def test_a_name_has_one_number_and_a_number_one_name(alice):
    alice.admit(signed_by(alice, "bob", 1))
    refused("number", alice.admit, signed_by(alice, "carol", 1))
    refused("number", alice.admit, signed_by(alice, "bob", 2))
    refused("number", alice.admit, signed_by(alice, "carol", 0))
    refused("number", alice.admit, signed_by(alice, "alice", 2))
    assert alice.by_number() == {0: "alice", 1: "bob"}


def test_the_newest_certificate_of_a_member_is_kept(alice, monkeypatch):
    older = signed_by(alice, "bob", 1)
    at(monkeypatch, 100)
    newer = signed_by(alice, "bob", 1)
    alice.admit(older)
    alice.admit(newer)
    alice.admit(older)
    assert alice.members()["bob"].certificate == newer


def test_a_certificate_of_ones_own_name_changes_nothing(alice, monkeypatch):
    at(monkeypatch, 100)
    before = contents(alice.folder)
    alice.admit(signed_by(alice, "alice", 0))
    assert alice.members() == {"alice": alice.own}
    assert contents(alice.folder) == before


@given(st.binary(max_size=9000))
def test_any_bytes_for_a_certificate(network, data):
    alice, _ = network
    before = contents(alice.folder)
    refused("format", alice.admit, data)
    assert contents(alice.folder) == before


@given(st.data())
def test_a_changed_certificate_is_refused_or_the_same(network, data):
    alice, bob = network
    pem = bytearray(bob.own.certificate)
    place = data.draw(st.integers(0, len(pem) - 1))
    pem[place] = data.draw(st.integers(0, 255))
    try:
        member = alice.admit(bytes(pem))
    except IdentityError:
        return
    assert member == bob.own


# Revocations


def test_a_revoked_member_is_none_and_its_number_is_free(alice, tmp_path):
    bob, carol = joined(alice, "bob"), joined(alice, "carol")
    assert carol.members().keys() == {"alice", "bob", "carol"}
    assert revoke(alice, "bob")
    assert alice.revoked_names() == {"bob"}
    assert alice.by_number() == {0: "alice", 2: "carol"}
    refused("revoked", alice.admit, bob.own.certificate)
    refused("revoked", revoke, alice, "bob")
    refused("revoked", invited, alice, "bob")

    assert carol.accept_revocations(alice.revocations())
    assert not carol.accept_revocations(alice.revocations()), "no news"
    assert carol.members().keys() == {"alice", "carol"}
    refused("revoked", carol.admit, bob.own.certificate)
    assert bob.accept_revocations(carol.revocations()), "they travel from member to member"
    assert "bob" not in bob.members()
    refused("revoked", Identity.load, bob.folder)

    dave = joined(alice, "dave")
    assert dave.number == 1
    assert dave.revoked_names() == {"bob"}
    assert carol.admit(dave.own.certificate).number == 1


def test_another_process_sees_a_revocation_at_once(alice):
    joined(alice, "bob")
    running = Identity.load(alice.folder)
    revoke(Identity.load(alice.folder), "bob")
    assert running.revoked_names() == {"bob"}
    assert list(running.members()) == ["alice"]


def test_older_revocations_are_not_taken(alice):
    bob = joined(alice, "bob")
    kept = [alice.revocations()]
    for name in ("carol", "dave"):
        joined(alice, name)
        revoke(alice, name)
        kept.append(alice.revocations())
    assert [json.loads(data)["sequence"] for data in kept] == [0, 1, 2]
    assert bob.accept_revocations(kept[2])
    for data in kept:
        assert not bob.accept_revocations(data)
    assert bob.revocations() == kept[2]
    assert bob.revoked_names() == {"carol", "dave"}


def _with(data: bytes, **change) -> bytes:
    return json.dumps({**json.loads(data), **change}, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda data: _with(data, sequence=9), "authority"),
        (lambda data: _with(data, revoked=[]), "authority"),
        (lambda data: _with(data, revoked=[{"name": "alice", "serial": "1"}]), "authority"),
        (lambda data: _with(data, signature=""), "authority"),
        (lambda data: _with(data, signature="??"), "format"),
        (lambda data: _with(data, network_id="0" * 16), "authority"),
        (lambda data: _with(data, version=2), "format"),
        (lambda data: _with(data, more=1), "format"),
        (lambda data: _with(data, sequence=-1), "format"),
        (lambda data: data.replace(b'"sequence":1', b'"sequence":1' + b"0" * 5000), "format"),
        (lambda data: data + b"\n", "format"),
        (lambda data: b" " * (64 * 1024) + data, "format"),
        (lambda data: b"[" * 60_000, "format"),
        (lambda data: b"", "format"),
    ],
)
def test_tampered_revocations_are_refused(tamper, reason, alice):
    bob = joined(alice, "bob")
    joined(alice, "carol")
    revoke(alice, "carol")
    before = bob.revocations()
    refused(reason, bob.accept_revocations, tamper(alice.revocations()))
    assert bob.revocations() == before


def test_revocations_of_another_network_of_the_same_name(alice, tmp_path):
    other = new_network(tmp_path / "other")
    joined(other, "bob", folder=tmp_path / "other-bob")
    revoke(other, "bob")
    refused("authority", alice.accept_revocations, other.revocations())


def test_a_list_out_of_order_is_refused_even_with_a_signature(alice):
    key = certificates.read_key((alice.folder / "ca.key").read_bytes(), "")
    twice = (revocations.Revoked(name="bob", serial="1"),) * 2
    made = revocations.signed(key, alice.network_id, 1, twice)
    refused("format", alice.accept_revocations, made.stored())


def test_the_longest_list_is_still_accepted(alice, tmp_path):
    key = certificates.read_key((alice.folder / "ca.key").read_bytes(), "")
    entries = tuple(revocations.Revoked(name=f"{'a' * 35}{n:05}", serial="f" * 40) for n in range(700))
    with pytest.raises(IdentityError, match="full"):
        revocations.signed(key, alice.network_id, 1, entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revocations, "LIMIT", 2**20)
        longer = revocations.signed(key, alice.network_id, 1, entries)
    refused("format", alice.accept_revocations, longer.stored())
    fits = revocations.signed(key, alice.network_id, 1, entries[:500])
    assert alice.accept_revocations(fits.stored())
    assert len(alice.revoked_names()) == 500


@given(st.binary(max_size=300))
def test_any_bytes_for_revocations(network, data):
    alice, _ = network
    refused("format", alice.accept_revocations, data)


@given(st.data())
def test_changed_revocations_are_refused(network, data):
    alice, _ = network
    changed = bytearray(alice.revocations())
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IdentityError):
        alice.accept_revocations(bytes(changed))


def test_only_the_authority_revokes_and_not_itself(alice):
    bob = joined(alice, "bob")
    refused("authority", revoke, bob, "alice")
    refused("authority", invited, bob, "carol")
    refused("name", revoke, alice, "alice")
    refused("name", revoke, alice, "nobody")


# Invitations


def test_what_is_in_an_invitation(alice, tmp_path):
    bob = joined(alice, "bob")
    made = invited(alice, "carol", 7000, number=3)
    assert Invitation.load(tmp_path / "carol.invitation") == made
    assert (made.name, made.number, made.inviter, made.network) == ("carol", 3, "alice", "clinics")
    assert made.addresses == (f"quic/{HERE}:7000",)
    assert made.enrolment == f"{HERE}:7000"
    assert made.members == tuple(m.own.certificate.decode() for m in (alice, bob))
    assert made.ca.encode() == alice.authority


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "bob"}, "name"),
        ({"name": "alice"}, "name"),
        ({"name": "alice", "again": True}, "name"),
        ({"name": "box"}, "name"),
        ({"name": "Carol"}, "name"),
        ({"number": 0}, "number"),
        ({"number": 1}, "number"),
        ({"number": 2}, "number"),
        ({"number": 4}, "number"),
        ({"number": -1}, "number"),
        ({"name": "bob", "again": True, "number": 3}, "number"),
        ({"at": "10.1.1.1:7447"}, "host"),
        ({"at": HERE}, "host"),
        ({"at": f"{HERE}:0"}, "host"),
        ({"at": "[::1]:7447"}, "host"),
        ({"path": Path("taken")}, "files"),
        ({"path": Path("nowhere/carol.invitation")}, "files"),
    ],
)
def test_an_invitation_that_would_not_do_is_not_made(change, reason, alice, tmp_path, monkeypatch):
    """Bob is number 1 and has a machine called box; dave is invited with number 2."""
    monkeypatch.chdir(tmp_path)
    joined(alice, "bob", hosts=["box"])
    invited(alice, "dave")
    Path("taken").touch()
    before = contents(tmp_path)
    given = {"name": "carol", "at": f"{HERE}:7447", "path": Path("carol.invitation"), **change}
    refused(reason, lambda: invite(alice, **given))
    assert contents(tmp_path) == before


def test_a_book_that_cannot_be_written_leaves_no_invitation(alice, tmp_path, monkeypatch):
    def fails(*_):
        raise IdentityError("files", "the disk is full")

    monkeypatch.setattr(Book, "save", fails)
    refused("files", invited, alice, "bob")
    assert [path.name for path in tmp_path.iterdir()] == ["alice"]


def test_when_all_numbers_are_taken(alice):
    for name in ("bob", "carol"):
        joined(alice, name)
    invited(alice, "dave")
    refused("number", invited, alice, "erin")
    assert not revoke(alice, "dave"), "nobody had used it"
    assert invited(alice, "erin").number == 3
    assert alice.revoked_names() == frozenset()


def test_an_invitation_that_is_over_gives_its_number_back(alice, monkeypatch):
    assert invited(alice, "bob", days=1).number == 1
    at(monkeypatch, 2)
    assert invited(alice, "carol").number == 1
    assert list(Book.load(alice.folder).pending()) == ["carol"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ca": "another"}, "authority"),
        ({"network_id": "0" * 16}, "authority"),
        ({"name": "../bob"}, "name"),
        ({"inviter": ""}, "name"),
        ({"network": "a/b"}, "name"),
        ({"number": 4}, "number"),
        ({"number": "1"}, "format"),
        ({"enrolment": "here"}, "host"),
        ({"addresses": ["quic/-x:1"]}, "host"),
        ({"recipe": "clients"}, "format"),
        ({"version": 2}, "format"),
        ({"token": "no token\n"}, "format"),
        ({"unknown": 1}, "format"),
    ],
)
def test_an_invitation_that_was_edited(change, reason, alice, tmp_path):
    invited(alice, "bob")
    path = tmp_path / "bob.invitation"
    if change.get("ca"):
        change = {"ca": new_network(tmp_path / "other").authority.decode()}
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    refused(reason, Invitation.load, path)


@given(st.binary(max_size=200))
def test_any_bytes_for_an_invitation(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.invitation"
    path.write_bytes(data)
    refused("format", Invitation.load, path)


# Names


@pytest.mark.parametrize("name", ["a", "bob", "0a", "clinic-3", "a" * 40, "3-b"])
def test_good_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", "a" * 41, "a.b", "a/b", "a b", "ä", "12", "a\n", "\x1b[0m", "a_b", "*", "a\u202eb"]
)
def test_bad_names(name):
    """A name of digits alone would be an address; the rest is no label of a host's name, or no name of a file."""
    sentence = refused("name", check_name, name)
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("FE80::0:1", "fe80::1"),
        ("Box", "box"),
        ("a.example.org", "a.example.org"),
    ],
)
def test_good_hosts(host, found):
    assert check_host(host) == found


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "224.0.0.1", "fe80::1%eth0", "192.168.1", "256.0.0.1", "*.org", "a..b", "-a", "a_b", "a b", "a" * 64,
     ".".join(["a" * 60] * 5), "bücher.de", "a\n", "[::1]", "http://a"],
)  # fmt: skip
def test_bad_hosts(host):
    refused("host", check_host, host)


def test_hosts_are_counted_once():
    assert check_hosts(["Box", "box", "10.0.0.1"]) == ("box", "10.0.0.1")
    refused("host", check_hosts, [f"10.0.0.{n}" for n in range(17)])


@pytest.mark.parametrize(
    ("text", "host", "port"), [("a:1", "a", 1), ("10.0.0.1:65535", "10.0.0.1", 65535), ("[::1]:80", "::1", 80)]
)
def test_addresses(text, host, port):
    assert check_address(text) == split_address(text) == (host, port)
    assert join_address(host, port) == text


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:b", "a:65536", "::1:80", "a:-1", "a:1:2", "[]:1", "a:٣"])
def test_bad_addresses(text):
    refused("host", split_address, text)


# Without the library


def test_without_cryptography_it_is_one_sentence(tmp_path):
    program = "import sys; sys.modules['cryptography'] = None; from mapl.cli import main; main()"
    arguments = [sys.executable, "-c", program, "identity", "list", "x"]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "pip install 'mapl[peer]'" in done.stderr
    assert done.stderr.count("\n") == 1
