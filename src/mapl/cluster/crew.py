"""The processes of a run's shards: started where Ray has room, asked all at once, and replaced when they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mapl.cluster.actor import ShardActor
from mapl.cluster.connection import Connection
from mapl.cluster.packed import Packed
from mapl.cluster.shard import Answers, Failed, Lost, Played, Process, versions
from mapl.errors import MaplError, warn
from mapl.runs.player import CannotGoOn

SOON = 2.0
"""Seconds after which a person is told that one waits for room."""
SLICE = 1.0
"""Seconds between two looks at processes that start."""
STARTING = 300.0
"""Seconds that a process may take to start where there is room. On a busy machine, Python and torch take long."""
LOOK = 5.0
"""Seconds after which one looks whether the machines are still there. Usually Ray tells it before."""
ALIVE = 20.0
"""Seconds that a process has to say that it is alive, while others may keep its machine busy."""


class Crew:
    """One process for each shard, each with its share of the cluster."""

    def __init__(self, connection: Connection, shards: int, needs: Mapping[str, float], wait: float) -> None:
        self.ray = connection.ray
        self.shards = shards
        self.needs = dict(needs)
        """What Ray reserves for each shard."""
        self.wait = wait
        self.handles: dict[int, Any] = {}
        self.processes: dict[int, Process] = {}
        self._connection = connection
        self._actor = self.ray.remote(ShardActor)
        util = self.ray.util
        # Spread over the machines of the cluster. If one is lost, Ray finds another place for its shards.
        self._room = util.placement_group([self.needs] * shards, strategy="SPREAD")

    def reserve(self) -> list[str]:
        """Wait for room. Returns the machine of each shard."""
        if not self._room.wait(min(SOON, self.wait)):
            warn(f"waiting up to {self.wait:g} s for room on the cluster: {self._asked()}")
            if not self._room.wait(self.wait):
                raise MaplError(f"there is no room on the cluster: {self._asked()} (waited {self.wait:g} s)")
        placed = self.ray.util.placement_group_table(self._room)["bundles_to_node_id"]
        names = {node["NodeID"]: node["NodeManagerHostname"] for node in self.ray.nodes()}
        # Several nodes of a cluster may run on one machine.
        alike = len(set(names.values())) < len(names)
        return [names[node] + (f" ({node[:6]})" if alike else "") for _, node in sorted(placed.items())]

    def start(self, numbers: Sequence[int]) -> None:
        """Start a new process for each of these shards, where Ray has room. Tries again while there is time."""
        begin = time.monotonic()
        asked = {self._started(number).process.remote(): number for number in numbers}
        while asked:
            arrived, _ = self.ray.wait(list(asked), num_returns=len(asked), timeout=SLICE)
            again = []
            for reference in arrived:
                number = asked.pop(reference)
                try:
                    self.processes[number] = _checked(self.ray.get(reference))
                except self.ray.exceptions.RayActorError as error:
                    # On a machine that was just lost, as Ray finds out now; or it cannot start anywhere.
                    again.append(number)
                    if "creation task" in (why := str(error).strip()):
                        raise CannotGoOn(f"a shard cannot start: {why.splitlines()[-1]}") from error
            self._check_time(time.monotonic() - begin, sorted([*asked.values(), *again]))
            if again:
                time.sleep(SLICE / 2)
                asked |= {self._started(number).process.remote(): number for number in again}

    def _check_time(self, waited: float, left: Sequence[int]) -> None:
        """Give up on shards that have not started, if there is no room for them, or after a long time."""
        if not left or waited < self.wait:
            return
        who = f"shard {', '.join(map(str, left))} (counted from 0)"
        if not self._has_room():
            raise CannotGoOn(f"there is no room on the cluster for {who}: {self._asked()} (waited {self.wait:g} s)")
        if waited > STARTING:
            raise CannotGoOn(f"{who} did not start in {waited:.0f} s, though the cluster has room for it")

    def _has_room(self) -> bool:
        """Whether Ray has found a place for every shard."""
        room = self.ray.util.placement_group_table(self._room)
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        return room["state"] == "CREATED" and alive.issuperset(room["bundles_to_node_id"].values())

    def _started(self, number: int) -> Any:
        if number in self.handles:
            self.ray.kill(self.handles[number])
        strategies = self.ray.util.scheduling_strategies
        self.handles[number] = self._actor.options(
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs.get("GPU", 0),
            max_concurrency=self.shards + 8,  # every other shard may be waiting for letters
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(self._room, number),
        ).remote()
        return self.handles[number]

    def meet(self) -> None:
        """Tell all processes of each other."""
        self.ask_all("meet", lambda me: [{n: handle for n, handle in self.handles.items() if n != me}])

    def ask_all(self, method: str, arguments: Callable[[int], Sequence[Any]] = lambda number: ()) -> list[Any]:
        """What all processes answer, by shard. Raises the first error that a person is meant to read."""
        asked = [getattr(handle, method).remote(*arguments(n)) for n, handle in sorted(self.handles.items())]
        try:
            answers = self.ray.get(asked)
        except self.ray.exceptions.RayTaskError:
            raise  # a bug
        except self.ray.exceptions.RayError as error:
            raise Lost(self.missing(), error) from error
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error()
        return list(answers)

    def play(self, t: int, attempt: int, keep: bool) -> Answers:
        """Let all processes play a round. If one cannot, the others are told not to wait for it."""
        several = [handle.play.options(num_returns=2) for _, handle in sorted(self.handles.items())]
        both = [one.remote(t, attempt, keep) for one in several]
        number_of = {told: number for number, (told, _) in enumerate(both)}
        answers: dict[int, Played | Failed | None] = {}
        lost: list[int] = []
        waiting = list(number_of)
        while waiting:
            arrived, waiting = self.ray.wait(waiting, timeout=LOOK)
            gone = [] if arrived else [told for told in waiting if not self._has_machine(number_of[told])]
            waiting = [told for told in waiting if told not in gone]
            lost += [number_of[told] for told in gone]
            for told in arrived:
                try:
                    answers[number_of[told]] = self.ray.get(told)
                except self.ray.exceptions.RayTaskError:
                    raise  # a bug
                except self.ray.exceptions.RayError:
                    lost.append(number_of[told])
            if lost or not all(isinstance(answer, Played) for answer in answers.values()):
                self._give_up(attempt)
        in_order = [answer for _, answer in sorted(answers.items())]
        for answer in in_order:
            if isinstance(answer, Failed):
                raise answer.error()
        played = [answer for answer in in_order if isinstance(answer, Played)]
        if len(played) < self.shards:
            raise Lost(lost or self.missing())
        return [(told, state) for told, (_, state) in zip(played, both, strict=True)]

    def fetch(self, states: Sequence[Any]) -> list[Packed]:
        """The states that were kept, in memory of this process's own."""
        try:
            return [state.copy() for state in self.ray.get(list(states))]
        except self.ray.exceptions.RayError as error:
            raise Lost(self.missing(), error) from error

    def _has_machine(self, number: int) -> bool:
        """Whether the cluster still has the machine of a shard."""
        return any(node["Alive"] for node in self.ray.nodes() if node["NodeID"] == self.processes[number].node)

    def _give_up(self, attempt: int) -> None:
        for handle in self.handles.values():
            handle.give_up.remote(attempt)

    def missing(self) -> list[int]:
        """The shards whose processes do not answer."""
        asked = {handle.process.remote(): number for number, handle in self.handles.items()}
        arrived, late = self.ray.wait(list(asked), num_returns=len(asked), timeout=ALIVE)
        dead = []
        for reference in arrived:
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayActorError:
                dead.append(asked[reference])
        return sorted([*dead, *(asked[reference] for reference in late)])

    def close(self) -> None:
        """End all processes and give their room back."""
        if self.ray.is_initialized():
            for handle in self.handles.values():
                self.ray.kill(handle)
            self.ray.util.remove_placement_group(self._room)
        self._connection.close()

    def _asked(self) -> str:
        """What is asked for and what there is, in words."""
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        free = self.ray.available_resources()
        kinds = ("CPU", "GPU") if "GPU" in self.needs else ("CPU",)
        each = " and ".join(f"{self.needs[kind]:g} {kind}" for kind in kinds)
        has = ", ".join(
            sorted(" and ".join(f"{node['Resources'].get(kind, 0):g} {kind}" for kind in kinds) for node in nodes)
        )
        left = " and ".join(f"{free.get(kind, 0):g} {kind}" for kind in kinds)
        shards = "1 shard asks" if self.shards == 1 else f"{self.shards} shards ask"
        machines = "1 machine" if len(nodes) == 1 else f"{len(nodes)} machines"
        return f"{shards} for {each} each; the cluster has {machines} ({has}), of which {left} are free"


def _checked(process: Process) -> Process:
    """Refuse a machine with other versions than this one: its results would be others."""
    for (name, there), (_, here) in zip(process.versions, versions(), strict=True):
        if there != here:
            raise MaplError(f"{process.host} has {name} {there}, but this machine has {here}: install the same on both")
    return process
