"""Real peers: processes over QUIC with mutual TLS. They end with the simulation's bytes, and live through churn."""

from __future__ import annotations

import functools
import json
import random
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hosts
from mapl import Recipe
from mapl.analysis.clusters import share_inside
from mapl.runs.folder import load
from mapl.runs.join import join
from mapl.runs.run import run

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

from mapl.peer.local import HOST, LocalNetwork, free_ports, make_network
from mapl.peer.seen import read_status
from mapl.peer.settings import read_settings, to_toml
from mapl.trees import Tree

pytestmark = pytest.mark.slow

PATIENT: Tree = {"wait": {"patience": 120.0, "first": 120.0}}
"""Nothing is missing, however busy the machine is."""
FILES = ("history.jsonl", "graph.rows", "graph.index", "clients.json")


@pytest.fixture(scope="module")
def with_hosts() -> None:
    if why := hosts.missing():
        pytest.skip(why)


def recipe(method: str, clients: int, rounds: int, **over: Any) -> Recipe:
    alike: Tree = {"model": {"backbones": ["cnn"]}} if method in ("mapl+", "dfedavgm") else {}
    # So that the graph is learned, too, in a few rounds.
    settings: Tree = {"name": method, "warmup": 4} if method.startswith("mapl") else {"name": method}
    return Recipe.of(
        method=settings,
        clients=clients,
        rounds=rounds,
        data="digits",
        evaluate={"moment": "mixed"},
        engine={"device": "cpu", "workers": 1},
        **{"train": {"threads": 1}, **alike, **over},
    )


def state(file: Path) -> Path:
    return read_settings(file).folder


def play(files: list[Path], seconds: float = 240, first: Callable[[int], object] | None = None) -> None:
    """Start all peers and wait for their end."""
    with LocalNetwork(files, first) as network:
        network.start_all()
        assert network.wait(seconds), "a peer has not ended"
        assert [network.status(n) for n in range(len(files))] == [0] * len(files), logs(files)


def logs(files: list[Path]) -> str:
    return "\n".join(f"{file.parent.name}: {(file.parent / 'peer.log').read_text()[-2000:]}" for file in files)


def assert_same_files(peers: list[Path], simulated: Path, tmp_path: Path) -> None:
    join([state(file) / "run" for file in peers], tmp_path / "joined")
    for name in FILES:
        assert (tmp_path / "joined" / name).read_bytes() == (simulated / name).read_bytes(), name


def assert_same_models(peers: list[Path], simulated: Path) -> None:
    """Every tensor of every client's checkpoint, which has its model, its state and its row of W."""
    from mapl.runs.checkpoint import latest

    whole = latest(simulated)
    assert whole is not None
    for number, file in enumerate(peers):
        own = latest(state(file) / "run")
        assert own is not None
        for section in (f"client.{number}.model", f"client.{number}.state"):
            ours, theirs = own.section(section), whole.section(section)
            assert ours.keys() == theirs.keys()
            assert ours or section.endswith("state")
            for name, tensor in ours.items():
                assert tensor.equal(theirs[name]), (section, name)


@pytest.mark.parametrize(
    "method", ["courier", *(pytest.param(name, marks=pytest.mark.network) for name in ("mapl", "mapl+", "dfedavgm"))]
)
def test_eight_processes_end_with_the_bytes_of_the_simulation(method: str, tmp_path: Path) -> None:
    made = recipe(method, clients=8, rounds=10)
    files = make_network(tmp_path / "net", made, PATIENT)
    play(files)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)
    assert_same_models(files, tmp_path / "simulated")


def go_to(names: list[str], number: int) -> None:
    hosts.enter(names[number])


@pytest.mark.network
@pytest.mark.parametrize("method", ["courier", "mapl", "mapl+", "dfedavgm"])
def test_peers_on_hosts_of_their_own_end_with_the_bytes_of_the_simulation(
    with_hosts: None, method: str, tmp_path: Path
) -> None:
    made = recipe(method, clients=8, rounds=10)
    with hosts.Hosts(8) as there:
        files = make_network(tmp_path / "net", made, PATIENT, there.addresses)
        play(files, first=functools.partial(go_to, there.names))
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)
    assert_same_models(files, tmp_path / "simulated")


class Rounds:
    """The rounds that each peer shows and has saved, watched: none may ever go back."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.seen, self.saved = [0] * len(files), [0] * len(files)

    def look(self) -> list[int]:
        for number, file in enumerate(self.files):
            path = state(file) / "status.json"
            if path.exists():
                now = json.loads(path.read_text())["round"]
                assert now >= self.seen[number], f"peer {number} went back from round {self.seen[number]} to {now}"
                self.seen[number] = now
            saved = newest_checkpoint(file)
            assert saved >= self.saved[number], f"peer {number} lost its state of round {self.saved[number]}"
            assert saved >= self.seen[number], f"peer {number} shows a round that it has not saved"
            self.saved[number] = saved
        return self.seen


def newest_checkpoint(file: Path) -> int:
    """After how many rounds the newest state of a peer was saved."""
    names = [path.name for path in (state(file) / "run" / "checkpoints").glob("[0-9]*-*.safetensors")]
    return max((int(name.partition("-")[0]) for name in names), default=0)


def hears_both_halves(file: Path) -> bool:
    """Whether a peer of the churn test read more letters than its kin in its own half could write.

    Kin are the six of its cluster. In the rounds whose number is a power of 2 it reads everybody's.
    """
    status = read_status(state(file))
    number = status["round"]
    return number & (number - 1) != 0 and 2 < status["last_exchange"]["read"] - status["last_exchange"]["stale"] < 6


@pytest.mark.network
def test_a_network_lives_through_kills_and_a_partition(with_hosts: None, tmp_path: Path) -> None:
    """12 peers, 40 rounds: one killed every 3 s and started again 2 s later, and 10 s in which two halves are apart.

    Every other peer is in the same half, so the partition goes through both clusters.
    """
    peers, rounds = 12, 40
    made = recipe("courier", peers, rounds, train={"threads": 1, "epochs": 4})
    calm = run(made, tmp_path / "calm").mean
    draw, dead, kills = random.Random(0), dict[int, float](), 0
    with hosts.Hosts(peers) as there:
        files = make_network(tmp_path / "net", made, {"wait": {"staleness": 2, "linger": 20.0}}, there.addresses)
        watch = Rounds(files)
        with LocalNetwork(files, functools.partial(go_to, there.names)) as network:
            network.start_all()
            began, next_kill, apart, healed, crossed = time.monotonic(), None, None, False, False
            while (now := time.monotonic()) < began + 300:
                seen = watch.look()
                if next_kill is None:
                    next_kill = now + 3 if min(seen) > 0 else None
                elif now > next_kill and min(seen) < rounds:
                    victim = draw.choice([n for n in range(peers) if n not in dead])
                    if network.running(victim):
                        network.kill(victim)
                        dead[victim], kills = now + 2, kills + 1
                    next_kill = now + 3
                for number in [n for n, at in dead.items() if now > at]:
                    network.start(number)
                    del dead[number]
                if apart is None and min(seen) >= 5:
                    there.split(range(0, peers, 2))
                    apart = now
                elif apart is not None and not healed and now > apart + 10:
                    there.heal()
                    healed = True
                crossed = crossed or (healed and any(map(hears_both_halves, files)))
                if min(seen) == rounds and not dead and not any(map(network.running, range(peers))):
                    break
                time.sleep(0.1)
            assert watch.look() == [rounds] * peers, logs(files)
    assert kills >= 5
    assert crossed
    records = [load(state(file) / "run") for file in files]
    assert all([line.round for line in record.rounds] == list(range(rounds)) for record in records)
    disturbed = sum(record.mean for record in records) / peers
    assert disturbed > calm - 0.02, (disturbed, calm)


def set_clock(number: int) -> None:
    """The first peer's clock is a day slow, the second one's a day fast."""
    from datetime import timedelta

    from mapl.peer import certificates

    now, by = certificates.now, timedelta(days=(-1, 1)[number])
    certificates.now = lambda: now() + by  # type: ignore[assignment]


def test_peers_whose_clocks_are_off_by_a_day_train_as_ever(tmp_path: Path) -> None:
    made = recipe("courier", clients=2, rounds=3)
    files = make_network(tmp_path / "net", made, PATIENT)
    play(files, first=set_clock)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)


def test_a_peer_that_was_killed_before_its_first_round_starts(tmp_path: Path) -> None:
    """It has written who its client is, but not yet its recipe. Letters of an earlier run lie there, too."""
    made = recipe("courier", clients=2, rounds=2)
    files = make_network(tmp_path / "net", made, PATIENT)
    (state(files[0]) / "run").mkdir(parents=True)
    (state(files[0]) / "run" / "clients.json").write_text("[")
    (state(files[0]) / "letters").mkdir()
    (state(files[0]) / "letters" / "000040.letter").write_bytes(b"of an earlier run")
    play(files)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)


def test_a_peer_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    made = recipe("courier", clients=2, rounds=12)
    files = make_network(tmp_path / "net", made, PATIENT)
    watch = Rounds(files)
    with LocalNetwork(files) as network:
        network.start_all()
        until = time.monotonic() + 60
        while min(watch.look()) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        network.stop(1)  # SIGTERM: it finishes its round and saves
        network.kill(0)
        assert network.wait(60)
        assert network.status(1) == 0
        status = read_status(state(files[1]))
        assert status["round"] >= 3
        assert sorted(status["numbers"].values()) == list(range(len(files)))
    play(files)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)


def test_peers_that_are_done_wait_for_one_that_was_killed_and_may_come_back(tmp_path: Path) -> None:
    """All others end while it is away. When it is back they answer it, so it does not wait for an empty network."""
    made = recipe("courier", clients=3, rounds=20)
    files = make_network(tmp_path / "net", made, {"wait": {"patience": 0.5, "first": 100.0, "linger": 200.0}})
    watch = Rounds(files)

    def until(reached: Callable[[list[int]], bool]) -> None:
        end = time.monotonic() + 90
        while not reached(watch.look()) and time.monotonic() < end:
            time.sleep(0.02)
        assert reached(watch.seen), logs(files)

    with LocalNetwork(files) as network:
        network.start_all()
        until(lambda rounds: min(rounds) >= 3)
        network.kill(2)
        until(lambda rounds: rounds[:2] == [20, 20])
        time.sleep(6)  # twice `net.lease`: the others have noticed that it is gone
        assert network.running(0)
        assert network.running(1)
        network.start(2)
        assert network.wait(90), "they wait for each other"
        assert [network.status(n) for n in range(3)] == [0, 0, 0], logs(files)
    assert read_status(state(files[2]))["letters_in"] > 0


def reach(file: Path, **net: Any) -> None:
    """Change how a peer finds others."""
    tree = tomllib.loads(file.read_text())
    file.write_text(to_toml({**tree, "net": {**tree["net"], **net}}))


def test_one_known_peer_of_several_is_enough_to_find_all_others(tmp_path: Path) -> None:
    """The first one listens. The others know it, and an address where nobody is, but not each other."""
    made = recipe("courier", clients=3, rounds=3)
    files = make_network(tmp_path / "net", made, PATIENT)
    nobody, known = f"{HOST}:{free_ports(1)[0]}", read_settings(files[0]).net.listen
    for number, file in enumerate(files):
        reach(file, discover="gossip", connect=[nobody, known] if number else [])
    play(files)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)


def test_peers_on_a_local_network_find_each_other_without_any_address(with_hosts: None, tmp_path: Path) -> None:
    made = recipe("courier", clients=2, rounds=3)
    with hosts.Hosts(2) as there:
        files = make_network(tmp_path / "net", made, PATIENT, there.addresses)
        for file in files:
            reach(file, discover="lan", connect=[])
        play(files, first=functools.partial(go_to, there.names))
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)


def test_peers_that_never_wait_read_what_has_arrived(tmp_path: Path) -> None:
    """The second one starts when the first is well ahead."""
    made = recipe("courier", clients=2, rounds=100, partition={"shots": 2, "test_shots": 5})
    files = make_network(tmp_path / "net", made, {"wait": {"mode": "async", "linger": 120.0}})
    watch = Rounds(files)
    with LocalNetwork(files) as network:
        network.start(0)
        until = time.monotonic() + 60
        while watch.look()[0] < 20 and time.monotonic() < until:
            time.sleep(0.02)
        network.start(1)
        assert network.wait(240), "a peer has not ended"
    records = [load(state(file) / "run") for file in files]
    assert all(record.finished for record in records), logs(files)
    assert records[1].messages > 0
    assert all(read_status(state(file))["last_exchange"]["waited"] < 1 for file in files)


@pytest.mark.network
def test_peers_that_look_around_find_their_clusters_with_a_part_of_the_letters(tmp_path: Path) -> None:
    """From 3 contacts each, 12 peers end in the true clusters, as in the simulation, to the bit."""
    peers, rounds = 12, 25
    made = recipe("courier", peers, rounds, network={"topology": {"name": "explore"}})
    files = make_network(tmp_path / "net", made, PATIENT)
    play(files)
    run(made, tmp_path / "simulated")
    assert_same_files(files, tmp_path / "simulated", tmp_path)
    joined = load(tmp_path / "joined")
    # Nothing is sent to those who do not listen.
    assert sum(read_status(state(file))["letters_out"] for file in files) == joined.messages
    assert share_inside(joined.weights(), [client.cluster for client in joined.clients]) == 1
    assert (joined.weights() > 0).sum(1).min() > 1
    full = run(recipe("courier", peers, rounds), tmp_path / "full")
    assert joined.messages < 0.9 * full.messages
