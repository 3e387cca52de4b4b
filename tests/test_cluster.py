"""Shards without Ray: in threads of this process, where one can look into them and make them fail."""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import mapl
import mapl.cluster.shards
import mapl.methods
from conftest import assert_same, in_silence, line_with, small, stop_after, written
from mapl import Dataset, MaplError, Recipe
from mapl.cli.app import app
from mapl.cli.cluster import engine_again
from mapl.cluster import connection, costs, start
from mapl.cluster.balance import divide
from mapl.cluster.packed import pack, pack_data, unpack, unpack_data
from mapl.cluster.plan import asked_for, planned
from mapl.cluster.post import Interrupted, Request, ShardPost
from mapl.cluster.shard import Answers, Failed, Lost, Order, Shard
from mapl.cluster.shards import Shards
from mapl.cluster.start import needs_of, shards_of
from mapl.engine.settings import RaySettings
from mapl.network import MemoryPost
from mapl.runs import checkpoint
from mapl.runs.client_data import load_data
from mapl.runs.part import build_part
from mapl.runs.player import CannotGoOn, Player
from test_transports import own_data, recipe

CLIENTS = 6
DIVISION = ((0, 3, 4), (1,), (2, 5))


class Threads:
    """A crew of shards in threads."""

    def __init__(self, shards: int, accidents: Sequence[int | None] = ()) -> None:
        self.shards = shards
        self.handles: dict[int, Any] = {}
        self.accidents = list(accidents)
        """Which shard is lost in each of the next rounds that are played. -1: none is, but the round is interrupted."""
        self.started: list[list[int]] = []
        self.pool = ThreadPoolExecutor(4 * shards + shards**2)
        self.ray = SimpleNamespace(put=lambda thing: thing)

    def start(self, numbers: Sequence[int]) -> None:
        self.started.append(list(numbers))
        self.handles |= {number: Shard() for number in numbers}

    def meet(self) -> None:
        for me, shard in self.handles.items():
            shard.connect({n: self.asking(n) for n in self.handles if n != me})

    def asking(self, number: int) -> Any:
        def ask(request: Request) -> Callable[[Callable[[], None]], Any]:
            asked = self.pool.submit(self.handles[number].serve, request)
            return lambda go_on: asked.result()

        return ask

    def ask_all(self, method: str, arguments: Callable[[int], Sequence[Any]] = lambda number: ()) -> list[Any]:
        asked = [self.pool.submit(getattr(h, method), *arguments(n)) for n, h in sorted(self.handles.items())]
        answers = [one.result() for one in asked]
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error()
        return answers

    def play(self, t: int, attempt: int, keep: bool) -> Answers:
        lost = self.accidents.pop(0) if self.accidents else None
        asked = [self.pool.submit(h.play, t, attempt, keep) for n, h in sorted(self.handles.items()) if n != lost]
        if lost is not None:
            for handle in self.handles.values():
                handle.give_up(attempt)
            assert all(one.result() == (None, None) for one in asked)
            raise Lost([lost] if lost >= 0 else [])
        answers = [one.result() for one in asked]
        for answer, _ in answers:
            if isinstance(answer, Failed):
                raise answer.error()
        return answers

    def fetch(self, states: Sequence[Any]) -> list[Any]:
        return list(states)

    def close(self) -> None:
        self.pool.shutdown()


def shards(made: Recipe, division: Sequence[Sequence[int]] = DIVISION, crew: Any = None, data: Any = None) -> Shards:
    given = load_data(made) if data is None else data
    datas = [
        pack_data(given) if isinstance(given, Dataset) else {i: pack_data(given[i]) for i in held} for held in division
    ]
    held = tuple(map(tuple, division))
    recipe = made.model_copy(update={"engine": made.engine.at_home})  # as `on_ray` does it
    return Shards(crew or Threads(len(division)), recipe, Order(0, held, made, {}), datas)


def making(*arguments: Any, **more: Any) -> Callable[..., Player]:
    return lambda made, data, _: shards(made, *arguments, **more, data=data)


# The same bytes


def also_slow(*names: str) -> list[Any]:
    """More cases of a test, for `make check`."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", ["courier", "flt", *also_slow("mapl+", "fedavg", "fedproto")])
def test_shards_write_the_folder_of_one_process(name: str, tmp_path: Path) -> None:
    made = recipe(name, rounds=3)
    whole = mapl.run(made, tmp_path / "whole")
    record = mapl.run(made, tmp_path / "shards", make=making())
    assert written(record.folder) == written(whole.folder)
    assert (record.folder / "recipe.toml").read_bytes() == (whole.folder / "recipe.toml").read_bytes()


@pytest.mark.parametrize(
    "over",
    [
        {"network": {"noise": {"clip": 1.0, "multiplier": 0.5}, "topology": {"name": "ring"}}},
        {"network": {"compress": {"kind": "top-k"}, "topology": {"name": "explore"}}, "train": {"reset": False}},
        {"network": {"participation": 0.5}, "evaluate": {"moment": "mixed"}},
        {"network": {"transport": "bytes"}, "evaluate": {"every": 2, "all_images": True, "moment": "mixed"}},
    ],
    ids=["noise on a ring", "top-k, looking around", "half take part", "bytes"],
)
def test_whatever_stands_around_the_exchange_does_not_see_the_shards(over: dict[str, Any], tmp_path: Path) -> None:
    """Stopped and resumed in another division, too."""
    made = recipe("courier", rounds=4, **over)
    whole = mapl.run(made, tmp_path / "whole")
    folder = tmp_path / "shards"
    mapl.run(made, folder, make=making(), stop=stop_after(2))
    with in_silence():
        mapl.resume(folder, make=making(((0, 1, 2, 3), (4, 5))), stop=stop_after(1))
        record = mapl.resume(folder)
    assert written(record.folder) == written(whole.folder)


def test_data_sets_of_their_own(tmp_path: Path) -> None:
    data = own_data(recipe("mapl"))
    whole = mapl.run(recipe("mapl", rounds=2), tmp_path / "whole", data=data)
    record = mapl.run(recipe("mapl", rounds=2), tmp_path / "shards", data=data, make=making())
    assert written(record.folder) == written(whole.folder)


def test_a_shard_asks_only_for_what_its_clients_want() -> None:
    """On a ring of six in three shards, each shard gets the letters of the neighbours of its clients, no others."""
    made = recipe("courier", rounds=1, network={"topology": {"name": "ring"}})
    crew = Threads(3)
    player, seen = shards(made, ((0, 1), (2, 3), (4, 5)), crew), dict[tuple[int, int], list[int]]()
    for number, shard in crew.handles.items():
        keep = shard.serve

        def serve(request: Request, number: int = number, keep: Any = keep) -> Any:
            bundle = keep(request)
            seen[number, request.shard] = [slip.sender for slip, _ in bundle.letters]
            return bundle

        shard.serve = serve
    player.play(0, mapl.runs.run.Clock())
    assert seen == {(0, 1): [1], (0, 2): [0], (1, 0): [2], (1, 2): [3], (2, 0): [5], (2, 1): [4]}


# Shards that are lost


@pytest.mark.parametrize("name", ["fedproto", *also_slow("courier", "flt")])
@pytest.mark.parametrize("before", [0, 2], ids=["in the first round", "later"])
def test_after_a_loss_the_round_is_played_again(
    name: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapl.cluster.shards, "SHARE", 1e9)  # every round is kept
    made = recipe(name, rounds=4, train={"reset": False})
    whole = mapl.run(made, tmp_path / "whole")
    crew = Threads(3, [None] * before + [1, None, 0])
    with pytest.warns(
        UserWarning, match=rf"shard 1 \(counted from 0\) was lost in round {before + 1}: it is played again"
    ):
        record = mapl.run(made, tmp_path / "shards", make=making(crew=crew))
    assert written(record.folder) == written(whole.folder)
    assert crew.started == [[0, 1, 2], [1], [0]]


@pytest.mark.parametrize("name", ["courier", *also_slow("fedproto")])
def test_if_keeping_takes_long_more_than_one_round_is_played_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. Only the first round, and those that are saved anyway, are kept."""
    monkeypatch.setattr(mapl.cluster.shards, "SHARE", 0)
    made = recipe(name, rounds=6, checkpoint={"every": 4}, train={"reset": False})
    whole = mapl.run(made, tmp_path / "whole")
    crew = Threads(3, [None] * 3 + [1] + [None] * 4 + [2])
    with pytest.warns(UserWarning, match="was lost") as warned:
        record = mapl.run(made, tmp_path / "shards", make=making(crew=crew))
    assert [str(w.message).partition(": ")[2] for w in warned if "was lost" in str(w.message)] == [
        "rounds 2 to 4 are played again", "rounds 5 to 6 are played again"
    ]  # fmt: skip
    assert written(record.folder) == written(whole.folder)


@pytest.mark.parametrize(
    ("lost", "who"), [(-1, "no shard"), (1, r"shard 1 \(counted from 0\)")], ids=["interrupted", "lost"]
)
@pytest.mark.filterwarnings("ignore:shard 1")
def test_a_round_that_never_succeeds_ends_the_run_and_keeps_what_was_played(
    lost: int, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe("courier", rounds=4, checkpoint={"every": 10})
    whole = mapl.run(made, tmp_path / "whole")
    for share, saved in ((1e9, 2), (0, 1)):
        monkeypatch.setattr(mapl.cluster.shards, "SHARE", share)
        again = [None] if saved == 1 else []  # the second round is played again before the third
        crew, folder = Threads(3, [None, None, lost, *again, lost, *again, lost]), tmp_path / str(saved)
        said = f"round 3 was interrupted 3 times; the last time, {who} was lost; the run is saved up to round {saved}:"
        with pytest.raises(CannotGoOn, match=said):
            mapl.run(made, folder, make=making(crew=crew))
        assert checkpoint.newest(folder) == saved
        record = mapl.resume(folder, make=making())
        assert written(record.folder) == written(whole.folder)


@pytest.mark.filterwarnings("ignore:shard")
def test_losses_end_a_run_only_if_there_is_no_new_round_between_them(tmp_path: Path) -> None:
    crew = Threads(3, [0, 1, None, 2, 0, None, 1, 2])
    assert mapl.run(recipe("local", rounds=3), tmp_path / "often", make=making(crew=crew)).finished
    assert len(crew.started) == 7
    folder = tmp_path / "always"
    with pytest.raises(CannotGoOn, match=line_with("round 1", "3 times", "was lost", "no round is saved", "resume")):
        mapl.run(recipe("local", rounds=3), folder, make=making(crew=Threads(3, [0, 1, 2])))
    assert mapl.resume(folder, make=making()).finished


@pytest.mark.filterwarnings("ignore:shard 0")
def test_a_shard_that_is_lost_while_a_checkpoint_is_collected_costs_no_round_that_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapl.cluster.shards, "SHARE", 0)  # only the first round is kept
    made = recipe("courier", rounds=4, checkpoint={"every": 3})
    crew, folder = Threads(3), tmp_path / "shards"
    first = crew.ask_all

    def ask_all(method: str, *arguments: Any) -> list[Any]:
        if method == "state":
            raise Lost([0])
        return first(method, *arguments)

    crew.ask_all = ask_all  # type: ignore[method-assign]
    with pytest.raises(CannotGoOn, match=line_with("round 3", "3 times", "saved", "round 1", "resume")):
        mapl.run(made, folder, make=making(crew=crew))
    assert checkpoint.newest(folder) == 1
    record = mapl.resume(folder, make=making())
    assert written(record.folder) == written(mapl.run(made, tmp_path / "whole").folder)


def test_no_room_for_another_shard_keeps_what_was_played(tmp_path: Path) -> None:
    made = recipe("courier", rounds=4, checkpoint={"every": 10})
    crew, folder = Threads(3, [None, 2]), tmp_path / "shards"
    first = crew.start

    def start(numbers: Sequence[int]) -> None:
        if crew.started:
            raise CannotGoOn("there is no room")
        first(numbers)

    crew.start = start  # type: ignore[method-assign]
    with (
        pytest.warns(UserWarning, match="was lost"),
        pytest.raises(CannotGoOn, match=line_with("no room", "saved", "round 1", "resume")) as error,
    ):
        mapl.run(made, folder, make=making(crew=crew))
    assert error.value.status == 1
    assert written(mapl.resume(folder).folder) == written(mapl.run(made, tmp_path / "whole").folder)


def test_shards_that_never_begin_end_the_run() -> None:
    crew = Threads(2)

    def start(numbers: Sequence[int]) -> None:
        raise Lost(numbers, RuntimeError("Traceback\nModuleNotFoundError: No module named 'mapl'"))

    crew.start = start  # type: ignore[method-assign]
    with pytest.raises(CannotGoOn, match="before they could begin: ModuleNotFoundError: No module named 'mapl'"):
        shards(recipe("local"), ((0, 1, 2), (3, 4, 5)), crew)


def test_what_is_wrong_in_a_shard_is_said_here(tmp_path: Path) -> None:
    made = recipe("courier", train={"learning_rate": 1e30})
    for folder, more in (("whole", {}), ("shards", {"make": making(((0, 1, 2, 3, 4, 5),))})):
        with pytest.raises(MaplError, match="learning_rate") as error:
            mapl.run(made, tmp_path / folder, **more)
        assert type(error.value).__name__ == "NotFinite"


@pytest.mark.parametrize("name", ["fedavg", "pfedsim"])
@pytest.mark.parametrize("division", [DIVISION, ((0, 2, 4), (1, 3, 5))], ids=["mixed", "one kind each"])
def test_clients_of_different_architectures_are_refused_as_in_one_process(
    name: str, division: tuple[tuple[int, ...], ...]
) -> None:
    made = recipe(name, model={"backbones": ["mlp", "cnn"]})
    with pytest.raises(MaplError, match=line_with("client 0", "mlp", "1 (cnn)", "3 (cnn)", "5 (cnn)")) as whole:
        build_part(made)
    with pytest.raises(MaplError) as error:
        shards(made, division)
    assert str(error.value) == str(whole.value)
    data = load_data(made)
    ready = start.Ready(made, data, {}, Threads(2), ["a", "b"], start.work_of(made, data))
    with pytest.raises(MaplError) as error:  # before there are shards
        ready.measured()
    assert str(error.value) == str(whole.value)


class Connected:
    """A connection to a cluster with nothing."""

    def __init__(self, *_: Any) -> None:
        self.ray = SimpleNamespace(cluster_resources=lambda: pytest.fail("the data were taken"))

    def close(self) -> None:
        """It opened nothing."""


@pytest.mark.parametrize("what", ["another mean", "one too few", "one too many"])
def test_data_sets_of_the_clients_are_checked_as_in_one_process(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "Connection", Connected)
    made = recipe("courier", model={"backbones": ["mlp"]})
    data = own_data(made)
    if what == "another mean":
        data[5] = replace(data[5], mean=tuple(value + 0.1 for value in data[5].mean))
    elif what == "one too few":
        del data[5]
    else:
        data[6] = data[5]
    with pytest.raises(MaplError, match=r"^data: ") as whole:
        build_part(made, data)
    with pytest.raises(MaplError) as error:
        start.prepare(made, data, None)
    assert str(error.value) == str(whole.value)


def test_a_process_that_dies_while_it_measures_is_an_error_in_words() -> None:
    made, crew = small("courier", clients=2), Threads(1)
    data = load_data(made)

    def ask_all(*_: Any) -> list[Any]:
        raise Lost([0], RuntimeError("The actor died unexpectedly\nThe worker ran out of memory"))

    crew.ask_all = ask_all  # type: ignore[method-assign]
    ready = start.Ready(made, data, {}, crew, ["a"], start.work_of(made, data))
    with pytest.raises(MaplError, match=line_with("measured", "was lost", "The worker ran out of memory")) as error:
        ready.measured()
    assert error.value.status == 1


def test_nobody_waits_for_a_round_that_was_given_up() -> None:
    post = ShardPost(0, np.array([0, 1, 0]), MemoryPost(), torch.device("cpu"), attempt=3)
    nothing = np.empty(0, dtype=np.int64)
    post.give_up(3)
    for attempt in (2, 3):
        with pytest.raises(Interrupted):
            post.serve(Request(1, attempt, "letters", nothing, nothing))


# What crosses between processes


def test_tensors_are_packed_and_unpacked_to_the_bit() -> None:
    tensors = {
        "a": torch.randn(3, 2),
        "b": torch.arange(4),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 5),
        "half": torch.randn(3).bfloat16(),
        "zero": torch.tensor([-0.0]),
        "yes": torch.tensor([True, False]),
        "t": torch.randn(2, 3).T,
    }
    packed = pack(tensors)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors["a"] += 1  # a copy was packed
    found = unpack(packed)
    assert_same(dict(sorted(found.items())), dict(sorted(before.items())))
    assert str(found["zero"]) == "tensor([-0.])"
    assert sum(tensor.nbytes for tensor in tensors.values()) == packed.nbytes


def test_a_data_set_is_packed_without_a_copy_and_read_without_a_warning() -> None:
    dataset = load_data(small())
    packed = pack_data(dataset)
    for _, arrays in packed.splits:
        arrays["inputs"].flags.writeable = False  # as in Ray's object store
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = unpack_data(packed)
    assert found.digest() == dataset.digest()
    assert found.train.inputs.data_ptr() == dataset.train.inputs.data_ptr()


# Who holds what


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_work_is_divided_evenly(costs: list[float], shards: int) -> None:
    shards = min(shards, len(costs))
    held = divide(costs, shards)
    assert sorted(client for clients in held for client in clients) == list(range(len(costs)))
    assert all(held)
    work = [sum(costs[client] for client in clients) for clients in held]
    # The shard with the most work got its last client when it had the least.
    assert max(work) <= sum(costs) / shards + max(costs)


def test_an_expensive_backbone_counts_for_more() -> None:
    made = small("courier", clients=6, model={"backbones": ["mlp", "cnn"]})
    work = costs.work_of(made, load_data(made))
    assert costs.probes(work) == (0, 1)
    found = costs.measure(made, load_data(made), {}, (0, 1))
    assert found.rates["cnn"].train > 0
    assert found.rates["cnn"].state > found.rates["cnn"].letter > 0
    rates = {"mlp": found.rates["mlp"]._replace(train=1, test=0), "cnn": found.rates["cnn"]._replace(train=2, test=0)}
    each = costs.seconds(work, rates)
    assert each[1] == 2 * each[0]
    assert divide(each, 3) == ((0, 1), (2, 3), (4, 5))  # one of each kind


def test_letters_are_measured_though_the_last_round_has_none() -> None:
    sizes = []
    for every in (1, 5):
        made = small("courier", clients=2, rounds=6, method={"every": every}, model={"backbones": ["mlp"]})
        sizes.append(costs.measure(made, load_data(made), {}, (0,)).rates["mlp"].letter)
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize("batch", [4, 64])
def test_the_images_of_a_round_are_those_that_are_trained_on(batch: int) -> None:
    made = small("courier", train={"batch": batch, "epochs": 2})
    part = build_part(made)
    for client, work in zip(part.clients, costs.work_of(made, load_data(made)), strict=True):
        assert work.images == part.engine.draw(client, 0).batches.numel()
        assert work.backbone == client.backbone
        assert work.tests == client.tests
    own = own_data(made)
    assert [work.images for work in costs.work_of(made, own)] == [
        work.images for work in costs.work_of(made, load_data(made))
    ]


def test_what_a_shard_needs_and_how_many_there_are() -> None:
    def made(**ray: Any) -> Recipe:
        return small(clients=6, engine={"where": "ray", "ray": ray})

    nodes = [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}, {"Alive": True, "Resources": {"CPU": 8.0}},
             {"Alive": False, "Resources": {"CPU": 8.0}}]  # fmt: skip
    with_gpus = {"CPU": 12.0, "GPU": 2.0}
    assert needs_of(made(), {"CPU": 12.0}) == {"CPU": 1}
    assert needs_of(made(), with_gpus) == {"CPU": 1, "GPU": 1}
    assert needs_of(small(engine={"device": "cpu", "workers": 3}, train={"threads": 2}), with_gpus) == {"CPU": 6}
    assert shards_of(made(), {"CPU": 1.0, "GPU": 0.5}, nodes) == 4
    assert shards_of(made(), {"CPU": 1.0}, nodes) == 6
    assert shards_of(made(shards=2), {"CPU": 1.0}, nodes) == 2
    with pytest.raises(MaplError, match="whole GPUs"):
        needs_of(made(gpus_per_shard=1.5), with_gpus)
    with pytest.raises(MaplError, match="got 7, but there are 6 clients"):
        shards_of(made(shards=7), {"CPU": 1.0}, nodes)


def test_a_plan_is_the_arithmetic_of_what_was_measured() -> None:
    made = small("courier", clients=6, rounds=30, model={"backbones": ["mlp"]}, network={"topology": {"name": "ring"}})
    data = load_data(made)
    crew = SimpleNamespace(shards=3, needs={"CPU": 1.0})
    ready = start.Ready(made, data, {}, crew, ["a", "b", "c"], start.work_of(made, data))
    rate = costs.Rate(train=0.1, test=0.0, state=1000, letter=200)
    found = planned(ready, costs.Measured({"mlp": rate}, 5000, {"mlp": ""}))
    images = ready.work[0].images
    assert [shard.clients for shard in found.shards] == [2, 2, 2]
    assert found.seconds == pytest.approx(2 * 0.1 * images)
    # Clients 0 and 3: their neighbours 1, 5, 2 and 4 are elsewhere. Four letters, as they come and stacked.
    assert ready.divided(None)[0] == (0, 3)
    assert (found.shards[0].letters, found.shards[0].memory) == (4 * 200, 5000 + 2 * 2000 + 2 * 4 * 200)
    assert found.driver == 6000
    text = "\n".join(found.lines())
    assert "shard 2 on c: 2 clients (2 mlp)" in text
    assert f"30 rounds: {30 * found.seconds / 60:.1f} minutes" in text
    assert found.as_json()["shards"][1]["machine"] == "b"


def test_whose_letters_a_shard_can_ask_for() -> None:
    def asked(name: str, topology: str = "full", serves: bool = False) -> list[int]:
        alike = {"model": {"backbones": ["mlp"]}} if name == "fedavg" else {}
        made = small(name, clients=6, network={"topology": {"name": topology}}, **alike)
        return asked_for(made, (1, 2), serves).tolist()

    assert asked("courier") == asked("courier", "explore") == [0, 1, 2, 3, 4, 5]
    assert asked("courier", "ring") == [0, 1, 2, 3]
    assert asked("courier", "none") == asked("fedavg") == []
    assert asked("fedavg", serves=True) == [0, 1, 2, 3, 4, 5]


# What is said


def test_without_ray_one_learns_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mapl.cluster.connection.find_spec", lambda name: None)
    made = small(engine={"where": "ray"})
    with pytest.raises(MaplError, match=r"pip install 'mapl\[ray\]'") as error:
        mapl.run(made, tmp_path / "run")
    assert "--engine ray: Ray is not installed" in error.value.shell
    assert mapl.run(small("local"), tmp_path / "here").finished
    assert not (tmp_path / "run").exists()


def test_the_cluster_is_not_a_part_of_the_run(tmp_path: Path) -> None:
    """A folder may be anybody's, and who connects to a Ray cluster runs what it sends."""
    made = small(engine={"where": "ray", "ray": {"address": "elsewhere:6379", "shards": 3}})
    assert made.fingerprint() == small().fingerprint()
    record = mapl.run(
        made, tmp_path / "run", make=lambda recipe, *_: shards(recipe, ((0, 1), (2, 3))), stop=stop_after(1)
    )
    text = (record.folder / "recipe.toml").read_text()
    (record.folder / "recipe.toml").write_text(text.replace('where = "here"', 'where = "ray"'))
    with pytest.warns(UserWarning, match="was edited"):
        assert mapl.resume(record.folder).finished


def test_a_budget_of_messages_is_refused() -> None:
    made = small(engine={"where": "ray"}, network={"message_budget": 10})
    with pytest.raises(MaplError, match=r"network\.message_budget"):
        start.prepare(made, None, None)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", "127.0.0.1:9"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(MaplError, match="HOST:PORT" if address != "127.0.0.1:9" else "no Ray cluster answers"):
        connection._check_answers(address)


@pytest.mark.parametrize("options", [["--shards", "2"], ["--address", "x:1"], ["--gpus-per-shard", "0"], ["--plan"]])
def test_options_of_a_cluster_need_one(options: list[str], tmp_path: Path) -> None:
    folder = mapl.run(small("local", rounds=1), tmp_path / "run").folder
    for command in (["run", "--out", str(tmp_path)], ["resume", str(folder)]):
        said = CliRunner().invoke(app, [*command, *options])
        assert isinstance(said.exception, MaplError)
        assert re.match(line_with(options[0], "--engine ray"), said.exception.shell)
    said = CliRunner().invoke(app, ["run", "--seeds", "2", "--engine", "ray"])
    assert "are for one run" in str(said.exception)


@pytest.mark.parametrize("stop", ["once", "at once"])
@pytest.mark.parametrize("command", ["run", "resume"])
def test_what_is_printed_to_go_on_names_the_cluster(
    command: str, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mapl.run(small("local", rounds=2), tmp_path / "run", stop=stop_after(1)).folder
    cluster = "--engine ray --address head:6379 --shards 3 --gpus-per-shard 0.5"

    def stopped(*_: Any, **more: Any) -> Any:
        more["stop"]._handle(signal.SIGINT, None)
        if stop == "at once":
            more["stop"]._handle(signal.SIGINT, None)
        return mapl.load(folder)

    monkeypatch.setattr(mapl.runs.run, command, stopped)
    arguments = ["run", "--out", str(tmp_path), "--name", "run"] if command == "run" else ["resume", str(folder)]
    said = CliRunner().invoke(app, [*arguments, *cluster.split()])
    assert said.exit_code == 130
    assert f"continue with: mapl resume {folder} {cluster}\n" in said.output
    assert ("stopped at once" in said.output) == (stop == "at once")


def test_only_what_is_no_default_is_said_again() -> None:
    assert engine_again(None) == ""
    assert engine_again(RaySettings()) == " --engine ray"
    assert engine_again(RaySettings(gpus_per_shard=0)) == " --engine ray --gpus-per-shard 0"


def test_code_that_only_a_folder_names_is_not_sent_to_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mapl.run(small("test_transports:Noisy", rounds=2), tmp_path / "run", stop=stop_after(1)).folder
    monkeypatch.setattr("mapl.plugins._named", set())
    monkeypatch.setattr("mapl.cluster.start.Connection", lambda *_: pytest.fail("it was sent"))
    with pytest.raises(MaplError, match="'test_transports:Noisy' is code that only a file names"):
        mapl.resume(folder, ray=RaySettings())
