"""What the store keeps of a finished run."""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from torch import Tensor

from mapl.analysis.clusters import edges, first_mixed, share_inside
from mapl.paper.extras import extras
from mapl.paper.figures import needs
from mapl.paper.machine import device_name, precision, versions
from mapl.paper.plan import Work
from mapl.paper.protocol import form_of
from mapl.paper.store import NO_SHARE, StoredRun, sparse
from mapl.runs.chain import Round
from mapl.runs.client_data import own_data
from mapl.runs.record import Record
from mapl.runs.run import restored_part


def summarise(work: Work, record: Record, setup_seconds: float) -> StoredRun:
    """All that tables and figures need of a run."""
    recipe, every = record.recipe, record.all_images
    curve, weights = _over_time(record)
    return StoredRun(
        key=work.key,
        table=work.table,
        cell=work.cell,
        control=work.control,
        scale=work.scale,
        seed=recipe.seed,
        rounds=len(record.rounds),
        form=form_of(recipe),
        # The folder of the data is private, and says nothing about the run.
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
        # Published data is known by its name. Its digest would tell the whole set from a part of it that has every
        # image that the clients hold.
        data=record.data if own_data(recipe) else "",
    )


def _extra(work: Work, record: Record) -> dict[str, Any]:
    """What figures need of the models, from the newest checkpoint. Most runs are in no figure."""
    wanted = tuple(dict.fromkeys((*work.extra, *needs(work.recipe).extra)))
    part = restored_part(record.folder) if wanted else None
    return extras(part, record, wanted) if part else {}


def _over_time(record: Record) -> tuple[dict[str, list[float]], dict[str, list[dict[str, list[Any]]]]]:
    """The curve, and W at the rounds that are kept."""
    wanted = _rounds(record) if first_mixed(record) is not None else set()
    clusters = [card.cluster for card in record.clients]
    points, kept, messages, size = [], {}, 0, 0
    for line, matrix in record.graphs():
        messages, size = messages + line.messages, size + line.bytes
        if line.round in wanted:
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
    return {"edges": edges(matrix), "inside": NO_SHARE if inside is None else round(inside, 6)}


def _rounds(record: Record) -> set[int]:
    """Rounds (from 0) whose W is kept: the end of the warm-up, of each quarter, and what figures need."""
    played = len(record.rounds)
    warmup = getattr(record.recipe.method, "warmup", 0)
    ends = {
        warmup,
        *(played * quarter // 4 for quarter in (1, 2, 3, 4)),
        *(t + 1 for t in needs(record.recipe).weights_at),
    }
    return {end - 1 for end in ends if 1 <= end <= played}
