"""`mapl data`: list data sets, download and check them, and see how they are divided among clients."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mapl import plugins
from mapl.cli.own import reading
from mapl.cli.recipe_options import (
    ClientsOption,
    DataOption,
    RecipeArgument,
    ScenarioOption,
    SeedOption,
    compose_recipe,
)
from mapl.errors import MaplError
from mapl.names import DASH, printable
from mapl.terminal.messages import console, say
from mapl.terminal.options import JsonOption, SetOption, TrustOption
from mapl.terminal.progress import counting

if TYPE_CHECKING:
    from mapl.data.dataset import Dataset, DataSettings
    from mapl.data.partition import Share
    from mapl.data.published import Published

app = typer.Typer(
    help="""List, download and check data sets, and see how they are divided among clients.

[bold]mapl data check photos[/bold]         your own images: what is there, and what is wrong
[bold]mapl data show --data photos[/bold]   who would have what
[bold]mapl data get fashionmnist[/bold]     download a published data set""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

WIDEST = 30
"""Up to this many classes, each has its own column."""

NameArgument = Annotated[
    str, typer.Argument(help="A data set (mapl data list), your own folder or file, or package.module:Name.")
]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder with the files of all data sets. Default: $MAPL_DATA, or else data/.")
]


@app.command("list")
def list_command(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """List the data sets, and whether their files are there.

    [bold]mapl data list[/bold]
    """
    import mapl.data.sources
    from mapl.data.dataset import DataSettings
    from mapl.plugins import known, summary

    root = DataSettings(folder=folder).root()
    entries = {
        name: {"files": _files(source, root), "summary": summary(source)}
        for name, source in known(mapl.data.sources).items()
    }
    if as_json:
        print(json.dumps({"folder": str(root), "data": entries}, indent=1))
        return
    say(f"looked for files in {root}")
    for name, entry in entries.items():
        print(f"{name:<{max(map(len, entries))}}  {entry['files'] or DASH:<9}  {entry['summary']}")


def _files(source: Any, root: Path) -> str | None:
    """Whether the files are there; None if it needs none."""
    published: Published | None = getattr(source, "published", None)
    if published is None:
        return None
    return "missing" if published.missing(root) else "found"


@app.command("get")
def get_command(
    name: NameArgument,
    folder: FolderOption = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(help="URL of a web folder with the same files, tried first. Repeatable."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 30.0,
) -> None:
    """Download a data set, check its files, and unpack them. An interrupted download is resumed.

    [bold]mapl data get fashionmnist[/bold]
    """
    from mapl.data.dataset import DataSettings
    from mapl.data.download import get

    settings = DataSettings(name=name, folder=folder)
    published = _published(name)
    if published is None:
        say(f"{name} has nothing to download")
        return
    if published.missing(settings.root()):
        get(published, settings.root(), mirrors=mirror or [], watch=counting, timeout=timeout)
    dataset = _load(settings)
    say(f"{_sentence(dataset)}, in {settings.root()}")


@app.command("check")
def check_command(name: NameArgument, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Read a whole data set and check it: shapes, labels, images per class, checksums.

    [bold]mapl data check fashionmnist[/bold]
    [bold]mapl data check photos[/bold]         your own folder or file
    """
    from mapl.data.dataset import DataSettings
    from mapl.data.own import located

    settings = DataSettings.model_validate({"folder": folder, **located(name)})
    start = time.perf_counter()
    dataset = _load(settings)
    seconds = time.perf_counter() - start
    for line in () if as_json else dataset.found:
        say(line)
    published = _published(settings.name)
    checksums = published.checksums(settings.root()) if published else {}
    counts = {"train": dataset.train.counts(dataset.classes), "test": dataset.test.counts(dataset.classes)}
    if as_json:
        facts = {"image": dataset.shape, "classes": dataset.classes, **counts, "checksums": checksums}
        print(json.dumps({"name": settings.name, **facts, "seconds": seconds}))
        return
    table = Table("class", f"training {dataset.noun}", f"test {dataset.noun}")
    for label, train, test in zip(_class_names(dataset), counts["train"], counts["test"], strict=True):
        table.add_row(printable(label), f"{train:,}", f"{test:,}")
    console().print(table)
    say(f"{_sentence(dataset)}, read in {seconds:.1f} s")
    for path, state in checksums.items():
        say(f"{path}: {CHECKSUMS[state]}")


CHECKSUMS = {
    "published": "checksum as published",
    "different": "not the published checksum (repacked, or incomplete)",
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
    png: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a recipe divides the data: training images per client and class.

    Takes the same recipes and settings as [bold]mapl run[/bold].

    [bold]mapl data show --data photos --clients 5[/bold]
    [bold]mapl data show --scenario 2 --png division.png[/bold]
    """
    from mapl.data.partition import partition
    from mapl.runs.client_data import load_data

    given = [f"data.folder={json.dumps(str(folder))}"] if folder else []
    with plugins.looking(trust), reading():
        composed, _ = compose_recipe(
            recipe, given + (settings or []), data=data, scenario=scenario, clients=clients, seed=seed
        )
        dataset = load_data(composed)
    shares = partition(dataset, composed.partition, composed.clients, composed.seed)
    counts = [dataset.train.take(share.train).counts(dataset.classes) for share in shares]
    if as_json:
        rows = [
            {"cluster": s.cluster, "train": row, "test": len(s.test)} for s, row in zip(shares, counts, strict=True)
        ]
        print(json.dumps(rows))
    else:
        console().print(_division_table(dataset, shares, counts))
    if png:
        _draw(dataset, counts, png)
        say(f"figure: {png}", sys.stderr)


def _division_table(dataset: Dataset, shares: Sequence[Share], counts: Sequence[Sequence[int]]) -> Table:
    wide = dataset.classes > WIDEST
    names = "" if wide else ", ".join(f"{k} {printable(name)}" for k, name in enumerate(dataset.class_names))
    caption = f"training {dataset.noun} of {printable(dataset.name)} by client and class"
    table = Table(caption=f"{caption}: {names}" if names else caption, caption_justify="left")
    columns = ["classes"] if wide else [str(k) for k in range(dataset.classes)]
    for title in ("client", "cluster", *columns, "train", "test"):
        table.add_column(title, justify="right")
    for client, (share, row) in enumerate(zip(shares, counts, strict=True)):
        cells = [str(len(share.classes))] if wide else [str(count or "") for count in row]
        table.add_row(str(client), str(share.cluster), *cells, f"{sum(row):,}", f"{len(share.test):,}")
    return table


def _draw(dataset: Dataset, counts: Sequence[Sequence[int]], path: Path) -> None:
    """The same as a figure: the darker, the more images."""
    from matplotlib.figure import Figure
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
    """A data set, with progress if it takes long to read."""
    from mapl.data.loading import load

    with reading(settings.name):
        return load(settings)


def _published(name: str) -> Published | None:
    """The files that a data set is published as, if it is."""
    import mapl.data.sources
    from mapl.plugins import find

    published: Published | None = getattr(find("data set", name, mapl.data.sources), "published", None)
    return published


def _class_names(dataset: Dataset) -> tuple[str, ...]:
    return dataset.class_names or tuple(str(k) for k in range(dataset.classes))


def _sentence(dataset: Dataset) -> str:
    return f"{dataset.name}: {dataset.summary()}"
