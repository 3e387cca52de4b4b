"""A download survives what networks do, and never puts a file in place that is not the published one."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conftest import line_with
from mapl import MaplError
from mapl.data.download import get, unpack
from mapl.data.published import Download, Published

CONTENT = bytes(range(256)) * 4000


class Server(ThreadingHTTPServer):
    """A server on this machine that behaves as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        """After how many bytes each of the next answers breaks off."""
        self.ranges = True
        """Whether parts of a file can be asked for."""
        self.requests: list[tuple[str, str | None]] = []
        """Path and range of each request."""
        self.stalls = False
        """Whether the next answer, once it breaks off, keeps the connection open and silent."""
        self.stall = threading.Event()
        self.sent = 0
        """Bytes of the answer that never ends."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        if self.path == "/slow":
            self.server.stall.wait(10)
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while not self.server.stall.is_set():
                try:
                    self.wfile.write(CONTENT)
                except OSError:
                    return
                self.server.sent += len(CONTENT)
            return
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = self.server.breaks.pop(0) if self.server.breaks else len(content)
        self.wfile.write(content[start : start + end])
        if self.server.stalls:
            self.server.stalls = False
            self.server.stall.wait(10)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as made:
        made.files["file.bin"] = CONTENT
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.stall.set()
        made.shutdown()
        thread.join()


def offered(
    *urls: str, content: bytes = CONTENT, path: str = "set/file.bin", unpack: str = "", most: int = 10**7
) -> Published:
    md5 = hashlib.md5(content).hexdigest()
    return Published("some", ({path: md5},), (Download(path, md5, urls, unpack, most),))


def test_a_plain_download(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    published = offered(server.url("file.bin"))
    get(published, tmp_path, watch=lambda name: nullcontext(lambda done, total: steps.append((done, total))))
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.bin"]
    get(published, tmp_path)
    assert len(server.requests) == 1, "what is there is not downloaded again"


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks = [300_000, 1, 200_000]
    get(offered(server.url("file.bin")), tmp_path, pause=0)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=300000-", "bytes=300001-", "bytes=500001-"]


def test_a_later_command_goes_on_where_an_earlier_one_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks = [300_000, 0]
    with pytest.raises(MaplError, match=r"broke off after 300,000 of 1,024,000 bytes"):
        get(offered(server.url("file.bin")), tmp_path, pause=0)
    assert (tmp_path / "set" / "file.bin.part").stat().st_size == 300_000
    get(offered(server.url("file.bin")), tmp_path)
    assert server.requests[-1][1] == "bytes=300000-"
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def test_a_server_that_only_sends_whole_files(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.breaks = [300_000]
    get(offered(server.url("file.bin")), tmp_path, pause=0)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"of another file", CONTENT[::-1], CONTENT + b"and more"])
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(part)
    get(offered(server.url("file.bin")), tmp_path, pause=0)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_part_that_is_the_whole_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT)
    get(offered(server.url("file.bin")), tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def test_the_wrong_file_is_never_put_in_place(server: Server, tmp_path: Path) -> None:
    server.files["wrong"] = b"<html>please log in</html>"
    with pytest.raises(MaplError, match=r"gives another file, with the MD5 [0-9a-f]{32} instead of"):
        get(offered(server.url("wrong")), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_addresses_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.files["wrong"] = b"another file"
    get(offered(server.url("absent"), server.url("wrong"), server.url("file.bin")), tmp_path)
    assert [path for path, _ in server.requests] == ["/absent", "/wrong", "/file.bin"]
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def test_a_mirror_is_tried_first(server: Server, tmp_path: Path) -> None:
    get(offered(server.url("never-asked")), tmp_path, mirrors=[server.url("")])
    assert [path for path, _ in server.requests] == ["/file.bin"]


def test_a_server_that_does_not_answer(server: Server, tmp_path: Path) -> None:
    start = time.monotonic()
    get(offered(server.url("slow"), server.url("file.bin")), tmp_path, timeout=0.5)
    assert time.monotonic() - start < 5
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def test_a_server_that_falls_silent_in_the_middle(server: Server, tmp_path: Path) -> None:
    server.breaks, server.stalls = [300_000], True
    get(offered(server.url("file.bin")), tmp_path, timeout=0.5, pause=0)
    assert [asked for _, asked in server.requests] == [None, "bytes=300000-"]
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


def test_all_failures_are_told_and_what_to_do_by_hand(server: Server, tmp_path: Path) -> None:
    closed = "http://127.0.0.1:1/file.bin"
    with pytest.raises(MaplError) as error:
        get(offered(server.url("absent"), server.url("slow"), closed), tmp_path, timeout=0.5)
    sentence = str(error.value)
    assert "absent: HTTP status 404 Not Found" in sentence
    assert "slow: no answer in time" in sentence
    assert f"{closed}: " in sentence
    again = f"mapl data get some --folder {tmp_path}"
    assert re.search(line_with("file.bin", f"'{tmp_path / 'set'}'", "by hand", again), sentence)


def test_a_file_placed_by_hand_is_kept(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_bytes(b"repacked")
    get(offered(server.url("file.bin")), tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == b"repacked"
    assert "published checksum" in caplog.text
    assert not server.requests


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file where a folder should be")
    with pytest.raises(MaplError, match=r"file.bin' cannot be written"):
        get(offered(server.url("file.bin")), tmp_path)


def test_a_download_that_never_ends_is_given_up(server: Server, tmp_path: Path) -> None:
    with pytest.raises(MaplError, match="more than 2,000,000 bytes"):
        get(offered(server.url("endless"), most=2_000_000), tmp_path)
    assert server.sent < 100 * 2_000_000
    assert not list((tmp_path / "set").iterdir())


def test_an_announced_size_that_is_too_large_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    steps: list[int] = []
    with pytest.raises(MaplError, match="more than 1,000 bytes"):
        get(
            offered(server.url("file.bin"), most=1000),
            tmp_path,
            watch=lambda name: nullcontext(lambda done, total: steps.append(done)),
        )
    assert steps == []


def test_an_archive_is_not_unpacked_to_more_than_its_data_set_has(server: Server, tmp_path: Path) -> None:
    packed = archive("train/a.png", "test/b.png")
    server.files["set.tar.gz"] = packed
    published = offered(
        server.url("set.tar.gz"), content=packed, path="set.tar.gz", unpack="images", most=len(CONTENT) + 10_000
    )
    with pytest.raises(MaplError, match=r"set.tar.gz' cannot be unpacked: .* more than"):
        get(published, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar.gz"]


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT)
            tar.addfile(member, io.BytesIO(CONTENT))
    return packed.getvalue()


@pytest.mark.parametrize("prefix", ["images/", ""])
def test_archives_are_unpacked(server: Server, tmp_path: Path, prefix: str) -> None:
    packed = archive(f"{prefix}train/a.png", f"{prefix}test/b.png")
    server.files["set.tar.gz"] = packed
    get(offered(server.url("set.tar.gz"), content=packed, path="set.tar.gz", unpack="images"), tmp_path)
    assert (tmp_path / "images" / "train" / "a.png").read_bytes() == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "set.tar.gz"]


@pytest.mark.parametrize("content", [archive("../outside"), archive("a")[:1000], b"no archive", b""])
def test_a_bad_archive_leaves_nothing_behind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in").mkdir()
    packed = tmp_path / "in" / "set.tar.gz"
    packed.write_bytes(content)
    with pytest.raises(MaplError, match=r"set.tar.gz' cannot be unpacked"):
        unpack(packed, tmp_path / "in" / "images", 10**7)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "set.tar.gz"]
