"""Documents on disk: the page, and its pictures in files of their own."""

from __future__ import annotations

from pathlib import Path

from mapl.errors import MaplError
from mapl.report.document import Document
from mapl.report.html import to_html
from mapl.report.markdown import to_markdown
from mapl.runs.files import write_aside


def write_document(document: Document, out: Path, *, html: str, markdown: str = "") -> list[Path]:
    """Write a document into a folder, as the files of these names. Returns the paths of all files, sorted."""
    files = {out / html: to_html(document)}
    if markdown:
        files[out / markdown] = to_markdown(document)
    for picture in document.pictures:
        path = out / document.picture_folder / picture.name
        files[path.with_name(f"{picture.name}.png")] = picture.png
        if picture.svg is not None:
            files[path.with_name(f"{picture.name}.svg")] = picture.svg
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_aside(path, data)
    except OSError as error:
        raise MaplError(f"report {str(out)!r} could not be written ({error}); choose another folder") from error
    return sorted(files)
