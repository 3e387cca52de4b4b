"""The service that signs certificates for whoever has an invitation: one POST over TLS, for anybody who can reach it.

Anybody can. So a connection has a deadline and a size, there are at most so many at a time, and whatever comes in is
answered with one sentence.
"""

from __future__ import annotations

import io
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from pydantic import Field

from mapl.names import printable
from mapl.peer import certificates
from mapl.peer.authority import check_is_authority, enrol
from mapl.peer.errors import IdentityError, Reason
from mapl.peer.files import Written, parsed
from mapl.peer.identity import Identity
from mapl.peer.names import join_address

PATH = "/enrol"
LIMIT = 64 * 1024
"""The largest request with its headers, in bytes."""
SECONDS = 10.0
"""How long one connection may take, from the first byte to the last."""
LINGER = 1.0
"""Seconds in which the other end takes an answer whose request was not read to its end."""
CONNECTIONS = 16
"""How many there may be at a time. The next one is closed at once."""
POLL = 0.1
"""Seconds after which `stop` is noticed."""

STATUS: dict[Reason, int] = {"format": 400, "host": 400, "used": 409, "expired": 410, "files": 500}
"""The HTTP status of a refusal; 403 for all others."""

Say = Callable[[str], None]


class Request(Written):
    """What a new member sends. Its private key is not in it."""

    token: str = Field(max_length=100)
    csr: str = Field(max_length=certificates.LIMIT)


class Answer(Written):
    """What it gets: its certificate, the members, and who was revoked."""

    certificate: str
    members: tuple[str, ...]
    revoked: str


def answer(identity: Identity, body: bytes) -> tuple[int, bytes, str]:
    """Status and body of the answer to a request, and a sentence about it for whoever runs the service."""
    try:
        request = parsed(Request, body, "the request")
        member = enrol(identity, request.token, request.csr.encode())
        known = tuple(other.certificate.decode() for other in identity.members().values())
        revoked = identity.revocations().decode()
    except IdentityError as error:
        return STATUS.get(error.reason, 403), complaint(str(error)), f"refused: {error}"
    made = Answer(certificate=member.certificate.decode(), members=known, revoked=revoked)
    return 200, made.text(), f"{member.name!r} has joined with number {member.number}"


def complaint(sentence: str) -> bytes:
    return json.dumps({"error": sentence}).encode()


class Enrolment:
    """The service of a network's authority. It runs in threads of its own, from `start` to `stop`."""

    def __init__(self, folder: str | Path, host: str, port: int, say: Say | None = None):
        self.identity = Identity.load(folder)
        check_is_authority(self.identity, "sign certificates")
        self.host = host
        self.port = port
        """Where it listens. If this is 0, `start` takes a free port."""
        self._say = say or (lambda _: None)
        self._server: _Server | None = None

    def start(self) -> None:
        """Begin to listen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.identity.certificate_path, self.identity.key_path)
        try:
            self._server = _Server(self.host, self.port, self.identity, context, self._say)
        except OSError as error:
            where = join_address(self.host, self.port)
            raise IdentityError("unreachable", f"cannot listen on {where}: {error.strerror or error}") from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(POLL,), name="enrolment", daemon=True).start()

    def stop(self) -> None:
        """Listen no more. Who is being answered still gets the answer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Enrolment:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One thread for each connection, and never more than `CONNECTIONS` of them."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, identity: Identity, context: ssl.SSLContext, say: Say):
        self.identity, self.context, self.say = identity, context, say
        self.places = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ends early, or is no TLS. It is nobody's fault here, and the next one is served."""


class _Bounded(io.RawIOBase):
    """What comes over a connection: not more than so many bytes, and not later than a deadline."""

    def __init__(self, connection: ssl.SSLSocket, deadline: float, limit: int):
        self._connection, self._deadline, self._left = connection, deadline, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        got = self._connection.recv_into(buffer, min(len(buffer), self._left)) if self._left else 0
        self._left -= got
        return got


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: _Server
    server_version, sys_version = "mapl", ""

    def setup(self) -> None:
        deadline = time.monotonic() + SECONDS
        self.request.settimeout(SECONDS)
        # The handshake is here, in the connection's own thread: whoever is slow with it holds nobody else up.
        self.connection = self.server.context.wrap_socket(self.request, server_side=True)
        self.rfile = io.BufferedReader(_Bounded(self.connection, deadline, LIMIT))
        self.wfile = self.connection.makefile("wb")

    def finish(self) -> None:
        try:
            super().finish()
            self._linger()
        finally:
            self.connection.close()

    def _linger(self) -> None:
        """Read what still comes, for a moment: to close before that would destroy the answer on its way."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline, left = time.monotonic() + LINGER, 16 * LIMIT
        while left > 0 and (seconds := deadline - time.monotonic()) > 0:
            self.connection.settimeout(seconds)
            got = len(self.connection.recv(LIMIT))
            left = left - got if got else 0

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != PATH:
            self._reply(404, complaint(f"there is only {PATH} here"))
        elif not (length.isascii() and length.isdigit() and len(length) < 10):
            self._reply(411, complaint("the request does not say how long it is"))
        elif int(length) > LIMIT:
            self._reply(413, complaint(f"the request is too large: it should have at most {LIMIT:,} bytes"))
        else:
            self._enrol(int(length))

    def _enrol(self, length: int) -> None:
        body = self.rfile.read(length)
        if len(body) < length:
            self._reply(400, complaint("the request was cut short"))
            return
        try:
            status, said, sentence = answer(self.server.identity, body)
        except Exception as error:  # a mistake of ours: say so, and serve the next
            status, said = 500, complaint("the service made a mistake; whoever runs it can see more")
            sentence = f"a mistake in the enrolment service: {type(error).__name__}: {error}"
        self._reply(status, said)
        self.server.say(f"{self.client_address[0]}: {sentence}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses: another method, a line that is no HTTP, too many headers."""
        self.request_version = "HTTP/1.0"  # to a line without a version, the library would answer without a status
        status = 405 if code == 501 else code if code < 500 else 400
        self._reply(status, complaint(printable(message or "this is not a request")[:200]))

    def _reply(self, status: int, body: bytes) -> None:
        self.connection.settimeout(SECONDS)
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: Any) -> None:
        """The service says what came of a request, and nothing else."""
