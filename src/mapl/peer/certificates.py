"""Keys and certificates: how they are made, and when one is believed.

Everything is on the curve P-256 with SHA-256. A member's certificate says its name (common name), its number (serial
number of the subject) and its hosts. It is one for TLS servers and clients, and it cannot sign others.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from mapl.errors import MaplError
from mapl.peer.errors import IdentityError
from mapl.peer.names import check_hosts, check_name

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise MaplError("identities need cryptography, which cannot be imported here: pip install 'mapl[peer]'") from error

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

LIMIT = 8 * 1024
"""The largest certificate, request or key, in bytes of PEM."""
EARLIER = timedelta(days=2)
"""A certificate is valid from so long before it was made, because a member's clock may be slow."""
MEMBER_DAYS = 825
AUTHORITY_DAYS = 3650
MOST_DIGITS = 9
"""A number has at most so many digits."""


@dataclass(frozen=True)
class Member:
    """What a certificate says about a member of the network."""

    name: str
    number: int
    """Its client id, from 0 on."""
    certificate: bytes
    """PEM, in its usual form."""
    serial: int
    hosts: tuple[str, ...]
    """Where it can be reached, besides its name."""
    begins: datetime
    expires: datetime
    key: str
    """A digest of its public key."""

    def is_known_as(self, host: str) -> bool:
        """Whether its certificate is valid for this host."""
        return host == self.name or host in self.hosts


def now() -> datetime:
    """The clock of this machine, in whole seconds like the times in a certificate."""
    return datetime.now(UTC).replace(microsecond=0)


# Keys


def new_key() -> Key:
    """A new key pair."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """A private key as a file has it. It is not encrypted: a peer starts without a person."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def read_key(pem: bytes, what: str) -> Key:
    """The private key of a file."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except Exception as error:  # the library has many kinds, and all of them mean this
        raise IdentityError("key", f"{what} is not a private key without a password") from error
    if not (isinstance(key, Key) and isinstance(key.curve, ec.SECP256R1)):
        raise IdentityError("key", f"{what} is not a key on the curve P-256")
    return key


def digest_of(key: PublicKey) -> str:
    """SHA-256 of a public key, in hex. The network's id is the beginning of its authority's."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def _checked_key(key: object, what: str) -> PublicKey:
    if isinstance(key, PublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise IdentityError("format", f"{what} has a key of another kind than P-256")


# Making certificates


def new_authority(network: str, key: Key) -> bytes:
    """The certificate (PEM) of a new network's authority, signed by itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{network} authority")])
    builder = _certificate(name, name, key.public_key(), key.public_key(), now() + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def issue(
    authority: bytes, authority_key: Key, key: PublicKey, name: str, number: int, hosts: Sequence[str], days: int
) -> bytes:
    """A member's certificate (PEM). It does not outlive the authority's."""
    issuer = x509.load_pem_x509_certificate(authority)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.SERIAL_NUMBER, str(number))]
    )
    end = min(now() + timedelta(days=days), issuer.not_valid_after_utc)
    builder = _certificate(subject, issuer.subject, key, authority_key.public_key(), end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(purposes, critical=False)
    builder = builder.add_extension(_alternative_names(name, hosts), critical=False)
    return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, issuer_key: PublicKey, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now() - EARLIER).not_valid_after(end)
    # Python 3.13 and newer refuse certificates without these two.
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return builder.add_extension(whose, critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(name: str, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    others = [_general_name(host) for host in hosts if host != name]
    return x509.SubjectAlternativeName([x509.DNSName(name), *others])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts_of(extensions: x509.Extensions) -> tuple[str, ...]:
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    if len(found) != len(list(names)):
        raise ValueError("a name that is neither a host nor an address")
    return tuple(found)


# Asking for a certificate


def new_request(key: Key, name: str, hosts: Sequence[str]) -> bytes:
    """What a new member sends (PEM): its public key and its hosts, signed with its own key, which stays."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(_alternative_names(name, hosts), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> tuple[PublicKey, tuple[str, ...]]:
    """The key and the hosts of a request. Whatever else it asks for is not looked at."""
    what = "the request for a certificate"
    if len(pem) > LIMIT:
        raise IdentityError("format", f"{what} is too large: it should have at most {LIMIT:,} bytes")
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
    except Exception as error:  # the library has many kinds, and all of them mean this
        raise IdentityError("format", f"{what} cannot be read") from error
    checked = _checked_key(key, what)  # before its signature: checking a huge RSA key takes long
    try:
        is_its_own, hosts = request.is_signature_valid, _hosts_of(request.extensions)
    except Exception as error:
        raise IdentityError("format", f"{what} cannot be read") from error
    if not is_its_own:
        raise IdentityError("format", f"{what} is not signed with its own key")
    return checked, check_hosts(hosts, what)


# Believing certificates


@lru_cache(maxsize=16)
def read_authority(pem: bytes, what: str) -> x509.Certificate:
    """The certificate of an authority, which signs itself."""
    authority = _read_certificate(pem, what)
    try:
        _checked_key(authority.public_key(), what)
        authority.verify_directly_issued_by(authority)
        is_authority = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except Exception as error:
        raise IdentityError("authority", f"{what} is not the certificate of an authority") from error
    if not is_authority:
        raise IdentityError("authority", f"{what} is not the certificate of an authority")
    return authority


def authority_key(authority: x509.Certificate) -> PublicKey:
    """The public key of an authority that `read_authority` has read."""
    return _checked_key(authority.public_key(), "the authority's certificate")


@lru_cache(maxsize=4096)
def read_member(pem: bytes, authority: bytes, what: str = "the certificate") -> Member:
    """What a certificate says, if this authority signed it. Whether it is valid today is another question.

    The signature is checked before anything is believed; a pure function of its arguments, so answers are kept.
    """
    issuer = read_authority(authority, "the authority's certificate")
    certificate = _read_certificate(pem, what)
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception as error:
        raise IdentityError("authority", f"{what} is not signed by this network's authority") from error
    try:
        key, extensions = certificate.public_key(), certificate.extensions
        names, hosts = _names_of(certificate), _hosts_of(extensions)
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        purposes = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except Exception as error:
        raise IdentityError("format", f"{what} lacks what a member's certificate has") from error
    if is_authority or purposes != {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}:
        raise IdentityError("format", f"{what} is not one of a member")
    name, number = names
    check_name(name, what)
    return Member(
        name=name,
        number=_number(number, what),
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        serial=certificate.serial_number,
        hosts=tuple(host for host in hosts if host != name),
        begins=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        key=digest_of(_checked_key(key, what)),
    )


def _read_certificate(pem: bytes, what: str) -> x509.Certificate:
    if len(pem) > LIMIT:
        raise IdentityError("format", f"{what} is too large: it should have at most {LIMIT:,} bytes")
    try:
        (certificate,) = x509.load_pem_x509_certificates(pem)
    except Exception as error:  # the library has many kinds, and all of them mean this
        raise IdentityError("format", f"{what} is not one certificate (X.509, PEM)") from error
    return certificate


def _names_of(certificate: x509.Certificate) -> tuple[str, str]:
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (number,) = certificate.subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)
    return str(name.value), str(number.value)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and str(int(text)) == text):
        raise IdentityError("number", f"{what} has a number that is none")
    return int(text)


def check_time(begins: datetime, expires: datetime, what: str, remedy: str) -> None:
    """Refuse a certificate that is not valid yet, or not any more, by this machine's clock."""
    today = now()
    if not begins <= today <= expires:
        raise IdentityError(
            "expired",
            f"{what} is valid from {begins:%Y-%m-%d} to {expires:%Y-%m-%d}, but the clock of this machine says "
            f"{today:%Y-%m-%d %H:%M} UTC: {remedy}",
        )


# Signing what is no certificate


def sign(key: Key, message: bytes) -> bytes:
    """A signature of the authority."""
    return key.sign(message, ec.ECDSA(hashes.SHA256()))


def is_signed(authority: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the authority signed exactly this."""
    key = authority_key(read_authority(authority, "the authority's certificate"))
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
