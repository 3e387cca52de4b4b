"""Parts of a network record what they hold. Joined, they are the run of one process, to the byte."""

from __future__ import annotations

import csv
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mapl
import mapl.runs.checkpoint
import mapl.runs.files
from conftest import in_child, in_silence, line_with, skip_without_umap, small, stop_after, told, written
from mapl import Inbox, MaplError, Recipe, Record
from mapl.analysis.compare import compare, unpaired
from mapl.analysis.embedding import sample
from mapl.cli.app import app
from mapl.client import Peers
from mapl.network import Mail, MemoryPost
from mapl.report import write_report
from mapl.runs import chain
from mapl.runs.chain import Round
from mapl.runs.export import export_run
from mapl.runs.folder import CLIENTS, HISTORY, TIMES, clients_file, load, write_recipe
from mapl.runs.graph import GraphWriter
from mapl.runs.join import join
from mapl.runs.part import Part, build_part, given_in_python
from mapl.runs.record import share_of_network
from mapl.runs.run import restored_part, resume_part, run_part
from mapl.runs.saving import saved_state
from mapl.runs.writers import open_writers
from test_transports import Hub, own_data

HALVES = [[1, 3], [0, 2]]
PEERS = [[0], [1], [2], [3]]
ALONE = {"network": {"topology": {"name": "none"}}}

Build = Callable[..., Part]
Play = Callable[[Part, Path], Record]


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """A run collects garbage before its first round, which takes longer than all rounds of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.runs.run.lasting", nullcontext)
        yield


def recipe(name: str, /, **over: Any) -> Recipe:
    """Four clients and three rounds, of which the first warms up."""
    skip_without_umap(name)
    alike = {"model": {"backbones": ["mlp"]}} if name in ("dfedavgm", "fedavg", "flt") else {}
    return small(name, **{**alike, **over})


def begun(part: Part, folder: Path) -> Record:
    return run_part(part, folder, durable=True)


def in_folders(
    made: Recipe, division: Sequence[Sequence[int]], root: Path, play: Play = begun, build: Build = build_part
) -> list[Path]:
    """The folders of a network's parts, each played in a thread of its own. The first part has the server."""
    hub, errors = Hub(len(division)), list[BaseException]()
    folders = [root / f"part-{'-'.join(map(str, held))}" for held in division]

    def work(number: int) -> None:
        with hub.turn:
            try:
                part = build(made, holds=division[number], serves=number == 0, transport=hub)
                play(part, folders[number])
            except BaseException as error:
                errors.append(error)
                hub.barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(division))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return folders


def alone(made: Recipe, held: Sequence[int], folder: Path, **more: Any) -> Path:
    """The folder of a part that no letters from elsewhere reach."""
    run_part(build_part(made, holds=held, transport=MemoryPost()), folder, **more)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    """What the joined run and the run of one process have in common."""
    return {**written(folder), "recipe.toml": (folder / "recipe.toml").read_bytes()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The same bytes


@pytest.mark.parametrize("division", [HALVES, PEERS], ids=["halves", "peers"])
@pytest.mark.parametrize("name", ["courier", "mapl", "mapl+", "dfedavgm", "fedavg", "flt"])
def test_joined_parts_have_the_bytes_of_the_run_of_one_process(
    name: str, division: list[list[int]], tmp_path: Path
) -> None:
    """Its newest checkpoint too, with the state of a server (FLT's is not empty)."""
    whole = mapl.run(recipe(name), tmp_path / "whole")
    folders = in_folders(recipe(name), division, tmp_path)
    with in_silence():
        joined = join(folders, tmp_path / "joined")
    assert everything(joined.folder) == everything(whole.folder)
    assert (joined.rounds, joined.identity, joined.whole) == (whole.rounds, whole.identity, True)
    assert torch.equal(joined.weights(), whole.weights())
    assert [load(folder).held for folder in folders] == [sorted(held) for held in division]


@pytest.mark.parametrize(
    "over",
    [
        {"network": {"noise": {"clip": 1.0, "multiplier": 0.5}}, "evaluate": {"every": 2, "all_images": True}},
        {"train": {"reset": False}, "network": {"topology": {"name": "ring"}}},
        {"network": {"compress": {"kind": "int8"}}},
    ],
    ids=["noise, all images, tested every other round", "lasting optimisers on a ring", "int8"],
)
def test_whatever_a_round_records_is_joined(over: dict[str, Any], tmp_path: Path) -> None:
    """The courier has several ways to answer, so its lines have every kind of entry."""
    made = recipe("courier", **over)
    whole = mapl.run(made, tmp_path / "whole")
    with in_silence():
        joined = join(in_folders(made, HALVES, tmp_path), tmp_path / "joined")
    assert everything(joined.folder) == everything(whole.folder)
    assert whole.rounds[-1].ways
    assert joined.epsilons() == whole.epsilons()


def test_what_readers_believe_is_left_out_of_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    made = recipe("dfedavgm", network={"compress": {"kind": "top-k"}})
    whole = mapl.run(made, tmp_path / "whole")
    with in_silence():
        joined = join(in_folders(made, HALVES, tmp_path), tmp_path / "joined")
    for name in (HISTORY, CLIENTS, "graph.rows", "graph.index", "recipe.toml"):
        assert (joined.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    ours, theirs = (mapl.runs.checkpoint.load(mapl.runs.checkpoint.kept(r.folder)[3]).tensors for r in (joined, whole))
    assert theirs.keys() - ours.keys() == {name for name in theirs if name.startswith("compress.")} != set()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_peers_with_data_of_their_own(tmp_path: Path) -> None:
    data = own_data(small("local", clients=6))
    data = {client: data[client] for client in range(4)}
    made = given_in_python(recipe("mapl"), data, None)

    def build(made: Recipe, holds: Sequence[int], **more: Any) -> Part:
        return build_part(made, {client: data[client] for client in holds}, holds=holds, **more)

    whole = mapl.run(recipe("mapl"), tmp_path / "whole", data=data)
    with in_silence():
        joined = join(in_folders(made, PEERS, tmp_path, build=build), tmp_path / "joined")
    assert everything(joined.folder) == everything(whole.folder)
    assert len({card.data for card in joined.clients}) == 4


def test_the_order_in_which_folders_are_given_does_not_matter(tmp_path: Path) -> None:
    folders = [alone(recipe("local"), held, tmp_path / str(held[0])) for held in ([0], [1, 3], [2])]
    one, other = (join(some, tmp_path / f"joined-{i}") for i, some in enumerate((folders, folders[::-1])))
    assert contents(one.folder) == contents(other.folder)
    origin = json.loads((one.folder / "joined.json").read_text())
    assert [(part["folder"], part["clients"], part["rounds"]) for part in origin] == [
        ("0", [0], 3), ("1", [1, 3], 3), ("2", [2], 3)
    ]  # fmt: skip


def test_what_was_joined_can_be_joined_with_the_rest(tmp_path: Path) -> None:
    folders = [alone(recipe("local"), [client], tmp_path / str(client)) for client in range(4)]
    some = join(folders[1:3], tmp_path / "some").folder
    with in_silence():
        joined = join([folders[3], some, folders[0]], tmp_path / "joined")
    assert everything(joined.folder) == everything(mapl.run(recipe("local"), tmp_path / "whole").folder)


class Refusing(MemoryPost):
    """Leaves out two letters per exchange, as if they had failed a check."""

    def __init__(self, *reasons: tuple[int, Any]) -> None:
        super().__init__()
        self.reasons = reasons

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        for sender, reason in self.reasons:
            mail.refused.by_sender.setdefault(sender, {})[reason] = 1
        return super().exchange(mail)


def test_refused_letters_are_summed(tmp_path: Path) -> None:
    made = recipe("mapl")
    posts = [Refusing((3, "shape"), (2, "range")), Refusing((3, "finite"), (3, "shape"))]
    for number, (held, post) in enumerate(zip(HALVES, posts, strict=True)):
        run_part(build_part(made, holds=held, transport=post), tmp_path / str(number))
    joined = join([tmp_path / "0", tmp_path / "1"], tmp_path / "joined")
    assert joined.refused == {2: {"range": 3}, 3: {"finite": 3, "shape": 6}}
    assert list(joined.rounds[0].refused[3]) == ["finite", "shape"]


def test_the_seconds_of_a_round_are_those_of_its_slowest_part(tmp_path: Path) -> None:
    folders = [alone(recipe("local"), held, tmp_path / str(held[0])) for held in HALVES]
    parts = [load(folder) for folder in folders]
    joined = join(folders, tmp_path / "joined")
    for t, line in enumerate(joined.times):
        slowest = max((part.times[t] for part in parts), key=lambda line: line["seconds"])
        assert line == pytest.approx(slowest)
    (folders[0] / TIMES).unlink()
    with told() as said:
        again = join(folders, tmp_path / "again")
    assert again.times == load(folders[1]).times
    assert ["lacks 3 of 3 rounds" in sentence for sentence in said] == [True]


# Stopped, killed and resumed


def test_parts_that_were_stopped_and_resumed_have_the_bytes_of_parts_that_were_not(tmp_path: Path) -> None:
    made = recipe("mapl+", train={"reset": False})
    whole = in_folders(made, PEERS, tmp_path / "whole")
    stopped = in_folders(
        made, PEERS, tmp_path / "stopped", lambda part, folder: run_part(part, folder, stop=stop_after(1))
    )
    assert [len(load(folder).rounds) for folder in stopped] == [1] * 4
    with in_silence():
        again = in_folders(made, PEERS, tmp_path / "stopped", resume_part)
    assert [written(folder) for folder in again] == [written(folder) for folder in whole]


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_rounds_state_is_on_disk_before_the_round_is_reported(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow. Without `durable` a round is reported while its checkpoint is still being written."""
    written, saved = mapl.runs.files.write_parts, list[int]()
    monkeypatch.setattr("mapl.runs.checkpoint.write_parts", lambda *a, **k: (time.sleep(0.2), written(*a, **k))[1])
    part = build_part(recipe("local", rounds=3), holds=[2])
    run_part(
        part,
        tmp_path / "part",
        durable=durable,
        observers=[lambda *_: saved.append(mapl.runs.checkpoint.newest(tmp_path / "part"))],
    )
    assert saved == ([1, 2, 3] if durable else [0, 1, 3])


def endless(folder: Path, reported: Path) -> None:
    """A peer that writes down every round that it was told is over."""
    with reported.open("ab", buffering=0) as file:
        part = build_part(recipe("local", rounds=200), holds=[1])
        run_part(part, folder, durable=True, observers=[lambda *_: file.write(b".")])


@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_killed_peer_never_goes_back_behind_a_round_that_it_finished(seconds: float, tmp_path: Path) -> None:
    folder, reported = tmp_path / "part", tmp_path / "reported"
    reported.touch()
    child = in_child(endless, folder, reported)
    while reported.stat().st_size < 3 and child.is_alive():
        time.sleep(0.001)
    time.sleep(seconds)
    child.kill()
    child.join()
    finished = reported.stat().st_size
    assert 3 <= finished < 200
    played: list[int] = []
    longer = build_part(recipe("local", rounds=200), holds=[1])
    record = resume_part(
        longer, folder, durable=True, observers=[lambda _, line, __: played.append(line.round)], stop=stop_after(2)
    )
    assert finished <= played[0] <= finished + 1
    again = alone(recipe("local", rounds=200), [1], tmp_path / "again", stop=stop_after(len(record.rounds)))
    assert written(folder) == written(again)


def test_a_part_can_be_made_longer(tmp_path: Path) -> None:
    over = {"evaluate": {"every": 2}}
    folder = alone(recipe("local", rounds=3, **over), [1], tmp_path / "part")
    longer = recipe("local", rounds=5, **over)
    assert resume_part(build_part(longer, holds=[1]), folder).finished
    assert everything(folder) == everything(alone(longer, [1], tmp_path / "long"))


def test_what_cannot_be_resumed_by_a_part(tmp_path: Path) -> None:
    made = recipe("local")
    folder = alone(made, [1], tmp_path / "part", stop=stop_after(2))
    joined = join([folder], tmp_path / "joined").folder
    before = contents(tmp_path)
    used = build_part(made, holds=[1])
    used.round = 2
    for part, where, words in (
        (build_part(recipe("local", seed=1), holds=[1]), folder, r"another recipe \(differs in seed\)"),
        (build_part(recipe("local", rounds=2), holds=[1]), folder, "is a run of 3; give more"),
        (build_part(made, holds=[2]), folder, "the clients are not those of run"),
        (build_part(made, holds=[1, 2]), folder, "the clients are not those of run"),
        (used, folder, "has played 2 rounds already"),
        (build_part(made, holds=[1]), joined, "was joined from parts"),
        (build_part(made, holds=[1]), tmp_path / "nowhere", "is not the folder of a run"),
    ):
        with pytest.raises(MaplError, match=words):
            resume_part(part, where)
    for part, words in (
        (used, "has played 2 rounds already"),
        (build_part(made, holds=[1]), "exists already; continue it"),
        (build_part(made, holds=[2]), "is a run of other clients"),
    ):
        with pytest.raises(MaplError, match=words):
            run_part(part, folder)
    assert contents(tmp_path) == before
    assert len(resume_part(build_part(made, holds=[1]), folder).rounds) == 3
    assert run_part(build_part(made, holds=[2]), folder, overwrite=True).held == [2]


def test_neither_a_part_nor_a_joined_run_is_resumed_in_one_process(tmp_path: Path) -> None:
    folders = [alone(recipe("local"), held, tmp_path / str(held[0]), stop=stop_after(2)) for held in HALVES]
    joined = join(folders, tmp_path / "joined").folder
    before = contents(tmp_path)
    for folder, words in ((folders[0], "has clients 1 and 3 of 4.* transport"), (joined, "was joined from parts")):
        with pytest.raises(MaplError, match=words):
            mapl.resume(folder)
        result = CliRunner().invoke(app, ["resume", str(folder)])
        assert isinstance(result.exception, MaplError)
        assert str(folder) in str(result.exception)
    assert contents(tmp_path) == before


# Parts that do not belong together, or not entirely


def test_parts_of_different_lengths_have_the_rounds_of_the_shortest(tmp_path: Path) -> None:
    made = recipe("local")
    folders = [alone(made, [0, 2], tmp_path / "a"), alone(made, [1, 3], tmp_path / "b", stop=stop_after(2))]
    with told() as said:
        joined = join(folders, tmp_path / "joined")
    assert (len(said), len(joined.rounds), joined.finished) == (1, 2, False)
    assert "2 of up to 3 rounds" in said[0]
    assert str(folders[1]) in said[0]
    assert everything(joined.folder) == everything(mapl.run(made, tmp_path / "whole", stop=stop_after(2)).folder)


def test_a_client_that_never_came(tmp_path: Path) -> None:
    """The run has the others, and every number is that of the right client."""
    made = recipe("mapl", **ALONE)
    whole = mapl.run(made, tmp_path / "whole")
    folders = [alone(made, held, tmp_path / str(held[0])) for held in ([0], [1], [3])]
    with told() as said:
        joined = join(folders, tmp_path / "joined")
    assert len(said) == 1
    assert "client 2 of 4" in said[0]
    assert (joined.held, joined.whole) == ([0, 1, 3], False)
    assert joined.accuracy.tolist() == whole.accuracy[[0, 1, 3]].tolist()
    assert joined.clients == [whole.clients[client] for client in (0, 1, 3)]
    part = restored_part(joined.folder)
    assert part is not None
    assert [client.id for client in part.clients] == [0, 1, 3]


def test_recipes_may_differ_in_what_does_not_make_another_run(tmp_path: Path) -> None:
    """The recipe is that of the lowest client, and a test counts where all were tested."""
    mine = recipe("local", name="mine", rounds=4, checkpoint={"every": 2}, evaluate={"every": 2})
    theirs = recipe("local", name="theirs", rounds=5, evaluate={"every": 1})
    folders = [alone(theirs, [1, 3], tmp_path / "b"), alone(mine, [0, 2], tmp_path / "a")]
    joined = join(folders, tmp_path / "joined")
    whole = mapl.run(mine, tmp_path / "whole")
    assert everything(joined.folder) == everything(whole.folder)
    assert [line.round for line in joined.tested] == [1, 3]


@pytest.mark.parametrize("damage", ["newest", "all", "another run's"])
def test_a_checkpoint_that_cannot_be_used_costs_the_models_and_not_the_run(damage: str, tmp_path: Path) -> None:
    made = recipe("local")
    folders = [alone(made, held, tmp_path / str(held[0])) for held in HALVES]
    kept = mapl.runs.checkpoint.kept(folders[0])
    assert sorted(kept) == [2, 3]
    if damage == "another run's":
        other = mapl.runs.checkpoint.kept(alone(recipe("local", seed=1), HALVES[0], tmp_path / "other"))
        kept[3].unlink()
        shutil.copy(other[3], folders[0] / "checkpoints")
    else:
        for path in [kept[3]] if damage == "newest" else kept.values():
            path.write_bytes(path.read_bytes()[:-8])
    with told() as said:
        joined = join(folders, tmp_path / "joined")
    assert len(joined.rounds) == 3
    assert mapl.runs.checkpoint.newest(joined.folder) == (0 if damage == "all" else 2)
    assert ["has no models" in sentence for sentence in said][-1] == (damage == "all")
    assert len(said) == (3 if damage == "all" else 1)


def test_checkpoints_that_name_the_same_tensor_or_have_no_peers_are_left_out(tmp_path: Path) -> None:
    """A checkpoint is whoever's folder it comes from, and its digest says only that it is whole."""
    made = recipe("local", rounds=1)
    folders = [alone(made, held, tmp_path / str(held[0])) for held in HALVES]
    (path,) = mapl.runs.checkpoint.kept(folders[0]).values()
    tensors = mapl.runs.checkpoint.load(path).tensors
    foreign = tensors["client.1.model.head.weight"]
    for number, (change, usable) in enumerate(
        (
            ({"client.0.model.head.weight": foreign + 1, "nobody.knows": foreign}, True),
            ({"peers.counts": torch.tensor([1])}, False),
            ({"peers.counts": torch.tensor([3, -1])}, False),
            ({"peers.weights": torch.ones(2)}, False),
            ({"peers.ids": torch.ones(5, dtype=torch.int64)}, False),
        )
    ):
        path.unlink(missing_ok=True)
        path = mapl.runs.checkpoint.save(folders[0], 1, {**tensors, **change}, keep=1)
        joined = join(folders, tmp_path / f"joined-{number}")
        assert bool(mapl.runs.checkpoint.newest(joined.folder)) == usable
        if usable:
            part = restored_part(joined.folder)
            assert part is not None
            assert not torch.equal(part.clients[0].model.head.weight, foreign + 1)


def test_what_is_refused(tmp_path: Path) -> None:
    made = recipe("local")
    a, b = (alone(made, held, tmp_path / name) for held, name in zip(HALVES, "ab", strict=True))
    other = alone(recipe("local", seed=1), [0, 2], tmp_path / "other")
    images = alone(recipe("local", evaluate={"all_images": True}), [0, 2], tmp_path / "images")
    overlapping = alone(made, [2, 3], tmp_path / "overlapping")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / CLIENTS).write_bytes((b / CLIENTS).read_bytes())
    (fresh / "recipe.toml").write_bytes((b / "recipe.toml").read_bytes())
    damaged = shutil.copytree(b, tmp_path / "damaged")
    (damaged / HISTORY).write_bytes((b / HISTORY).read_bytes().replace(b'"messages":0', b'"messages":7', 1))
    before = contents(tmp_path)
    for folders, out, words in (
        ([], "out", "nothing to join"),
        ([a, b], "a", "exists already"),
        ([a, tmp_path / "nowhere"], "out", "is not the folder of a run"),
        ([a, other], "out", r"other' and .*a' are not parts of one network|a' and .*other' are not parts"),
        ([a, images], "out", r"evaluate\.all_images"),
        ([a, overlapping], "out", "client 3 is in two parts: .*a' and .*overlapping'"),
        ([a, a], "out", "client 1 is in two parts"),
        ([a, fresh], "out", "fresh' has not finished a round yet"),
        ([a, damaged], "out", r"damaged/history\.jsonl', line 1, was changed"),
        ([a, b], "a/recipe.toml/out", "could not be written"),
    ):
        with pytest.raises(MaplError, match=words) as error:
            join(folders, tmp_path / out)
        assert "\n" not in str(error.value)
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_graph_leaves_nothing_half_written(tmp_path: Path) -> None:
    folders = [alone(recipe("mapl"), held, tmp_path / str(held[0])) for held in HALVES]
    rows = bytearray((folders[0] / "graph.rows").read_bytes())
    rows[-1] ^= 1
    (folders[0] / "graph.rows").write_bytes(rows)
    with pytest.raises(MaplError, match=r"graph\.index' or graph\.rows was changed"):
        join(folders, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()
    assert not list(tmp_path.glob(".*"))


# Folders from anybody: the hashes fit, the contents do not


def forged(folder: Path, origin: Path, line: Round, held: Sequence[int], row: Peers | None = None) -> Path:
    """A folder of one round whose hashes are all right."""
    record = load(origin)
    cards = [replace(record.clients[0], id=client) for client in held]
    folder.mkdir()
    (folder / CLIENTS).write_bytes(clients_file(cards))
    write_recipe(folder, record.recipe)
    header = chain.Header.of(record.recipe.fingerprint(), clients_file(cards))
    digest = "" if row is None else GraphWriter(folder, held).append({held[0]: row})
    chain.Writer(folder / HISTORY, header).append(line, digest)
    return folder


def test_a_folder_with_other_clients_or_other_numbers_than_it_says_is_not_loaded(tmp_path: Path) -> None:
    origin = alone(recipe("local"), [1, 3], tmp_path / "origin")
    line = load(origin).rounds[0]
    assert load(forged(tmp_path / "fine", origin, line, [1, 3])).held == [1, 3]
    for number, (held, other, words) in enumerate(
        (
            ([], line, "does not list clients of this run"),
            ([3, 1], line, "does not list clients of this run"),
            ([1, 1], line, "does not list clients of this run"),
            ([1, 4], line, "does not list clients of this run"),
            ([-1, 1], line, "does not list clients of this run"),
            ([1], line, r"line 1, has 2 values for 1 client"),
            ([1, 3], replace(line, accuracy=[0.5]), r"line 1, has 1 values? for 2 clients"),
            ([1, 3], replace(line, released=[1, 2, 3]), r"line 1, has 3 values for 2 clients"),
            ([1, 3], replace(line, measures={"macro_f1": [0.5]}), r"line 1, has 1 values for 2 clients"),
            ([1, 3], replace(line, measures={"f1": [0.5, 0.5]}), "line 1, has values that no run writes"),
            ([1, 3], replace(line, messages=-1), "line 1, has values that no run writes"),
            ([1, 3], replace(line, losses={"cross_entropy": [1.0, float("nan")]}), "line 1, has values that no run"),
        )
    ):
        with pytest.raises(MaplError, match=words):
            load(forged(tmp_path / str(number), origin, other, held))


def test_parts_that_record_different_things_are_not_joined(tmp_path: Path) -> None:
    a, b = (alone(recipe("local"), held, tmp_path / name) for held, name in zip(HALVES, "ab", strict=True))
    line = load(a).rounds[0]
    whole = Peers(*(torch.tensor(x).numpy() for x in ([1, 9], [0.5, 0.5], [1, 1])))
    nan = Peers(*(torch.tensor(x).numpy() for x in ([1], [float("nan")], [1])))
    for number, (other, row, words) in enumerate(
        (
            (replace(line, losses={"other": [1.0, 2.0]}), None, "do not record the same things in round 1"),
            (replace(line, released=[1, 2]), None, "do not record the same things in round 1"),
            (line, whole, "a row of W that no run writes: that of client 1"),
            (line, nan, "a row of W that no run writes: that of client 1"),
        )
    ):
        folder = forged(tmp_path / str(number), a, other, [1, 3], row)
        with pytest.raises(MaplError, match=words):
            join([folder, b], tmp_path / "joined")
        assert not (tmp_path / "joined").exists()


def test_joining_imports_nothing_that_a_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs_to_join.py").write_text("from mapl.methods.local import Local\nclass Method(Local): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = small("theirs_to_join:Method")
    folders = [alone(made, held, tmp_path / str(held[0])) for held in HALVES]
    monkeypatch.setattr("mapl.plugins._named", set())
    monkeypatch.setattr("mapl.plugins.importlib.import_module", lambda name: pytest.fail(f"imports {name}"))
    with in_silence():
        joined = join(folders, tmp_path / "joined")
    assert (joined.folder / "recipe.toml").read_bytes() == (folders[0] / "recipe.toml").read_bytes()


# Looking at a part, and at a joined run


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A network in two parts and in peers, joined, and the same in one process; pictures have fewer dots."""
    root, made = tmp_path_factory.mktemp("network"), recipe("mapl")
    shards, peers = (in_folders(made, d, root / str(len(d))) for d in (HALVES, PEERS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.report.drawing.DPI", 50)
        yield {
            "shard": shards[0],
            "peer": peers[2],
            "joined": join(peers, root / "run").folder,
            "whole": mapl.run(made, root / "one" / "run").folder,
            "control": mapl.run(recipe("mapl", **ALONE), root / "control").folder,
            "gap": join([peers[0], peers[3], peers[1]], root / "gap").folder,
        }


@pytest.mark.usefixtures("coarse")
def test_the_page_of_a_joined_run_is_that_of_the_run_of_one_process(network: dict[str, Path], tmp_path: Path) -> None:
    """All pictures, and all of the text; only seconds may differ."""
    joined, whole = (replace(load(network[name]), times=load(network["whole"]).times) for name in ("joined", "whole"))
    pages = [write_report([record], tmp_path / str(i)) for i, record in enumerate((joined, whole))]
    assert contents(pages[0].parent) == contents(pages[1].parent)
    assert {"accuracy.png", "data.png", "graph-1.png", "embedding-1.png"} <= contents(pages[0].parent).keys()


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("name", "who"), [("peer", "client 2 of 4"), ("shard", "clients 1 and 3 of 4"), pytest.param("gap", "clients 0, 1 and 3 of 4", marks=pytest.mark.slow)])  # fmt: skip
def test_a_part_is_reported_and_compared_with_nothing(
    name: str, who: str, network: dict[str, Path], tmp_path: Path
) -> None:
    record, control, whole = (load(network[each]) for each in (name, "control", "whole"))
    arms = {arm.label: arm for arm in compare([record, control, whole])}
    assert list(arms) == [f"mapl, {who}", "mapl, no letters", "mapl"]
    assert (arms[f"mapl, {who}"].gain, arms[f"mapl, {who}"].is_part) == (None, True)
    assert arms["mapl"].gain is not None
    assert not arms["mapl"].is_part
    assert arms["mapl"] == {arm.label: arm for arm in compare([control, whole])}["mapl"]
    (sentence,) = unpaired([record, record, control, whole])
    assert who in sentence
    assert str(network[name]) in sentence
    text = write_report([record], tmp_path / "page").read_text(encoding="utf-8")
    assert who in text
    assert (tmp_path / "page" / "graph-1.png").exists()
    assert (tmp_path / "page" / "embedding-1.png").exists() == (name != "peer")


def test_the_part_of_a_control_is_nobodys_control(network: dict[str, Path], tmp_path: Path) -> None:
    part = load(alone(recipe("mapl", **ALONE), [0, 2], tmp_path / "part"))
    (whole, lone) = compare([load(network["whole"]), part])
    assert whole.gain is None
    assert lone.is_part


def test_the_numbers_of_a_part_are_those_of_its_own_clients(network: dict[str, Path], tmp_path: Path) -> None:
    shard, whole = load(network["shard"]), load(network["whole"])
    assert (shard.held, whole.held) == ([1, 3], [0, 1, 2, 3])
    assert shard.accuracy.tolist() == whole.accuracy[[1, 3]].tolist()
    assert torch.equal(shard.weights()[[1, 3]], whole.weights()[[1, 3]])
    assert torch.equal(shard.weights()[[0, 2]], torch.eye(4, dtype=torch.float64)[[0, 2]])
    assert torch.equal(shard.among(), whole.weights()[[1, 3]][:, [1, 3]])
    assert torch.equal(whole.among(), whole.weights())
    part = restored_part(shard.folder)
    assert part is not None
    assert set(sample(part)[2].tolist()) == {1, 3}
    models, all_models = tmp_path / "models", tmp_path / "all"
    export_run(whole.folder, all_models)
    assert [path.name for path in export_run(shard.folder, models, [3])] == ["client-003.safetensors"]
    ours, theirs = (mapl.runs.export.load_model(folder / "client-003.safetensors") for folder in (models, all_models))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    with pytest.raises(MaplError, match=line_with("no client 0", "1 and 3 of 4")):
        export_run(shard.folder, models, [0])


def test_a_writer_knows_the_numbers_of_a_parts_clients(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    alone(recipe("local"), [1, 3], folder, stop=stop_after(1), observers=open_writers(["csv"], folder))
    resume_part(build_part(recipe("local"), holds=[1, 3]), folder, observers=open_writers(["csv"], folder))
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["1", "3"] * 3
    assert [float(row["accuracy"]) for row in rows] == [a for line in load(folder).rounds for a in line.accuracy or ()]


def test_a_part_restored_is_the_part_that_was(network: dict[str, Path]) -> None:
    made = recipe("mapl")
    part = build_part(made, holds=[0, 2], transport=MemoryPost())
    folder = network["shard"].parent / "alone"
    run_part(part, folder)
    again = restored_part(folder)
    assert again is not None
    ours, theirs = saved_state(part), saved_state(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize(
    ("held", "clients", "words"),
    [
        ([3], 4, "client 3 of 4"),
        ([0, 1], 4, "clients 0 and 1 of 4"),
        (range(6), 9, "clients 0, 1, 2, 3, 4 and 5 of 9"),
        (range(20), 40, "clients 0, 1, 2, 3, 4, 5 and 14 more of 40"),
    ],
)
def test_which_clients_a_part_has(held: Sequence[int], clients: int, words: str) -> None:
    assert share_of_network(held, clients) == words


def test_the_command_line(network: dict[str, Path], tmp_path: Path) -> None:
    parts = [str(path) for path in sorted(network["shard"].parent.glob("part-*"))]

    def cli(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments))

    said = cli("join", *parts, "--out", str(tmp_path / "run"))
    assert (said.exit_code, said.stderr) == (0, "")
    assert f"mapl report {tmp_path / 'run'}" in said.stdout
    assert everything(tmp_path / "run") == everything(network["whole"])
    compared = cli("compare", str(tmp_path / "run"), str(network["control"]), "--json")
    assert [arm["is_part"] for arm in json.loads(compared.stdout)["arms"]] == [False, False]
    assert json.loads(compared.stdout)["arms"][0]["gain"] is not None
    lone = cli("compare", str(network["peer"]))
    assert "client 2 of 4" in lone.stderr
    assert isinstance(cli("join", *parts, "--out", str(tmp_path / "run")).exception, MaplError)
    assert cli("join", *parts).exit_code == 2
