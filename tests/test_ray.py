"""Shards on a Ray cluster of several nodes, emulated on this machine: equality, losses, and what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mapl
from conftest import in_silence, line_with, small, stop_after, until, written
from mapl import MaplError, Recipe
from mapl.cluster import start
from mapl.cluster.shard import Order
from mapl.cluster.shards import Shards
from mapl.engine.settings import RaySettings
from mapl.runs import checkpoint
from mapl.runs.client_data import load_data
from mapl.runs.player import CannotGoOn

if find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow


class _Ray:
    """Ray, imported when it is first used: it takes a second, also in the processes that run no test of these."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("ray"), name)


ray: Any = _Ray()

NODE = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""How soon a node that does not answer is taken for lost."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, with one core and with two."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    Cluster = import_module("ray.cluster_utils").Cluster
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": QUICK, **NODE})
    made.second = made.add_node(num_cpus=2, object_store_memory=NODE["object_store_memory"])
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
    for number, handler in before.items():
        signal.signal(number, handler)


def digits(name: str, /, **over: Any) -> Recipe:
    """24 clients with four backbones, or with one where the method needs it."""
    alike = {"model": {"backbones": ["mlp"]}} if name == "fedavg" else {}
    few = {"partition": {"shots": 2, "test_shots": 2}, "checkpoint": {"every": 10}}
    return small(name, **{"clients": 24, "rounds": 4, **few, **alike, **over})


def on_ray(recipe: Recipe, **ray: Any) -> Recipe:
    engine = {"where": "ray", "ray": RaySettings(**{"shards": 2, "wait": 8, **ray})}
    return recipe.model_copy(update={"engine": recipe.engine.model_copy(update=engine)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The courier's run in one process."""
    return written(mapl.run(digits("courier"), tmp_path_factory.mktemp("whole") / "run").folder)


# Equality


@pytest.mark.parametrize("shards", [2, 3])
def test_the_folder_is_that_of_one_process(
    shards: int, cluster: Any, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a process is killed. They serve one run after another: most of the time is spent starting them."""
    from mapl.cluster.connection import Connection
    from mapl.cluster.crew import Crew

    crew = Crew(Connection(RaySettings()), shards, {"CPU": 1.0}, wait=60)
    try:
        crew.reserve()
        close, crew.close = crew.close, lambda: None  # type: ignore[method-assign]
        for name in ("courier", "mapl", "mapl+", "fedavg", "fedproto"):
            made = digits(name)
            one = mapl.run(made, tmp_path / name / "one")
            record = mapl.run(made, tmp_path / name / "shards", make=lambda made, *_: in_crew(crew, made))
            assert written(record.folder) == written(one.folder), name
            assert (record.folder / "recipe.toml").read_bytes() == (one.folder / "recipe.toml").read_bytes()
        assert {process.node for process in crew.processes.values()} == {node["NodeID"] for node in ray.nodes()}
        if shards == 2:
            check_a_kill(crew, whole, tmp_path / "killed", monkeypatch)
            check_an_error(crew, tmp_path / "error")
    finally:
        close()


def in_crew(crew: Any, made: Recipe) -> Shards:
    data = load_data(made)
    ready = start.Ready(made, data, {}, crew, [], start.work_of(made, data))
    held = ready.divided(None)
    return Shards(crew, made, Order(0, held, made, {}), ready.shares(held))


def check_a_kill(crew: Any, whole: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process is replaced, and the round is played again."""
    with monkeypatch.context() as patch:
        seen = in_the_middle(patch, 2, lambda crew, number: os.kill(crew.processes[number].pid, signal.SIGKILL))
        with pytest.warns(UserWarning, match=line_with("shard 1", "was lost", "round 3", "played again")):
            record = mapl.run(digits("courier"), folder, make=lambda made, *_: in_crew(crew, made))
    assert written(record.folder) == whole
    assert crew.processes[0].pid == seen.before[0].pid
    assert crew.processes[1].pid != seen.before[1].pid


def check_an_error(crew: Any, folder: Path) -> None:
    """What is wrong in a shard is one sentence here."""
    made = digits("courier", model={"backbones": ["mlp"]}, train={"learning_rate": 1e30}, clients=4)
    with (
        pytest.warns(UserWarning, match="a letter is left out"),  # said in a shard
        pytest.raises(MaplError, match="learning_rate") as error,
    ):
        mapl.run(made, folder, make=lambda made, *_: in_crew(crew, made))
    assert type(error.value).__name__ == "NotFinite"
    assert "\n" not in str(error.value)


# Losses


def in_the_middle(
    monkeypatch: pytest.MonkeyPatch, t: int, accident: Callable[[Any, int], None], head: str = ""
) -> SimpleNamespace:
    """Let an accident happen once in round t, while the others wait for a shard's letters: shard 1's, or if that lives
    on the head of the cluster, where the driver is, shard 0's."""
    from mapl.cluster.crew import Crew

    real, seen = Crew.play, SimpleNamespace(crew=None, before=None)

    def play(self: Any, round: int, attempt: int, keep: bool) -> Any:
        if round == t and seen.crew is None:
            seen.crew, seen.before = self, dict(self.processes)
            seen.number = 0 if self.processes[1].node == head else 1
            os.kill(self.processes[seen.number].pid, signal.SIGSTOP)  # it will not end the round
            threading.Timer(0.5, accident, [self, seen.number]).start()
        return real(self, round, attempt, keep)

    monkeypatch.setattr(Crew, "play", play)
    return seen


def node_of(cluster: Any, crew: Any, number: int) -> Any:
    """The emulated node on which a shard lives, which is not the head."""
    (node,) = [one for one in cluster.worker_nodes if one.node_id == crew.processes[number].node]
    return node


def test_a_lost_node_is_replaced_by_a_spare_one_and_without_one_the_run_ends_and_goes_on_later(
    cluster: Any, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = cluster.add_node(num_cpus=1, object_store_memory=NODE["object_store_memory"])
    lost: list[Any] = []

    def remove(crew: Any, number: int) -> None:
        lost.append(node_of(cluster, crew, number))
        cluster.remove_node(lost[-1], allow_graceful=False)

    with monkeypatch.context() as patch:
        seen = in_the_middle(patch, 2, remove, cluster.head_node.node_id)
        with pytest.warns(UserWarning, match="was lost in round 3"):
            record = mapl.run(on_ray(digits("courier")), tmp_path / "spare")
    assert written(record.folder) == whole
    assert {p.node for p in seen.crew.processes.values()} != {p.node for p in seen.before.values()}

    # Only nodes for one shard are left.
    for node in [one for one in (spare, cluster.second) if one not in lost]:
        cluster.remove_node(node, allow_graceful=False)
    only = cluster.add_node(num_cpus=1, object_store_memory=NODE["object_store_memory"])
    folder = tmp_path / "no spare"
    with monkeypatch.context() as patch:
        in_the_middle(patch, 2, remove, cluster.head_node.node_id)
        begin = time.monotonic()
        with (
            pytest.warns(UserWarning, match="was lost in round 3"),
            pytest.raises(
                CannotGoOn,
                match=line_with("no room", "2 shards", "1 CPU each", "1 machine (1 CPU)", "saved", "round 2", "resume"),
            ) as error,
        ):
            mapl.run(on_ray(digits("courier")), folder)
    assert time.monotonic() - begin < 300  # no hang
    assert "\n" not in str(error.value)
    assert only in lost
    assert checkpoint.newest(folder) == 2
    cluster.second = cluster.add_node(num_cpus=2, object_store_memory=NODE["object_store_memory"])
    with in_silence():
        record = mapl.resume(folder, ray=RaySettings(shards=2, wait=60))
    assert written(record.folder) == whole


# The command


def mapl_command(*arguments: str, cluster: Any) -> subprocess.Popen[str]:
    """`mapl …` on the cluster, as a shell starts it: in a process group of its own."""
    program = [sys.executable, "-c", "from mapl.cli import main; main()"]
    return subprocess.Popen(
        [*program, *arguments, "--address", cluster.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


OPTIONS = ["--engine", "ray", "--shards", "2"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_stopped_or_killed_command_is_resumed(how: int, cluster: Any, tmp_path: Path) -> None:
    file, folder = tmp_path / "recipe.toml", tmp_path / "run"
    made = digits("courier", rounds=500, checkpoint={"every": 1}, name="run", clients=6)
    mapl.runs.folder.write_recipe(tmp_path, made)
    process = mapl_command("run", str(file), "--out", str(tmp_path), *OPTIONS, cluster=cluster)
    until(lambda: folder.is_dir() and checkpoint.newest(folder) >= 2, seconds=200)
    os.killpg(process.pid, how)  # a terminal sends Ctrl-C to every process of the group
    out, err = process.communicate(timeout=200)
    assert process.returncode == (130 if how == signal.SIGINT else -9), err
    played = checkpoint.newest(folder)
    assert 2 <= played < 500
    if how == signal.SIGINT:
        assert f"stopped after round {played} of 500" in out
        assert f"mapl resume {folder} --engine ray" in out
    record = mapl.resume(folder, stop=stop_after(1))  # in one process
    assert written(record.folder) == written(
        mapl.run(made, tmp_path / "one", stop=stop_after(len(record.rounds))).folder
    )


def test_a_plan_says_what_would_be_where_and_trains_nothing(cluster: Any, tmp_path: Path) -> None:
    process = mapl_command(
        "run", "--clients", "8", "--method", "courier", "--rounds", "9", "--out", str(tmp_path), *OPTIONS, "--plan",
        "--json", cluster=cluster,
    )  # fmt: skip
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    plan = json.loads(out)
    assert [shard["clients"] for shard in plan["shards"]] != [8, 8]
    assert sum(shard["clients"] for shard in plan["shards"]) == 8
    assert len({shard["machine"] for shard in plan["shards"]}) == 2
    assert plan["rounds"] == 9
    assert plan["seconds_a_round"] == max(shard["seconds"] for shard in plan["shards"]) > 0
    assert min(shard["bytes"] for shard in plan["shards"]) > 100 * 2**20  # Python and torch alone
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_and_nothing_is_written(cluster: Any, tmp_path: Path) -> None:
    busy = ray.util.placement_group([{"CPU": 1}], strategy="PACK")
    assert busy.wait(30)
    try:
        with (
            pytest.warns(UserWarning, match="waiting up to 3 s"),
            pytest.raises(
                MaplError,
                match=line_with("3 shards", "1 CPU each", "2 machines (1 CPU, 2 CPU)", "2 CPU are free", "3 s"),
            ),
        ):
            mapl.run(on_ray(digits("courier"), shards=3, wait=3), tmp_path / "run")
    finally:
        ray.util.remove_placement_group(busy)
    assert list(tmp_path.iterdir()) == []


def test_no_cluster_at_an_address_is_said(tmp_path: Path) -> None:
    process = mapl_command("run", *OPTIONS, "--out", str(tmp_path), cluster=SimpleNamespace(address="127.0.0.1:9"))
    _, err = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:9'" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_of_ones_own_is_reachable_from_this_machine_only() -> None:
    """Whoever reaches its ports can run code there. Ray binds all of them to the node's address."""
    program = (
        "from mapl.cluster.connection import Connection\n"
        "from mapl.engine.settings import RaySettings\n"
        "made = Connection(RaySettings(address='local'))\n"
        "print(made.ray.nodes()[0]['NodeManagerAddress'])\n"
        "made.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.split() == ["127.0.0.1"]
