"""Downloads of published files. They resume where they broke off, and appear only if their checksum is right."""

from __future__ import annotations

import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from mapl.data.dataset import Progress, unseen
from mapl.data.published import Download, Published, log, md5
from mapl.errors import MaplError

CHUNK = 1 << 18
RESUMES = 20
"""How often one transfer is resumed, if something new arrived each time."""

Watch = Callable[[str], AbstractContextManager[Progress]]
"""Makes the `Progress` of a file, from its name."""


def unwatched(name: str) -> AbstractContextManager[Progress]:
    return nullcontext(unseen)


class _Failed(Exception):
    """This address did not deliver the file."""


class _BrokenOff(_Failed):
    """The connection broke or timed out; what has arrived is kept."""


def get(
    published: Published,
    folder: Path,
    *,
    mirrors: Sequence[str] = (),
    watch: Watch = unwatched,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> None:
    """Download the files of a data set into a folder.

    Args:
        mirrors: addresses of web folders that have the files too; tried before the published ones.
        watch: makes the progress for a file.
        timeout: seconds without an answer before an address is given up.
        pause: seconds to wait before a broken transfer is resumed.

    An existing file is kept, whatever its checksum; if that is not the published one, the log says so. Archives are
    unpacked next to it.
    """
    for file in published.downloads:
        target = folder / file.path
        if target.exists():
            if md5(target) != file.md5:
                log.warning(
                    "%r does not have the published checksum (repacked, or incomplete); used anyway", str(target)
                )
        else:
            urls = [f"{mirror.rstrip('/')}/{target.name}" for mirror in mirrors]
            with watch(target.name) as progress:
                failures = _download(file, target, [*urls, *file.urls], progress, timeout, pause)
            if failures:
                raise MaplError(_by_hand(published, folder, failures))
        if file.unpack and not (folder / file.unpack).exists():
            unpack(target, folder / file.unpack, file.most)


def _by_hand(published: Published, folder: Path, failures: Sequence[str]) -> str:
    absent = [folder / file.path for file in published.downloads if not (folder / file.path).exists()]
    return (
        f"data set {published.name!r} could not be downloaded ({'; '.join(failures)}); without a network, put "
        f"{', '.join(path.name for path in absent)} into {str(absent[0].parent)!r} by hand, then run: mapl data get "
        f"{published.name} --folder {folder}"
    )


def _download(
    file: Download, target: Path, urls: Sequence[str], progress: Progress, timeout: float, pause: float
) -> list[str]:
    """Get the file from the first address that delivers it; otherwise return how each of them failed."""
    part = target.with_name(f"{target.name}.part")
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                _fetch(url, part, file, progress, timeout, pause)
            except _Failed as failure:
                failures.append(f"{url}: {failure}")
            else:
                part.replace(target)
                return []
    except OSError as error:
        raise MaplError(f"{str(target)!r} cannot be written: {error}") from error
    return failures


def _fetch(url: str, part: Path, published: Download, progress: Progress, timeout: float, pause: float) -> None:
    """Complete `part`, with the right checksum, from one address."""
    for attempt in range(RESUMES):
        before = _size(part)
        try:
            _transfer(url, part, published.most, progress, timeout)
        except _BrokenOff:
            if _size(part) <= before or attempt == RESUMES - 1:
                raise
            time.sleep(pause)
            continue
        found = md5(part)
        if found == published.md5:
            return
        part.unlink()
        # An older part may have come from another file: try once more from the beginning.
        if not before:
            raise _Failed(f"it gives another file, with the MD5 {found} instead of {published.md5}")


def _transfer(url: str, part: Path, most: int, progress: Progress, timeout: float) -> None:
    """Append what is missing to `part`, or write all of it if the server only sends whole files.

    A file of more than `most` bytes is another one, however long the server goes on.
    """
    done = _size(part)
    headers = {"User-Agent": "mapl"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows what we have; the checksum tells whether that is the file
            return
        raise _Failed(f"HTTP status {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise _Failed(_reason(error)) from None
    with response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            done = 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else 0
        with part.open("ab" if done else "wb") as file:
            for chunk in _chunks(response):
                done += len(chunk)
                if max(done, total) > most:
                    part.unlink()
                    raise _Failed(f"it sends more than {most:,} bytes")
                file.write(chunk)
                progress(done, total)
    if done < total:
        raise _BrokenOff(f"broke off after {done:,} of {total:,} bytes")


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """Chunks as they arrive. Errors of the network are kept apart from errors of the disk."""
    while True:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, HTTPException) as error:
            raise _BrokenOff(_reason(error)) from None
        if not chunk:
            return
        yield chunk


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return "no answer in time" if isinstance(cause, TimeoutError) else str(cause) or type(cause).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def unpack(archive: Path, into: Path, most: int) -> None:
    """Unpack a tar archive to a temporary name, then rename, so that `into` is never incomplete.

    The archive may contain the folder of that name, or only its content: at most `most` bytes, headers included.
    """
    left = most

    def checked(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        nonlocal left
        left -= tarfile.BLOCKSIZE + member.size
        if left < 0:
            raise MaplError(f"{str(archive)!r} cannot be unpacked: it has more than {most:,} bytes")
        return tarfile.data_filter(member, place)  # refuses paths outside the folder

    temporary = into.with_name(f".{into.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter=checked)
        whole = temporary / into.name
        (whole if whole.is_dir() else temporary).rename(into)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise MaplError(f"{str(archive)!r} cannot be unpacked: {error}; remove it, then get it again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
