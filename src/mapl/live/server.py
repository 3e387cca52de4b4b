"""A small server for one page on this machine.

It listens on the loopback interface and answers only who knows its token, which is new each time. It also refuses
questions that name another host, so that a page from elsewhere cannot reach it under a name of its own. It answers with
files of this package and with what `Watch` tells; no part of an address is ever used as a path.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mapl.errors import MaplError
from mapl.live import assets
from mapl.live.watch import Gone, Watch

HERE = "127.0.0.1"
NAMES = (HERE, "localhost")
"""Under which names of the host the page may be asked for."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN = 24
"""Random bytes of the token."""


class Server(ThreadingHTTPServer):
    """Serves the page of a `Watch` at `url`."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int = 0) -> None:
        try:
            super().__init__((HERE, port), _Handler)
        except OSError as error:
            raise MaplError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
        self.watch = watch
        self.token = secrets.token_urlsafe(TOKEN)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self.port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "mapl", ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        _, token, *rest = (address.path + "/").split("/")
        if self.headers.get("Host") not in [f"{name}:{self.server.port}" for name in NAMES]:
            self._refuse("this page answers only under the address that mapl watch printed")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse("the token of this page is missing or wrong: open the address that mapl watch printed")
        else:
            self._answer("/".join(rest).rstrip("/"), parse_qs(address.query))

    def _refuse(self, why: str) -> None:
        self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _answer(self, name: str, query: dict[str, list[str]]) -> None:
        if name in QUESTIONS:
            self._ask(QUESTIONS[name], {key: values[0] for key, values in query.items()})
        elif name in assets.FILES:
            self._send(HTTPStatus.OK, *assets.FILES[name]())
        elif name == "":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", assets.live_page(self.server.watch.chosen))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is no such page\n")

    def _ask(self, question: Callable[[Watch, dict[str, str]], dict[str, Any]], query: dict[str, str]) -> None:
        status = HTTPStatus.OK
        try:
            answer = question(self.server.watch, query)
        except (KeyError, ValueError):
            status, answer = HTTPStatus.BAD_REQUEST, {"problem": "this question is not complete"}
        except Gone as error:
            status, answer = HTTPStatus.NOT_FOUND, {"problem": str(error)}
        except MaplError as error:
            status, answer = HTTPStatus.CONFLICT, {"problem": str(error)}
        self._send(status, "application/json", json.dumps(answer, allow_nan=False).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # the page was closed meanwhile

    def log_message(self, format: str, *_: Any) -> None:
        pass


QUESTIONS: dict[str, Callable[[Watch, dict[str, str]], dict[str, Any]]] = {
    "runs.json": lambda watch, query: watch.runs(),
    "run.json": lambda watch, query: watch.run(
        query["run"], int(query["start"]), int(query["control"]), query.get("stamp", "")
    ),
    "graph.json": lambda watch, query: watch.graph(query["run"], int(query["round"])),
}
