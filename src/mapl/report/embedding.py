"""The embeddings of a run's test samples, computed from its newest checkpoint and laid out in the plane by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from mapl.analysis.embedding import alignment, in_the_plane, sample
from mapl.data.loading import GIVEN_IN_PYTHON
from mapl.errors import MaplError
from mapl.report.drawing import INK, beside, tidy
from mapl.report.lines import PALETTE
from mapl.runs.part import Part
from mapl.runs.record import Record
from mapl.runs.run import restored_part

MARKERS = "o^sDvP*X<>"
# Paul Tol's "muted" scheme, for more kinds of points than the palette of lines has.
MUTED = ("#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499", "#777777")

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Embedding:
    """Test samples of all clients as points in the plane."""

    points: NDArray[np.float64]
    labels: Ids
    clients: Ids
    clusters: Ids
    rounds: int
    """Rounds that the models were trained for."""
    aligned: float
    """Share of points whose nearest point of another client, in all d_z dimensions, has the same class."""
    by_chance: float
    """The same for any point of another client."""
    kin: float
    """Share of points whose nearest point of another client is of the same cluster."""
    kin_by_chance: float


def embed(record: Record) -> Embedding | str:
    """The embeddings of a run's newest checkpoint, or why there are none, in words."""
    if record.recipe.data.name == GIVEN_IN_PYTHON:
        return "its data were given in Python and are not in its folder"
    try:
        part = restored_part(record.folder)
        return "it has no checkpoint" if part is None else _laid_out(part)
    # A recipe can name anybody's code. Whatever that raises costs the report this picture, never the page.
    except Exception as error:
        reason = error if isinstance(error, MaplError) else f"{type(error).__name__}: {error}"
        return f"its models could not be restored ({reason})"


def _laid_out(part: Part) -> Embedding | str:
    if len(part.clients) < 2:
        return "it has only one client"
    vectors, labels, clients = sample(part)
    if len(vectors) < 4:
        return "too few test samples"
    cluster_of = {client.id: client.cluster for client in part.clients}
    clusters = torch.tensor([cluster_of[client] for client in clients.tolist()])
    (aligned, by_chance), (kin, kin_by_chance) = alignment(vectors, clients, (labels, clusters))
    return Embedding(
        points=in_the_plane(vectors),
        labels=labels.numpy(),
        clients=clients.numpy(),
        clusters=clusters.numpy(),
        rounds=part.round,
        aligned=aligned,
        by_chance=by_chance,
        kin=kin,
        kin_by_chance=kin_by_chance,
    )


def embedding_figure(embedding: Embedding) -> Figure:
    """The points twice: coloured by class, and coloured by client. In both, the marker is the client's cluster."""
    drawn, (by_class, by_client) = beside(4.7, (1, 1))
    for axes, ids, name in ((by_class, embedding.labels, "class"), (by_client, embedding.clients, "client")):
        _points(axes, embedding, ids)
        tidy(axes, f"Coloured by {name}", "t-SNE, first dimension", "t-SNE, second dimension")
        axes.grid(visible=False)
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
        _colour_legend(axes, ids, name)
    clusters = np.unique(embedding.clusters)
    if len(clusters) <= len(MARKERS):
        shapes = [
            Line2D([], [], color=INK, marker=MARKERS[i], linestyle="", label=f"cluster {c}")
            for i, c in enumerate(clusters)
        ]
        drawn.legend(handles=shapes, loc="outside upper left", ncols=len(shapes), frameon=False, fontsize=9)
    return drawn


def _points(axes: Axes, embedding: Embedding, ids: Ids) -> None:
    known = np.unique(ids)
    for i, cluster in enumerate(np.unique(embedding.clusters)):
        here = embedding.clusters == cluster
        colours = [_colour(int(np.searchsorted(known, k)), len(known)) for k in ids[here]]
        x, y = embedding.points[here].T
        axes.scatter(x, y, s=13, c=colours, marker=MARKERS[i % len(MARKERS)], alpha=0.75, linewidths=0)


def _colour(place: int, count: int) -> str | tuple[float, float, float, float]:
    if count <= len(PALETTE):
        return PALETTE[place]
    return MUTED[place] if count <= len(MUTED) else colormaps["viridis"](place / (count - 1))


def _colour_legend(axes: Axes, ids: Ids, name: str) -> None:
    known = np.unique(ids)
    shown = range(len(known)) if len(known) <= len(MUTED) else range(0, len(known), -(-len(known) // 8))
    dots = [
        Line2D([], [], color=_colour(i, len(known)), marker="o", markersize=5, linestyle="", label=str(known[i]))
        for i in shown
    ]
    axes.legend(
        handles=dots, title=name, title_fontsize=8, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.06),
        ncols=len(dots), frameon=False, handletextpad=0, columnspacing=0.9,
    )  # fmt: skip
