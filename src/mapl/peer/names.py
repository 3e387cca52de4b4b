"""Names of peers and networks, hosts and addresses: what may stand in a certificate."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from mapl.names import printable
from mapl.peer.errors import IdentityError

NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
"""It is one label of a host name, because a certificate has it as one, and a part of a key of zenoh."""
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
LONGEST_HOST = 253
MOST_HOSTS = 16


def check_name(name: str, what: str = "name") -> str:
    """The name of a peer or of a network, if it may have it."""
    if not NAME.fullmatch(name):
        raise IdentityError(
            "name",
            f"{what}: got {_shown(name)}, but it should be 1 to 40 of the characters a-z, 0-9 and '-', at least one of "
            "them a letter, and no '-' at either end",
        )
    return name


def check_host(host: str, what: str = "host") -> str:
    """An IP address or a DNS name by which a peer can be reached, in its usual form."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _check_dns(host.lower(), what)
    if address.is_unspecified or address.is_multicast or "%" in host:
        raise IdentityError("host", f"{what}: {_shown(host)} is not the address of one machine")
    return str(address)


def _check_dns(host: str, what: str) -> str:
    labels = host.split(".")
    # A last label of digits alone would be an IP address with a mistake in it, such as 192.168.1.
    if len(host) > LONGEST_HOST or not all(LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise IdentityError("host", f"{what}: {_shown(host)} is neither an IP address nor a host's name")
    return host


def check_hosts(hosts: Iterable[str], what: str = "host") -> tuple[str, ...]:
    """The hosts of one peer, each once, in the order in which they were given."""
    found = tuple(dict.fromkeys(check_host(host, what) for host in hosts))
    if not 1 <= len(found) <= MOST_HOSTS:
        raise IdentityError("host", f"{what}: got {len(found)} hosts, but a peer has 1 to {MOST_HOSTS}")
    return found


def check_address(text: str, what: str = "address") -> tuple[str, int]:
    """Host and port of an address by which a peer can be reached."""
    host, port = split_address(text, what)
    if not port:
        raise IdentityError("host", f"{what}: got {_shown(text)}, but a port is 1 to 65535")
    return check_host(host, what), port


def split_address(text: str, what: str = "address") -> tuple[str, int]:
    """Host and port of HOST:PORT. An IPv6 address stands in brackets. Nothing but the form is checked."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) and int(port) < 2**16
    if not (colon and bare and is_port) or (":" in bare and bare == host):
        raise IdentityError(
            "host",
            f"{what}: got {_shown(text)}, but it should be HOST:PORT, such as 192.168.1.10:7447 or [::1]:7447",
        )
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(text: str) -> str:
    return repr(printable(text if len(text) <= 60 else f"{text[:60]}…"))
