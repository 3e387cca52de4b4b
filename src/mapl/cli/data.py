"""`mapl data`: which data sets there are, getting them, checking them, and who would have what."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

import mapl.data.sources
from mapl.cli.runs import (
    ClientsOption,
    DataOption,
    JsonOption,
    RecipeArgument,
    ScenarioOption,
    SeedOption,
    SetOption,
    _options,
    from_command_line,
)
from mapl.data.dataset import Dataset, DataSettings, DataSource, Progress
from mapl.data.download import get
from mapl.data.partition import Shard, partition
from mapl.data.published import Published
from mapl.errors import MaplError
from mapl.plugins import find, known, summary
from mapl.runs.part import load_data

app = typer.Typer(help="Data sets: list, get and check them, and see who would have what.", no_args_is_help=True)

WIDEST = 30
"""Up to this many classes each has its own column."""

NameArgument = Annotated[str, typer.Argument(help="A data set (mapl data list), or package.module:Name.")]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder with the data sets' files; default: $MAPL_DATA, or data/.")
]


@app.command("list")
def list_command(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """List the data sets, and whether their files are found."""
    root = DataSettings(folder=folder).root()
    entries = {
        name: {"files": _found(source, root), "summary": summary(source)}
        for name, source in known(mapl.data.sources).items()
    }
    if as_json:
        print(json.dumps({"folder": str(root), "data": entries}, indent=1))
        return
    print(f"looked for files in {root}")
    for name, entry in entries.items():
        print(f"{name:<{max(map(len, entries))}}  {entry['files']:<9}  {entry['summary']}")


def _found(source: Any, root: Path) -> str:
    published: Published | None = getattr(source, "published", None)
    if published is None:
        return "-"
    return "missing" if published.missing(root) else "found"


@app.command("get")
def get_command(
    name: NameArgument,
    folder: FolderOption = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(help="Address of a web folder that has the files too, tried first. May be repeated."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds without an answer before going on.")] = 30.0,
) -> None:
    """Download a data set's published files, check them, and unpack them; a transfer that broke off is resumed."""
    settings = DataSettings(name=name, folder=folder)
    published: Published | None = getattr(find("data set", name, mapl.data.sources), "published", None)
    if published is None:
        print(f"{name} has nothing to download")
        return
    if published.missing(settings.root()):
        get(published, settings.root(), mirrors=mirror or [], watch=_watched_bytes, timeout=timeout)
    dataset = _load(settings)
    print(f"{_sentence(dataset)}, in {settings.root()}")


@app.command("check")
def check_command(name: NameArgument, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Read a data set and check all of it: shapes, labels, images of each class, checksums."""
    settings = DataSettings(name=name, folder=folder)
    start = time.perf_counter()
    dataset = _load(settings)
    seconds = time.perf_counter() - start
    published: Published | None = getattr(find("data set", name, mapl.data.sources), "published", None)
    checksums = published.checksums(settings.root()) if published else {}
    counts = {"train": dataset.train.counts(dataset.classes), "test": dataset.test.counts(dataset.classes)}
    if as_json:
        found = {"image": dataset.image, "classes": dataset.classes, **counts, "checksums": checksums}
        print(json.dumps({"name": name, **found, "seconds": seconds}))
        return
    table = Table("class", "training images", "test images")
    for label, train, test in zip(_class_names(dataset), counts["train"], counts["test"], strict=True):
        table.add_row(label, f"{train:,}", f"{test:,}")
    _console().print(table)
    print(f"{_sentence(dataset)}, read in {seconds:.1f} s")
    for path, state in checksums.items():
        print(f"{path}: {CHECKSUMS[state]}")


CHECKSUMS = {
    "published": "checksum as published",
    "different": "another checksum than the published one (repacked, or a part of it)",
    "unknown": "no checksum published",
}


@app.command("show")
def show_command(
    recipe: RecipeArgument = None,
    data: DataOption = None,
    scenario: ScenarioOption = None,
    clients: ClientsOption = None,
    seed: SeedOption = None,
    folder: FolderOption = None,
    settings: SetOption = None,
    png: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who would have what: training images of each class at each client, for any recipe that mapl run takes."""
    options = _options(None, data, scenario, clients, None, None, seed, None)
    given = [f"data.folder={json.dumps(str(folder))}"] if folder else []
    made, _ = from_command_line(recipe, options, given + (settings or []))
    dataset = load_data(made)
    shards = partition(dataset, made.partition, made.clients, made.seed)
    counts = [dataset.train.take(shard.train).counts(dataset.classes) for shard in shards]
    if as_json:
        rows = [
            {"cluster": s.cluster, "train": row, "test": len(s.test)} for s, row in zip(shards, counts, strict=True)
        ]
        print(json.dumps(rows))
    else:
        _console().print(_who_has_what(dataset, shards, counts))
    if png:
        _draw(dataset, counts, png)
        print(f"picture: {png}", file=sys.stderr)


def _who_has_what(dataset: Dataset, shards: Sequence[Shard], counts: Sequence[Sequence[int]]) -> Table:
    wide = dataset.classes > WIDEST
    table = Table(caption=f"training images of {dataset.name} by client and class")
    columns = ["classes"] if wide else [str(k) for k in range(dataset.classes)]
    for title in ("client", "cluster", *columns, "train", "test"):
        table.add_column(title, justify="right")
    for client, (shard, row) in enumerate(zip(shards, counts, strict=True)):
        cells = [str(len(shard.classes))] if wide else [str(count or "") for count in row]
        table.add_row(str(client), str(shard.cluster), *cells, f"{sum(row):,}", f"{len(shard.test):,}")
    return table


def _draw(dataset: Dataset, counts: Sequence[Sequence[int]], path: Path) -> None:
    """The same as a picture: the darker, the more images."""
    from matplotlib.figure import Figure  # slow to import, and only needed for a picture
    from matplotlib.ticker import MaxNLocator

    clients, classes = len(counts), dataset.classes
    size = (min(20.0, 2 + 0.5 * classes), min(30.0, 1.5 + 0.25 * clients))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(counts, cmap="Blues", aspect="auto", interpolation="nearest", vmin=0)
    figure.colorbar(shown, ax=axes, label="training images")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title=f"Who has what: {dataset.name}", xlabel="class", ylabel="client")
    if classes <= WIDEST:
        axes.set_xticks(range(classes), _class_names(dataset), rotation=0 if not dataset.class_names else 90)
    if clients * classes <= 1000:
        darkest = max(map(max, counts))
        for client, row in enumerate(counts):
            for k, count in enumerate(row):
                colour = "white" if count > darkest / 2 else "black"
                axes.text(k, client, str(count or ""), ha="center", va="center", fontsize=7, color=colour)
    try:
        figure.savefig(path, dpi=150, format="png")
    except OSError as error:
        raise MaplError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _load(settings: DataSettings) -> Dataset:
    """A data set, with a bar where it takes long to read."""
    source: DataSource = find("data set", settings.name, mapl.data.sources)()
    with _watched(f"reading {settings.name}", MofNCompleteColumn()) as progress:
        if hasattr(source, "progress"):
            source.progress = progress
        return source.load(settings)


def _class_names(dataset: Dataset) -> tuple[str, ...]:
    return dataset.class_names or tuple(str(k) for k in range(dataset.classes))


def _sentence(dataset: Dataset) -> str:
    channels, height, width = dataset.image
    return (
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test images of {width}×{height} "
        f"pixels and {channels} channel{'s' if channels > 1 else ''} in {dataset.classes} classes"
    )


def _console() -> Console:
    """A table that is piped is not cut to the width of a terminal that is not there."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


def _watched_bytes(name: str) -> AbstractContextManager[Progress]:
    return _watched(name, DownloadColumn())


@contextmanager
def _watched(name: str, column: ProgressColumn) -> Iterator[Progress]:
    """A live bar on a terminal; otherwise a line every 10 %."""
    if not sys.stdout.isatty():
        yield _PlainLines(name)
        return
    with Bar(TextColumn("{task.description}"), BarColumn(), column, TextColumn("left"), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


class _PlainLines:
    """One line every 10 %; nothing where the whole is not known."""

    def __init__(self, name: str):
        self.name = name
        self.said = 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if tenth > self.said:
            self.said = tenth
            print(f"{self.name}: {10 * tenth} %", flush=True)
