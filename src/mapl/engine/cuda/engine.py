"""The engine for GPUs: many clients at a time, each group's training step captured, on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mapl.client import Client
from mapl.clock import part, profiled
from mapl.engine._base import Answers, Engine, check_finite, make_deterministic
from mapl.engine.cuda.ahead import Ahead
from mapl.engine.cuda.builder import Builder
from mapl.engine.cuda.families import Family, Kind, groupable, operations_of
from mapl.engine.cuda.homes import Homes
from mapl.engine.cuda.layout import Layout
from mapl.engine.cuda.memory import stored
from mapl.engine.cuda.pool import Pool
from mapl.engine.cuda.slot import Slot
from mapl.engine.eager import EagerEngine
from mapl.errors import MaplError, warn
from mapl.keys import key

LANES = 8
"""How many groups train at a time, shared among the kinds: once the GPU is full, more only cost memory."""
TEST_BATCH = 500

Use = Callable[[Client, dict[str, Tensor]], None]


class GroupedEngine(Engine):
    """Captures each kind of client's step once and replays it; falls back to the eager engine where it cannot."""

    def adopt(self, clients: Sequence[Client]) -> None:
        self.precision = torch.bfloat16 if self.engine_settings.precision == "bf16" else None
        self.eager = EagerEngine(
            self.method, self.settings, self.augmentation, self.seed, self.engine_settings, self.device
        )
        make_deterministic(self.engine_settings)
        self.ahead = Ahead(self.draw, self.device.type == "cuda")
        self._ready = False
        kinds: dict[Kind, list[Client]] = {}
        for client in clients:
            batch = min(self.settings.batch, client.samples)
            kinds.setdefault(Kind.of(client, batch), []).append(client)
        self.families = [self._family(kind, members) for kind, members in kinds.items()]
        self.lanes = max(1, LANES // len(self.families))
        # An optimiser that lives on keeps two moments of every parameter.
        kept = 1 if self.settings.reset else 3
        elements = kept * sum(f.layout.size * len(f.clients) for f in self.families)
        self.homes = Homes(elements, self.engine_settings, self.device)
        for family in self.families:
            if family.layout.fits(family.clients[0].model):
                for client in family.clients:
                    self.homes.bind(client, family.layout, self.precision)
            else:
                self._leave_to_eager(family, "its tensors are not all float32")

    # Setting up

    def _family(self, kind: Kind, clients: list[Client]) -> Family:
        model = clients[0].model
        group = groupable(model)
        layout = Layout(model, group=group, low_precision=group and self.precision is not None)
        steps = max(self._steps(client) for client in clients)
        operations = operations_of(clients[0]) if group else 0.0
        return Family(kind, clients, layout, group, steps, operations)

    def _steps(self, client: Client) -> int:
        return self.steps_per_epoch(client) * self.settings.epochs

    @torch.enable_grad()
    def warm_up(self, clients: Sequence[Client]) -> None:
        """Bring the images to the GPU, build the slots and capture their steps: once, before the first round."""
        captured = [family for family in self.families if not family.eager]
        if self._ready or not captured:
            return
        self._ready = True
        try:
            with self.arithmetic():
                self._warm_up(captured, [client for family in captured for client in family.clients])
        except torch.cuda.OutOfMemoryError as error:
            raise MaplError(
                "the GPU's memory does not hold the clients that train at a time; lower engine.together or "
                f"engine.memory ({str(error).splitlines()[0]})"
            ) from error

    def _warm_up(self, families: list[Family], clients: list[Client]) -> None:
        self.train_pool = Pool(self.device, {c.id: (c.train.inputs, c.train.labels) for c in clients})
        self.test_pool = Pool(self.device, {c.id: (c.test.inputs, c.test.labels) for c in clients})
        builder = Builder(
            self.method, self.settings, self.augmentation, self.homes, self.precision, self.engine_settings.together,
            self.lanes,
        )  # fmt: skip
        for family, reason in builder.build(families, self.train_pool.pixels):
            self._leave_to_eager(family, reason)

    def _leave_to_eager(self, family: Family, reason: str) -> None:
        """Clients of which no step can be captured train beside the others, as the reference does."""
        family.eager = True
        text = f"backbone {family.kind.backbone!r} with method {self.method.name!r} cannot be captured"
        if self.homes.on_host and family.clients[0].id in self.homes.rows:
            raise MaplError(f"{text} ({reason}), and models wait on the host: raise engine.memory, or take another")
        slower = f"its {len(family.clients)} clients train one after another, which is slower"
        warn(f"{text} ({reason}): {slower}", once=True)
        self.eager.adopt(family.clients)

    # A round

    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        self.warm_up(clients)
        with self.arithmetic():
            return self._train_all(clients, round)

    def _train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        present = {c.id for c in clients}
        sums: dict[int, _Sums] = {}
        waves = self._waves(present)
        self.ahead.begin(clients, round)
        for wave in waves:
            # A profile waits for the GPU between parts, so all slots are filled before any trains. Otherwise each slot
            # starts as soon as it is filled.
            if profiled():
                self._feed(wave, round)
            for slot, chunk in wave:
                if not profiled():
                    self._feed([(slot, chunk)], round)
                with slot.lane():
                    self._replay(slot, chunk, round)
                    self._leave(slot, chunk, sums)
        self.ahead.begin(clients, round + 1)
        if not profiled() and waves:
            self._feed_ahead(waves[0], round + 1)
        alone = [c for family in self.families if family.eager for c in family.clients if c.id in present]
        losses = {client.id: self.eager.train(client, round) for client in alone}
        self._join()
        losses |= _means(sums)
        for client in clients:
            check_finite(client, round, losses[client.id])
        return [losses[client.id] for client in clients]

    def _join(self) -> None:
        for family in self.families:
            for slot in family.slots:
                slot.join()

    def _waves(self, present: set[int]) -> list[list[tuple[Slot, list[Client]]]]:
        """All families' turns side by side."""
        turns = [turn for family in self.families if family.slots and (turn := family.turns(present))]
        longest = max(map(len, turns), default=0)
        # The longest chains of small kernels first; what fills the GPU alone runs beside them.
        turns.sort(key=lambda turn: turn[0][0][0].priority)
        return [[job for turn in turns if i < len(turn) for job in turn[i]] for i in range(longest)]

    def _feed(self, wave: list[tuple[Slot, list[Client]]], round: int) -> None:
        with part("augmentation"):
            for slot, chunk in wave:
                with slot.lane():
                    self._enter(slot, chunk, round)

    def _enter(self, slot: Slot, chunk: list[Client], round: int) -> None:
        """Bring models, images and labels of some clients into a slot."""
        self._load(slot, chunk)
        seeds = [key(self.seed, c.id, round, "layers") for c in chunk]
        slot.begin([self._steps(c) for c in chunk], seeds, self.settings.reset, self.settings.rate_factor(round))
        if not self.settings.reset:
            for g, client in enumerate(chunk):
                zeros = torch.zeros_like(slot.moments[:, g])
                slot.load_moments(g, *self.homes.moments.get(client.id, (zeros, 0)))
        self._fill(slot, chunk, round)

    def _load(self, slot: Slot, chunk: list[Client]) -> None:
        slot.load(chunk, [self.homes.rows[c.id] for c in chunk], [self.homes.counters[c.id] for c in chunk])

    def _fill(self, slot: Slot, chunk: list[Client], round: int) -> None:
        """The images and labels of some clients' round, unless they are there already."""
        wanted = round, [client.id for client in chunk]
        if slot.filled == wanted:
            return
        slot.filled = None
        for g, client in enumerate(chunk):
            batches, uniforms = self.ahead.of(client, round)
            index = batches.to(self.device, non_blocking=True) + self.train_pool.start[client.id]
            index = index.repeat(1, self.method.views)
            steps = len(index)
            slot.labels[g, :steps].copy_(self.train_pool.labels[index])
            uniforms = uniforms.to(self.device, non_blocking=True).flatten(0, 1)
            out = slot.images[g, :steps].flatten(0, 1)
            if slot.views is not None:
                slot.views.make(self.train_pool.pixels, index.flatten(), uniforms, out)
            else:
                made = self.augmentation.apply(self.train_pool.pixels[index.flatten()], uniforms)
                out.copy_(stored(made))
        slot.filled = wanted

    def _feed_ahead(self, wave: list[tuple[Slot, list[Client]]], round: int) -> None:
        """The images of the next round's first wave, in each slot as soon as it is done, while others still learn."""
        for slot, chunk in wave:
            with slot.lane():
                self._fill(slot, chunk, round)

    def _replay(self, slot: Slot, chunk: list[Client], round: int) -> None:
        """All steps of a slot; the GPU works on them while the next slot is filled."""
        steps = [self._steps(client) for client in chunk]
        for t in range(max(steps)):
            epochs = [divmod(t, taken // self.settings.epochs) for taken in steps]
            starts = {g: epoch for g, (epoch, rest) in enumerate(epochs) if rest == 0 and epoch < self.settings.epochs}
            slot.start_epochs(round, starts)
            slot.replay()

    def _leave(self, slot: Slot, chunk: list[Client], sums: dict[int, _Sums]) -> None:
        """Take models and losses of some clients out of a slot."""
        slot.store(chunk, [self.homes.rows[c.id] for c in chunk], [self.homes.counters[c.id] for c in chunk])
        totals = slot.totals.clone()
        for g, client in enumerate(chunk):
            sums[client.id] = _Sums(slot.terms, totals, g, self._steps(client))
            if not self.settings.reset:
                self.homes.keep_moments(client, slot.layout, slot.moments[:, g], self._steps(client))

    # Tests

    @torch.no_grad()
    def evaluate_all(self, clients: Sequence[Client]) -> list[Answers]:
        predicted: dict[int, Tensor] = {}
        confidence: dict[int, Tensor] = {}

        def score(member: Client, outputs: dict[str, Tensor]) -> None:
            labels = self.test_pool.labels[self.test_pool.range(member.id)]
            predicted[member.id], sure = self.answer(member, outputs, labels)
            confidence[member.id] = sure[None]

        self._answer_all(clients, self.method.answers_with, score)
        classes, sure = _to_host(predicted), _to_host(confidence)
        return [
            Answers(classes[c.id], sure[c.id][0], c.test.labels[: sure[c.id].shape[1]])
            if c.id in sure
            else self.eager.answers_of(c)
            for c in clients
        ]

    @torch.no_grad()
    def embed(self, client: Client) -> Tensor:
        embeddings: list[Tensor] = []
        self._answer_all([client], ("backbone",), lambda _, outputs: embeddings.append(outputs["backbone"]))
        return embeddings[0][: len(client.test) - client.held] if embeddings else self.eager.embed(client)

    def _answer_all(self, clients: Sequence[Client], names: tuple[str, ...], use: Use) -> None:
        """Calls `use(member, outputs)` with what each client's networks make of `client.test`, (n, …) each."""
        self.warm_up(clients)
        with self.arithmetic():
            for wave in self._waves({c.id for c in clients}):
                for slot, chunk in wave:
                    with slot.lane():
                        self._load(slot, chunk)
                self._test(wave, names, use)
            self._join()

    def _test(self, wave: list[tuple[Slot, list[Client]]], names: tuple[str, ...], use: Use) -> None:
        answers: dict[int, list[dict[str, Tensor]]] = {id(slot): [] for slot, _ in wave}
        longest = max(len(client.test) for _, chunk in wave for client in chunk)
        for start in range(0, longest, TEST_BATCH):
            for slot, chunk in wave:
                if start >= max(len(client.test) for client in chunk):
                    continue
                with slot.lane():
                    places = torch.stack([self.test_pool.places(c.id, start, TEST_BATCH) for c in chunk])
                    batch = slot.answers_at(names, self.test_pool.pixels, self.augmentation, places)
                    answers[id(slot)].append(batch)
        for slot, chunk in wave:
            with slot.lane():
                outputs = {name: torch.cat([batch[name] for batch in answers[id(slot)]], 1) for name in names}
                for g, client in enumerate(chunk):
                    slot.members[g].model.eval()
                    use(slot.members[g], {name: y[g, : len(client.test)] for name, y in outputs.items()})
                    slot.members[g].model.train()

    # What lives on

    def state(self) -> dict[str, Tensor]:
        if self.settings.reset:
            return {}
        state = dict(self.eager.state())
        for family in self.families:
            for client in family.clients:
                state |= self.homes.optimizer_state(client, family.layout, self.settings.adaptive)
        return state

    def load_state(self, clients: Sequence[Client], state: dict[str, Tensor]) -> None:
        if not state:
            return
        self.warm_up(clients)
        for family in self.families:
            if not family.slots:
                own = {str(c.id) for c in family.clients}
                self.eager.load_state(family.clients, {k: v for k, v in state.items() if k.split(".")[0] in own})
                continue
            for client in family.clients:
                self.homes.load_optimizer(client, family.layout, self.settings.adaptive, state)


class _Sums(NamedTuple):
    """The losses of one client's round, added up, on the GPU."""

    names: list[str]
    totals: Tensor
    """(terms, members of its slot)."""
    member: int
    steps: int


def _means(sums: dict[int, _Sums]) -> dict[int, dict[str, float]]:
    """Each client's losses as means per step; all in one copy from the GPU."""
    if not sums:
        return {}
    columns = torch.stack([of.totals[:, of.member] for of in sums.values()]).tolist()
    return {
        client: {name: value / of.steps for name, value in zip(of.names, column, strict=True)}
        for (client, of), column in zip(sums.items(), columns, strict=True)
    }


def _to_host(tensors: dict[int, Tensor]) -> dict[int, Tensor]:
    """Tensors (a, n) of any n, brought to the host in one transfer."""
    if not tensors:
        return {}
    joined = torch.cat(list(tensors.values()), dim=1).cpu()
    return dict(zip(tensors, torch.split(joined, [v.shape[1] for v in tensors.values()], dim=1), strict=True))
