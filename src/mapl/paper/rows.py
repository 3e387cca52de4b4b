"""The row of a finished run: all that tables and figures need of it, so that its folder can go."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from torch import Tensor

from mapl.analysis.clusters import share_inside
from mapl.paper.extras import extras
from mapl.paper.figures import needs
from mapl.paper.machine import device_name, precision, versions
from mapl.paper.plan import Work
from mapl.paper.scale import form_of
from mapl.paper.store import Row, sparse
from mapl.runs.history import Record, Round
from mapl.runs.run import restored_part


def row_of(work: Work, record: Record, setup_seconds: float) -> Row:
    """What the store keeps of a run."""
    recipe, every = record.recipe, record.all_images
    curve, weights = _over_time(record)
    return Row(
        key=work.key,
        table=work.table,
        cell=work.cell,
        control=work.control,
        scale=work.scale,
        seed=recipe.seed,
        rounds=len(record.rounds),
        form=form_of(recipe),
        # Where somebody's data lies is nobody else's business, and says nothing about the run.
        recipe=recipe.model_dump(mode="json", exclude={"data": {"folder"}}),
        accuracy=record.accuracy.tolist(),
        all_images=None if every is None else every.tolist(),
        clusters=[card.cluster for card in record.clients],
        classes=[card.classes for card in record.clients],
        samples=[card.samples for card in record.clients],
        backbones=[card.backbone for card in record.clients],
        messages=record.messages,
        bytes=record.bytes,
        curve=curve,
        weights=weights,
        seconds=round(record.seconds, 3),
        setup_seconds=round(setup_seconds, 3),
        device=device_name(recipe),
        precision=precision(recipe),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        extra=_extra(work, record),
    )


def _extra(work: Work, record: Record) -> dict[str, Any]:
    """What figures want of the models, which takes the newest checkpoint; most runs are wanted by none."""
    wanted = tuple(dict.fromkeys((*work.extra, *needs(work.recipe).extra)))
    part = restored_part(record.folder) if wanted else None
    return extras(part, record, wanted) if part else {}


def _over_time(record: Record) -> tuple[dict[str, list[float]], dict[str, list[dict[str, list[Any]]]]]:
    """The curve, and W at the rounds that somebody will want to see."""
    mixes, wanted = record.graph.exists, _rounds(record)
    clusters = [card.cluster for card in record.clients]
    points, kept, messages, size = [], {}, 0, 0
    for line, matrix in record.graphs():
        messages, size = messages + line.messages, size + line.bytes
        if mixes and line.round in wanted:
            kept[str(line.round)] = sparse(matrix)
        if line.accuracy is not None:
            points.append(_point(line, messages, size) | _graph(matrix, clusters))
    return {name: [point[name] for point in points] for name in (points[0] if points else {})}, kept


def _point(line: Round, messages: int, size: int) -> dict[str, float]:
    every = {} if line.all_images is None else {"all_images": round(fmean(line.all_images), 6)}
    accuracy = round(fmean(line.accuracy or ()), 6)
    return {"round": line.round, "accuracy": accuracy, **every, "messages": messages, "bytes": size}


def _graph(matrix: Tensor, clusters: list[int]) -> dict[str, float]:
    inside = share_inside(matrix, clusters)
    edges = int((matrix.clone().fill_diagonal_(0) > 0).sum())
    return {"edges": edges, "inside": -1.0 if math.isnan(inside) else round(inside, 6)}


def _rounds(record: Record) -> set[int]:
    """The end of the warm-up, each quarter of the run, its end, and what figures want."""
    played = len(record.rounds)
    warmup = getattr(record.recipe.method, "warmup", 0)
    ends = {
        warmup,
        *(played * quarter // 4 for quarter in (1, 2, 3, 4)),
        *(t + 1 for t in needs(record.recipe).weights_at),
    }
    return {end - 1 for end in ends if 1 <= end <= played}
