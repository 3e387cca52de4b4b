"""A shard as a Ray actor. This module is imported in the actor's process."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import ray

from mapl.cluster.post import Ask, Bundle, Interrupted, Request
from mapl.cluster.shard import Built, Failed, Order, PackedFor, Process, Shard, versions
from mapl.errors import hand_over_warnings


class ShardActor(Shard):
    """A shard whose letters go through Ray's object store, and whose warnings are told to the driver."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: list[str] = []
        hand_over_warnings(self._warned.append)

    def process(self) -> Process:
        """Where it runs. Also how one asks whether it is alive."""
        context = ray.get_runtime_context()
        return Process(context.get_node_id(), platform.node(), os.getpid(), versions())

    def build(self, order: Order, data: PackedFor) -> Built | Failed:
        gc.unfreeze()
        answer = super().build(order, data)
        gc.collect()
        gc.freeze()  # as `mapl.runs.part.lasting`, for as long as these clients live
        return answer

    def meet(self, others: Mapping[int, Any]) -> None:
        """Learn the handles of the other shards."""
        self.connect({number: _asking(handle) for number, handle in others.items()})

    def keep(self, bundle: Bundle) -> Any:
        return ray.put(bundle)

    def serve(self, request: Request) -> Any:
        # In a list, because Ray would fetch what a bare reference stands for, once for each shard that asks.
        return [super().serve(request)]

    def warned(self) -> tuple[str, ...]:
        warned, self._warned[:] = tuple(self._warned), []
        return warned


def _asking(handle: Any) -> Ask:
    def ask(request: Request) -> Callable[[Callable[[], None]], Bundle]:
        promised = handle.serve.remote(request)

        def answer(go_on: Callable[[], None]) -> Bundle:
            try:
                bundle: Bundle = _got(_got(promised, go_on)[0], go_on)
            except ray.exceptions.RayError as error:
                # The driver finds out who was lost.
                raise Interrupted from error
            return bundle

        return answer

    return ask


def _got(reference: Any, go_on: Callable[[], None]) -> Any:
    while not ray.wait([reference], timeout=1.0)[0]:
        go_on()
    return ray.get(reference)
