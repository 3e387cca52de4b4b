"""Joining parts: the folders of the processes of one network become the folder of one run.

Every process records its own clients (`mapl.runs.run.run_part`). Together that is what one process with all clients
would have recorded. If all letters arrived, history, W, clients and recipe have the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mapl.errors import MaplError, warn
from mapl.plugins import looking
from mapl.runs import chain, checkpoint
from mapl.runs.chain import Round
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.files import write_aside
from mapl.runs.folder import CLIENTS, HISTORY, JOINED, TIMES, clients_file, load, times_line, write_recipe
from mapl.runs.graph import GraphWriter, Row
from mapl.runs.joined import alike, has_peers, joined_line, joined_state
from mapl.runs.mend import unfit
from mapl.runs.record import Record, share_of_network
from mapl.runs.saving import bound, bytes_tensor


def join(folders: Sequence[str | Path], out: str | Path) -> Record:
    """Join the parts of one network in `folders` into one run in the new folder `out`, and return its record.

    The parts may have played different numbers of rounds: the run has those that all have played. Clients that no part
    holds are missing from it. A warning says so.

    The recipe is that of the part with the lowest client. A test counts if every part tested in that round. The seconds
    of a round are those of its slowest part. The newest checkpoint that all parts have is joined too, so that the
    models can be looked at and exported, but a joined run cannot be resumed. Nothing is written if a part is refused.
    """
    out = Path(out)
    if out.exists():
        raise MaplError(f"{str(out)!r} exists already: remove it, or choose another folder")
    with looking():
        parts = _checked([load(folder) for folder in folders])
        _say_what_is_missing(parts)
        with _whole_or_not_at_all(out) as aside:
            _write(parts, aside)
        return load(out)


@contextmanager
def _whole_or_not_at_all(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that gets its name at the end. After an error there is neither."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        try:
            yield aside
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise MaplError(f"{str(folder)!r} could not be written ({error}); choose another folder") from error


def _checked(records: Sequence[Record]) -> list[Record]:
    """The parts by their lowest client, if they are parts of one network."""
    if not records:
        raise MaplError("there is nothing to join: give the folders of the parts")
    parts = sorted(records, key=lambda part: part.held[0])
    owner: dict[int, Record] = {}
    for part in parts:
        _check_fits(parts[0], part)
        for client in part.held:
            if client in owner:
                raise MaplError(f"client {client} is in two parts: {_names(owner[client], part)}")
            owner[client] = part
    return parts


def _check_fits(first: Record, part: Record) -> None:
    if not part.rounds:
        raise MaplError(f"{str(part.folder)!r} has not finished a round yet, so there is nothing to join")
    if part.recipe.fingerprint() != first.recipe.fingerprint():
        raise MaplError(f"{_names(first, part)} are not parts of one network: their recipes differ")
    if part.recipe.evaluate.all_images != first.recipe.evaluate.all_images:
        raise MaplError(f"{_names(first, part)} differ in evaluate.all_images, so their tests do not belong together")


def _names(*parts: Record) -> str:
    return " and ".join(repr(str(part.folder)) for part in parts)


def _say_what_is_missing(parts: Sequence[Record]) -> None:
    for remark in (remark for part in parts for remark in part.remarks):
        warn(remark)
    rounds = [len(part.rounds) for part in parts]
    if _length(parts) < max(rounds):
        shortest = parts[rounds.index(min(rounds))].folder
        warn(f"the run has {min(rounds)} of up to {max(rounds)} rounds: {str(shortest)!r} has not played more")
    clients = parts[0].recipe.clients
    missing = sorted(set(range(clients)) - set(_held(parts)))
    if missing:
        warn(f"no part holds {share_of_network(missing, clients)}: the run has only the others")


def _length(parts: Sequence[Record]) -> int:
    """The rounds that all parts have played."""
    return min(len(part.rounds) for part in parts)


def _held(parts: Sequence[Record]) -> list[int]:
    """The clients of all parts, by number."""
    return sorted(client for part in parts for client in part.held)


def _write(parts: Sequence[Record], folder: Path) -> None:
    """Write the files of the joined run."""
    recipe = parts[0].recipe
    clients = clients_file(sorted((card for part in parts for card in part.clients), key=lambda card: card.id))
    write_aside(folder / CLIENTS, clients)
    origin = [{"folder": p.folder.name, "clients": p.held, "rounds": len(p.rounds)} for p in parts]
    write_aside(folder / JOINED, json.dumps(origin, indent=1).encode())
    write_recipe(folder, recipe)
    history = chain.Writer(folder / HISTORY, chain.Header.of(recipe.fingerprint(), clients))
    graph = GraphWriter(folder, _held(parts))
    slowest, before = _slowest(parts), []
    for line, rows in zip(_lines(parts), _rows(parts), strict=True):
        history.append(line, graph.append(rows))
        before.append(history.before)
        if line.round in slowest:
            chain.append(folder / TIMES, times_line(line.round, slowest[line.round], history.before))
    _write_checkpoint(parts, folder, before)


# What happened in each round


def _lines(parts: Sequence[Record]) -> Iterator[Round]:
    """The lines of the joined history."""
    held = [part.held for part in parts]
    for lines in zip(*(part.rounds[: _length(parts)] for part in parts), strict=True):
        for part, line in zip(parts, lines, strict=True):
            if not alike(lines[0], line):
                raise MaplError(f"{_names(parts[0], part)} do not record the same things in round {line.round + 1}")
        yield joined_line(held, lines)


def _rows(parts: Sequence[Record]) -> Iterator[dict[int, Row]]:
    """Round by round, the rows of W that changed."""
    clients, length = parts[0].recipe.clients, _length(parts)
    for changes in zip(*(part.graph.changes(length) for part in parts), strict=True):
        rows: dict[int, Row] = {}
        for part, changed in zip(parts, changes, strict=True):
            for client, (ids, weights) in changed.items():
                inside = not len(ids) or 0 <= ids.min() <= ids.max() < clients
                if not (inside and np.isfinite(weights).all()):
                    raise MaplError(f"{str(part.folder)!r} has a row of W that no run writes: that of client {client}")
            rows |= changed
        yield rows


def _slowest(parts: Sequence[Record]) -> dict[int, dict[str, float]]:
    """By round, the seconds of the part that took longest, as far as they are known."""
    slowest: dict[int, dict[str, float]] = {}
    for seconds in (seconds for part in parts for seconds in part.times):
        round = int(seconds["round"])
        if round not in slowest or seconds["seconds"] > slowest[round]["seconds"]:
            slowest[round] = seconds
    return {t: {k: v for k, v in all_.items() if k not in ("round", "seconds")} for t, all_ in slowest.items()}


# The models


def _write_checkpoint(parts: Sequence[Record], folder: Path, before: Sequence[str]) -> None:
    """Join the newest checkpoint that all parts have. `before`: by round, the hash of the history before its line."""
    kept = [checkpoint.kept(part.folder) for part in parts]
    common = set.intersection(*(set(paths) for paths in kept)) & set(range(1, len(before) + 1))
    for rounds in sorted(common, reverse=True):
        try:
            saved = [_fitting(part, paths[rounds]) for part, paths in zip(parts, kept, strict=True)]
            tensors = _joined_state(parts, saved)
        except MaplError as error:
            warn(f"the models after round {rounds} are left out: {error}")
            continue
        checkpoint.save(folder, rounds, bound(tensors, before[rounds - 1]), keep=1)
        return
    warn("the run has no models: there is no round after which all parts have a checkpoint that can be joined")


def _fitting(part: Record, path: Path) -> Checkpoint:
    """A checkpoint, if it is one of the part's own."""
    saved, history = checkpoint.load(path), part.history
    assert history is not None  # it was read from a folder
    if why := unfit(saved, history, len(part.rounds), ""):
        raise MaplError(f"checkpoint {str(path)!r} cannot be used: {why}")
    return saved


def _joined_state(parts: Sequence[Record], saved: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The state of all parts, without what readers believe: a joined run does not go on."""
    for part, one in zip(parts, saved, strict=True):
        if not has_peers(part.held, one.tensors):
            raise MaplError(f"the checkpoint of {str(part.folder)!r} does not have the peers of its clients")
    tensors = joined_state([part.held for part in parts], [_without_beliefs(one) for one in saved])
    rounds = saved[0].rounds
    played = [line for part in parts for line in part.rounds[:rounds]]
    tensors["rounds"] = torch.tensor([rounds])
    tensors["ledger"] = torch.tensor([sum(line.messages for line in played), sum(line.bytes for line in played)])
    tensors["recipe"] = bytes_tensor(parts[0].recipe.fingerprint().encode())
    return tensors


def _without_beliefs(saved: Checkpoint) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in saved.tensors.items() if not name.startswith("compress.")}
