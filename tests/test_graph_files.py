"""W on disk: written as it is learned, read round by round without replaying, cut where a run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mapl
from conftest import row_of, small, stop_after, told, written
from mapl import Client, Inbox, MaplError
from mapl.client import Peers
from mapl.errors import NotFinite
from mapl.methods.dfedavgm import DFedAvgM
from mapl.runs.graph import INDEX, ROWS, Graph, GraphWriter, fill
from mapl.runs.part import build_part
from mapl.runs.round import graph, play_round

CLIENTS = [0, 1, 4]
"""A part of a network need not hold clients 0, 1, 2, …"""


def peers(weights: dict[int, float]) -> Peers:
    ids = np.array(sorted(weights), dtype=np.int64)
    return Peers(ids, np.array([weights[i] for i in ids.tolist()]), np.ones(len(ids), dtype=np.int64))


rows = st.dictionaries(st.integers(0, 5), st.floats(0, 1, allow_nan=False), max_size=6)
histories = st.lists(st.dictionaries(st.sampled_from(CLIENTS), rows, max_size=3), min_size=1, max_size=6)


@given(histories, st.data())
def test_every_round_comes_back_whatever_was_written_after_it(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[int, dict[int, float]]], data: st.DataObject
) -> None:
    """Against a plain replay in memory, and again after the last rounds were cut off and written anew."""
    folder = tmp_path_factory.mktemp("graph")
    history[0] |= {CLIENTS[0]: {0: 1.0}}  # a method that has a graph has one from its first round on
    writer, expected, now = GraphWriter(folder, CLIENTS), [], {}
    for round_ in history:
        now = now | round_
        writer.append({client: peers(row) for client, row in round_.items()})
        expected.append({client: {j: w for j, w in row.items() if w} for client, row in now.items()})
    kept = data.draw(st.integers(1, len(history)))
    again = GraphWriter(folder, CLIENTS)
    again.cut(kept)
    for round_ in history[kept:]:
        again.append({client: peers(row) for client, row in round_.items()})
    found = Graph(folder, CLIENTS)
    for t, rows_ in enumerate(expected):
        read = {c: dict(zip(ids.tolist(), w.tolist(), strict=True)) for c, (ids, w) in found.rows(t).items()}
        assert read == rows_
    matrices = [matrix.clone() for matrix in found.matrices(len(history), 6)]
    for t, matrix in enumerate(matrices):
        alone = torch.eye(6, dtype=torch.float64)
        fill(alone, found.rows(t))
        assert torch.equal(matrix, alone)


def test_the_weights_of_a_run_are_those_that_its_clients_had(tmp_path: Path) -> None:
    recipe = small(rounds=5, method={"graph": {"step_size": 0.02}})
    record = mapl.run(recipe, tmp_path / "run")
    part = build_part(recipe)
    for t in range(5):
        play_round(part, t)
        row = torch.stack([row_of(client, 4) for client in part.clients])
        assert torch.equal(record.weights(t), row)
    assert torch.equal(record.weights(), row)
    assert not torch.equal(record.weights(0), row)
    for (line, matrix), t in zip(record.graphs(), range(5), strict=True):
        assert line.round == t
        assert torch.equal(matrix, record.weights(t))
    with pytest.raises(MaplError, match="no round 5"):
        record.weights(5)


def test_a_row_is_written_when_it_changes_and_only_then(tmp_path: Path) -> None:
    recipe = small(rounds=6, method={"warmup": 6})
    mapl.run(recipe, tmp_path / "run")
    rows_size, index_size = ((tmp_path / "run" / name).stat().st_size for name in (ROWS, INDEX))
    assert rows_size == 4 * (8 + 4 * 16)  # one row of four entries for each of four clients, once
    assert index_size == 6 * 8 * (1 + 4)


def test_a_method_without_a_graph_writes_none(tmp_path: Path) -> None:
    record = mapl.run(small("fedsim"), tmp_path / "run")
    assert not record.graph.exists
    assert not (tmp_path / "run" / ROWS).exists()
    assert torch.equal(record.weights(), torch.eye(4, dtype=torch.float64))


def test_reading_one_round_reads_no_other(tmp_path: Path) -> None:
    """Records and rows of all other rounds are scribbled over."""
    record = mapl.run(small(rounds=4, method={"graph": {"step_size": 0.02}}), tmp_path / "run")
    expected, index = record.weights(2), bytearray((tmp_path / "run" / INDEX).read_bytes())
    size = 8 * 5
    own = index[2 * size : 3 * size]
    offsets = np.frombuffer(bytes(own), "<i8")[1:]
    (tmp_path / "run" / INDEX).write_bytes(b"\xff" * (2 * size) + own + b"\xff" * size)
    rows_file = bytearray((tmp_path / "run" / ROWS).read_bytes())
    used = np.zeros(len(rows_file), dtype=bool)
    for offset in offsets:
        count = int.from_bytes(rows_file[offset : offset + 8], "little")
        used[offset : offset + 8 + 16 * count] = True
    assert 0 < used.sum() < len(used)
    np.frombuffer(rows_file, np.uint8)[~used] = 255
    (tmp_path / "run" / ROWS).write_bytes(rows_file)
    assert torch.equal(mapl.load(tmp_path / "run").weights(2), expected)


@pytest.mark.parametrize("name", [ROWS, INDEX])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, name: str) -> None:
    mapl.run(small(), tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MaplError, match=name):
        mapl.load(tmp_path / "run").weights()


def test_weights_that_are_no_numbers_end_a_run() -> None:
    part = build_part(small())
    play_round(part, 0)
    part.clients[2].peers.weights[:] = np.nan
    with pytest.raises(NotFinite, match="client 2 are no longer finite in round 0"):
        graph(part)


class LateGraph(DFedAvgM):
    """Has no row of W in its first two rounds."""

    def weights(self, client: Client) -> Peers | None:
        return client.peers if len(client.peers.ids) > 1 and client.state["rounds"] > 2 else None

    def prepare(self, client: Client) -> None:
        client.state["rounds"] = torch.zeros((), dtype=torch.int64)

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        client.state["rounds"].add_(1)
        super().absorb(client, round, inbox)


@pytest.mark.parametrize("stopped", [None, 1, 3])
def test_a_graph_that_begins_later_has_empty_rounds_before_it(tmp_path: Path, stopped: int | None) -> None:
    recipe = small("test_graph_files:LateGraph", rounds=4, model={"backbones": ["mlp"]})
    record = mapl.run(recipe, tmp_path / "run", stop=stop_after(stopped) if stopped else lambda: False)
    if stopped:
        record = mapl.resume(tmp_path / "run")
    identity = torch.eye(4, dtype=torch.float64)
    assert [torch.equal(record.weights(t), identity) for t in range(4)] == [True, True, False, False]
    assert torch.allclose(record.weights(3), torch.full((4, 4), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("name", [ROWS, INDEX])
def test_a_run_whose_graph_was_cut_short_goes_back_to_a_checkpoint_before_that(tmp_path: Path, name: str) -> None:
    recipe = small(rounds=4, method={"graph": {"step_size": 0.02}})
    mapl.run(recipe, tmp_path / "whole")
    mapl.run(recipe, tmp_path / "run", stop=stop_after(3))
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-8])
    with told() as said:
        mapl.resume(tmp_path / "run")
    assert name in said[0]
    assert written(tmp_path / "run") == written(tmp_path / "whole")


def test_a_run_whose_rows_were_cut_short_before_its_only_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    mapl.run(small(rounds=4, checkpoint={"keep": 1}), tmp_path / "run", stop=stop_after(2))
    rows_file = tmp_path / "run" / ROWS
    whole = rows_file.read_bytes()
    rows_file.write_bytes(whole[:-40])
    with pytest.raises(MaplError, match=ROWS):
        mapl.resume(tmp_path / "run")
    assert rows_file.read_bytes() == whole[:-40]
    rows_file.unlink()
    with pytest.raises(MaplError, match=ROWS):
        mapl.load(tmp_path / "run").weights()
