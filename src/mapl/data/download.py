"""Downloading published files: resumed where they broke off, and put in place only when their checksum is right."""

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
"""How often one transfer goes on where it broke off, if something new arrived each time."""

Watch = Callable[[str], AbstractContextManager[Progress]]
"""Makes the progress of one file, by its name."""


def unwatched(name: str) -> AbstractContextManager[Progress]:
    return nullcontext(unseen)


class _Failed(Exception):
    """This address does not give the file."""


class _BrokenOff(_Failed):
    """The connection broke or timed out; what arrived before is kept."""


def get(
    published: Published,
    folder: Path,
    *,
    mirrors: Sequence[str] = (),
    watch: Watch = unwatched,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> None:
    """Bring a data set's files into a folder.

    Args:
        mirrors: addresses of web folders that have the files too; tried before the published ones.
        watch: makes the progress that is told about a file.
        timeout: seconds without an answer after which an address is given up.
        pause: seconds to wait before a broken transfer goes on.

    A file that is there already is left alone, whatever its checksum, with a word in the log if it is not the published
    one. Archives are unpacked beside.
    """
    for file in published.downloads:
        target = folder / file.path
        if target.exists():
            if md5(target) != file.md5:
                log.warning("%r has not the published checksum (repacked, or a part of it); used as found", str(target))
        else:
            urls = [f"{mirror.rstrip('/')}/{target.name}" for mirror in mirrors]
            with watch(target.name) as progress:
                failures = _download(file, target, [*urls, *file.urls], progress, timeout, pause)
            if failures:
                raise MaplError(_by_hand(published, folder, failures))
        if file.unpack and not (folder / file.unpack).exists():
            unpack(target, folder / file.unpack)


def _by_hand(published: Published, folder: Path, failures: Sequence[str]) -> str:
    absent = [folder / file.path for file in published.downloads if not (folder / file.path).exists()]
    return (
        f"data set {published.name!r} could not be downloaded ({'; '.join(failures)}); where there is no network, put "
        f"{', '.join(path.name for path in absent)} into {str(absent[0].parent)!r} by hand, then run: mapl data get "
        f"{published.name} --folder {folder}"
    )


def _download(
    file: Download, target: Path, urls: Sequence[str], progress: Progress, timeout: float, pause: float
) -> list[str]:
    """Put the file in place from the first address that gives it; otherwise say how each of them failed."""
    part = target.with_name(f"{target.name}.part")
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                _fetch(url, part, file.md5, progress, timeout, pause)
            except _Failed as failure:
                failures.append(f"{url}: {failure}")
            else:
                part.replace(target)
                return []
    except OSError as error:
        raise MaplError(f"{str(target)!r} cannot be written: {error}") from error
    return failures


def _fetch(url: str, part: Path, published: str, progress: Progress, timeout: float, pause: float) -> None:
    """Make `part` the whole file, with the right checksum, from one address."""
    for attempt in range(RESUMES):
        before = _size(part)
        try:
            _transfer(url, part, progress, timeout)
        except _BrokenOff:
            if _size(part) <= before or attempt == RESUMES - 1:
                raise
            time.sleep(pause)
            continue
        found = md5(part)
        if found == published:
            return
        part.unlink()
        # Where a part was there before, it may have been of another file: once more, from the beginning.
        if not before:
            raise _Failed(f"it gives another file, with the MD5 {found} instead of {published}")


def _transfer(url: str, part: Path, progress: Progress, timeout: float) -> None:
    """Append to `part` what it lacks, or write it anew where the server only sends whole files."""
    done = _size(part)
    headers = {"User-Agent": "mapl"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows what we have: the checksum will say whether that is the file
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
                file.write(chunk)
                done += len(chunk)
                progress(done, total)
    if done < total:
        raise _BrokenOff(f"broke off after {done:,} of {total:,} bytes")


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """What arrives, as it arrives: errors of the network are told apart from those of the disk it is written to."""
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


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar archive beside, then rename, so that `into` is never half of it.

    The archive may have the folder of that name in it, or only what belongs inside.
    """
    aside = into.with_name(f".{into.name}.unpacking")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(aside, filter="data")  # refuses what would land outside of it
        whole = aside / into.name
        (whole if whole.is_dir() else aside).rename(into)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise MaplError(f"{str(archive)!r} cannot be unpacked: {error}; remove it, then get it again") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
