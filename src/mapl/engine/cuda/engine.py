"""The engine for GPUs: many clients at a time, each group's training step one CUDA graph on a stream of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from mapl.client import Client
from mapl.clock import part, profiled
from mapl.engine._base import Engine, check_finite, make_deterministic
from mapl.engine.cuda import branches
from mapl.engine.cuda.families import Family, Kind, groupable, operations_of
from mapl.engine.cuda.kernels.launch import building
from mapl.engine.cuda.layout import Layout
from mapl.engine.cuda.slot import Slot
from mapl.engine.cuda.views import Views
from mapl.engine.eager import EagerEngine
from mapl.errors import MaplError
from mapl.keys import key

LANES = 8
"""How many groups work at a time, shared among the kinds: more gain nothing once the GPU is full, and cost memory."""
ALONE_LANES = 5
"""How many clients of a kind that is not grouped work at a time."""
ALONE = 20e9
"""Operations of a forward pass from which a client keeps the GPU busy by itself, and is not grouped with others."""
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
        self.rows: dict[int, Tensor] = {}
        self.counters: dict[int, Tensor] = {}
        self.moments: dict[int, tuple[Tensor, int]] = {}
        self._drawn: dict[tuple[int, int], Future[tuple[Tensor, Tensor]]] = {}
        self._drawn_for: int | None = None
        self._workers = ThreadPoolExecutor(4)
        self._ready = False
        kinds: dict[Kind, list[Client]] = {}
        for client in clients:
            batch = min(self.settings.batch, client.samples)
            kinds.setdefault(Kind.of(client, batch), []).append(client)
        self.families = [self._family(kind, members) for kind, members in kinds.items()]
        self.lanes = max(1, LANES // len(self.families))
        # An optimiser that lives on keeps two moments of every parameter.
        kept = 1 if self.settings.reset else 3
        home = self._home(kept * sum(f.layout.size * len(f.clients) for f in self.families))
        for family in self.families:
            if family.layout.fits(family.clients[0].model):
                for client in family.clients:
                    self._bind(client, family.layout, home)
            else:
                self._leave_to_eager(family, "its tensors are not all float32")

    # Where clients live

    def _family(self, kind: Kind, clients: list[Client]) -> Family:
        model = clients[0].model
        group = groupable(model)
        layout = Layout(model, group=group, low_precision=group and self.precision is not None)
        steps = max(self._steps(client) for client in clients)
        operations = operations_of(clients[0]) if group else 0.0
        return Family(kind, clients, layout, group, steps, operations)

    def _steps(self, client: Client) -> int:
        return client.samples // min(self.settings.batch, client.samples) * self.settings.epochs

    def _home(self, elements: int) -> torch.device:
        """The GPU, or the host's pinned memory where all that is kept of clients takes more than its share."""
        share = self.engine_settings.memory
        if share is None and self.device.type == "cuda":
            share = torch.cuda.get_device_properties(self.device).total_memory / 2**31
        return torch.device("cpu") if share is not None and 4 * elements > share * 2**30 else self.device

    def _bind(self, client: Client, layout: Layout, home: torch.device) -> None:
        pinned = home.type != self.device.type
        row = torch.zeros(layout.size, device=home, pin_memory=pinned)
        counters = torch.zeros(len(layout.counters), device=home, dtype=torch.int64, pin_memory=pinned)
        layout.bind(client.model, row, counters)
        client.model.precision = self.precision if home.type == "cuda" else None
        self.rows[client.id], self.counters[client.id] = row, counters

    @torch.enable_grad()
    def warm_up(self, clients: Sequence[Client]) -> None:
        """Bring the images to the GPU, build the slots and record their steps: once, before the first round."""
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
        branches.forget()
        self.train_pool = _Pool(self.device, {c.id: (c.train.pixels, c.train.labels) for c in clients})
        self.test_pool = _Pool(self.device, {c.id: (c.test.pixels, c.test.labels) for c in clients})
        for family in families:
            self._try(family, lambda family: family.slots.append(self._slot(family, family.group)))
        if self.device.type == "cuda":
            # Without kernels values are whatever the memory holds: not for a loss that uses them as indices.
            self._build_kernels([family for family in families if family.group and self.method.dry_run])
        for family in families:
            self._build(family)

    def _build_kernels(self, families: list[Family]) -> None:
        """All kernels of all families, which takes most of the time of setting up: their steps without running them."""

        def all_launches(family: Family) -> None:
            for slot in family.slots:
                with slot.lane():
                    slot.try_all()

        with building(), ThreadPoolExecutor(1) as beside:
            views = beside.submit(self._rehearse_views)
            for family in families:
                self._try(family, all_launches)
            views.result()

    def _try(self, family: Family, work: Callable[[Family], None]) -> None:
        """Do something that a user's network or method may not take; `_build` finds out about it again, and says so."""
        try:
            work(family)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:
            self._drop_slots(family)

    def _drop_slots(self, family: Family) -> None:
        """What did not work may still be under way, and others will be given its memory."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        branches.forget()
        family.slots = []

    def _rehearse_views(self) -> None:
        if Views.fits(self.augmentation):
            image = self.train_pool.pixels[:1]
            nothing = torch.zeros(1, self.augmentation.uniforms_per_image, device=self.device)
            for dtype in {torch.float32, self.precision or torch.float32}:
                out = image.permute(0, 2, 3, 1).to(dtype, memory_format=torch.contiguous_format)
                index = torch.zeros(1, dtype=torch.int64, device=self.device)
                Views(self.augmentation, self.device).make(self.train_pool.pixels, index, nothing, out)

    def _build(self, family: Family) -> None:
        """Slots of the widest kind that works: a group, one client as its author wrote it, or none (eager)."""
        for group in [True, False] if family.group else [False]:
            if family.group and not group:
                self._relayout(family)
            try:
                self._make_slots(family, group)
                return
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a user's network or method meets
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self._drop_slots(family)
        self._leave_to_eager(family, reason)

    def _leave_to_eager(self, family: Family, reason: str) -> None:
        """Clients that no graph can be recorded of train beside the others, as the reference does."""
        family.eager = True
        text = f"backbone {family.kind.backbone!r} with method {self.method.name!r} cannot be captured in a CUDA graph"
        if any(self.rows[c.id].device.type != self.device.type for c in family.clients if c.id in self.rows):
            raise MaplError(f"{text} ({reason}), and models wait on the host: raise engine.memory, or take another")
        slower = f"its {len(family.clients)} clients train one after another, which is slower"
        warnings.warn(f"{text} ({reason}): {slower}", stacklevel=2)
        self.eager.adopt(family.clients)

    def _relayout(self, family: Family) -> None:
        family.group = False
        family.layout = Layout(family.clients[0].model, group=False)
        for client in family.clients:
            self._bind(client, family.layout, self.rows[client.id].device)

    def _make_slots(self, family: Family, group: bool) -> None:
        turns = -(-len(family.clients) // self._together(family, group))
        wanted = min(turns, self.lanes if turns < len(family.clients) else max(self.lanes, ALONE_LANES))
        while len(family.slots) < wanted:
            family.slots.append(self._slot(family, group))
        for slot in family.slots:
            slot.capture()

    def _slot(self, family: Family, group: bool) -> Slot:
        """An empty slot, with a client in its first place to try things on."""
        first, most = family.clients[0], self._together(family, group)
        family.size = -(-len(family.clients) // -(-len(family.clients) // most))
        slot = Slot(
            self.method, self.settings, first, family.layout, family.size, family.steps, group, self.device,
            self.precision,
        )  # fmt: skip
        if Views.fits(self.augmentation):
            slot.views = Views(self.augmentation, self.device)
        slot.load([first], [self.rows[first.id]], [self.counters[first.id]])
        return slot

    def _together(self, family: Family, group: bool) -> int:
        """How many clients a slot has at most."""
        operations = family.operations * family.kind.batch * self.method.views
        return self.engine_settings.together if group and operations <= ALONE else 1

    # A round

    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        self.warm_up(clients)
        with self.arithmetic():
            return self._train_all(clients, round)

    def _train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        present = {c.id for c in clients}
        found: dict[int, tuple[list[str], Tensor, int, int]] = {}
        waves = self._waves(present)
        if self._drawn_for != round:  # the first, which no round before it could draw
            self._draw_ahead(clients, round)
        for wave in waves:
            # A profile waits for the GPU at the borders of parts: all are fed before anybody learns. Otherwise each
            # slot goes off as soon as it is fed.
            if profiled():
                self._feed(wave, round)
            for slot, chunk in wave:
                if not profiled():
                    self._feed([(slot, chunk)], round)
                with slot.lane():
                    self._replay(slot, chunk, round)
                    self._leave(slot, chunk, found)
        self._draw_ahead(clients, round + 1)
        if not profiled() and waves:
            self._feed_ahead(waves[0], round + 1)
        alone = [c for family in self.families if family.eager for c in family.clients if c.id in present]
        losses = {client.id: self.eager.train(client, round) for client in alone}
        self._join()
        losses |= _read(found)
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
        """Models, images and labels of some clients come into a slot."""
        slot.load(chunk, [self.rows[c.id] for c in chunk], [self.counters[c.id] for c in chunk])
        seeds = [key(self.seed, c.id, round, "layers") for c in chunk]
        slot.begin([self._steps(c) for c in chunk], seeds, self.settings.reset)
        if not self.settings.reset:
            for g, client in enumerate(chunk):
                zeros = torch.zeros_like(slot.moments[:, g])
                slot.load_moments(g, *self.moments.get(client.id, (zeros, 0)))
        self._fill(slot, chunk, round)

    def _fill(self, slot: Slot, chunk: list[Client], round: int) -> None:
        """The images and labels of some clients' round, unless they are there already."""
        wanted = round, [client.id for client in chunk]
        if slot.filled == wanted:
            return
        slot.filled = None
        for g, client in enumerate(chunk):
            batches, uniforms = self._draws(client, round)
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
                out.copy_(made.permute(0, 2, 3, 1))
        slot.filled = wanted

    def _feed_ahead(self, wave: list[tuple[Slot, list[Client]]], round: int) -> None:
        """The images of the next round's first wave, in each slot as soon as it is done, while others still learn."""
        for slot, chunk in wave:
            with slot.lane():
                self._fill(slot, chunk, round)

    def _replay(self, slot: Slot, chunk: list[Client], round: int) -> None:
        """All steps of a slot; the GPU works on them while the next slot is fed."""
        steps = [self._steps(client) for client in chunk]
        for t in range(max(steps)):
            epochs = [divmod(t, taken // self.settings.epochs) for taken in steps]
            starts = {g: epoch for g, (epoch, rest) in enumerate(epochs) if rest == 0 and epoch < self.settings.epochs}
            slot.start_epochs(round, starts)
            slot.replay()

    def _leave(self, slot: Slot, chunk: list[Client], found: dict[int, tuple[list[str], Tensor, int, int]]) -> None:
        slot.store(chunk, [self.rows[c.id] for c in chunk], [self.counters[c.id] for c in chunk])
        totals = slot.totals.clone()
        for g, client in enumerate(chunk):
            found[client.id] = (slot.terms, totals, g, self._steps(client))
            if not self.settings.reset:
                moments, before = self.moments.get(client.id) or (self._no_moments(client, slot.layout), 0)
                moments.copy_(slot.moments[:, g], non_blocking=True)
                self.moments[client.id] = (moments, before + self._steps(client))

    def _no_moments(self, client: Client, layout: Layout) -> Tensor:
        """Room for the optimiser of a client that lives on from round to round, where its model lives."""
        home = self.rows[client.id].device
        return torch.zeros(2, layout.parameters, device=home, pin_memory=home.type != self.device.type)

    def _draws(self, client: Client, round: int) -> tuple[Tensor, Tensor]:
        """Indices (steps, B) and uniforms in pinned memory, drawn ahead of time where that was possible."""
        ahead = self._drawn.pop((client.id, round), None)
        return ahead.result() if ahead else self._pinned(client, round)

    def _pinned(self, client: Client, round: int) -> tuple[Tensor, Tensor]:
        draws = self.draw(client, round)
        if self.device.type != "cuda":
            return draws.batches, draws.uniforms
        return draws.batches.pin_memory(), draws.uniforms.pin_memory()

    def _draw_ahead(self, clients: Sequence[Client], round: int) -> None:
        """The draws of a round to come, while the GPU is busy; a few hundred clients' at most."""
        self._drawn.clear()
        self._drawn_for = round
        for client in clients[:200]:
            self._drawn[client.id, round] = self._workers.submit(self._pinned, client, round)

    # Tests

    @torch.no_grad()
    def evaluate_all(self, clients: Sequence[Client]) -> list[Tensor]:
        right: dict[int, Tensor] = {}

        def score(member: Client, outputs: dict[str, Tensor]) -> None:
            labels = self.test_pool.labels[self.test_pool.range(member.id)]
            right[member.id] = self.method.scores(member, outputs).argmax(1) == labels

        self._answer_all(clients, self.method.answers_with, score)
        here = _to_host(right)
        return [here[c.id] if c.id in here else self.eager.evaluate(c) for c in clients]

    @torch.no_grad()
    def embed(self, client: Client) -> Tensor:
        embeddings: list[Tensor] = []
        self._answer_all([client], ("backbone",), lambda _, outputs: embeddings.append(outputs["backbone"]))
        return embeddings[0] if embeddings else self.eager.embed(client)

    def _answer_all(self, clients: Sequence[Client], names: tuple[str, ...], use: Use) -> None:
        """Calls `use(member, outputs)` with what each client's networks make of its test images, (n, …) each."""
        self.warm_up(clients)
        with self.arithmetic():
            for wave in self._waves({c.id for c in clients}):
                for slot, chunk in wave:
                    with slot.lane():
                        slot.load(chunk, [self.rows[c.id] for c in chunk], [self.counters[c.id] for c in chunk])
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
                if client.id in self.moments:
                    state |= self._optimizer_state(client, family.layout)
        return state

    def _optimizer_state(self, client: Client, layout: Layout) -> dict[str, Tensor]:
        """As torch's optimisers name it."""
        moments, step = self.moments[client.id]
        state: dict[str, Tensor] = {}
        for index, (name, _) in enumerate(client.model.named_parameters()):
            if not layout.learns(name):
                continue
            entry, path = layout.entries[name], f"{client.id}.{index}"
            if self._adam:
                state[f"{path}.step"] = torch.tensor(float(step))
                state[f"{path}.exp_avg"] = entry.view(moments[0])
                state[f"{path}.exp_avg_sq"] = entry.view(moments[1])
            else:
                state[f"{path}.momentum_buffer"] = entry.view(moments[0])
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
                self._load_optimizer(client, family.layout, state)

    def _load_optimizer(self, client: Client, layout: Layout, state: dict[str, Tensor]) -> None:
        """What torch's optimisers have nothing about never had a gradient: its moments are zero."""
        moments, step = self._no_moments(client, layout), 0
        for index, (name, _) in enumerate(client.model.named_parameters()):
            if not layout.learns(name):
                continue
            entry, path = layout.entries[name], f"{client.id}.{index}"
            for row, moment in enumerate(("exp_avg", "exp_avg_sq") if self._adam else ("momentum_buffer",)):
                if f"{path}.{moment}" in state:
                    entry.view(moments[row]).copy_(state[f"{path}.{moment}"])
                    step = max(1, int(state.get(f"{path}.step", 0)))
        if step:
            self.moments[client.id] = (moments, step)

    @property
    def _adam(self) -> bool:
        return self.settings.optimizer == "adam"


class _Pool:
    """All clients' images of one split, one after another on the GPU."""

    def __init__(self, device: torch.device, images: dict[int, tuple[Tensor, Tensor]]):
        self.start: dict[int, int] = {}
        total = 0
        for client, (_, labels) in images.items():
            self.start[client], total = total, total + len(labels)
        first = next(iter(images.values()))[0]
        self.pixels = torch.empty((total, *first.shape[1:]), dtype=torch.uint8, device=device)
        self.labels = torch.empty(total, dtype=torch.int64, device=device)
        self.length = {client: len(labels) for client, (_, labels) in images.items()}
        for client, (pixels, labels) in images.items():
            self.pixels[self.range(client)] = pixels.to(device)
            self.labels[self.range(client)] = labels.to(device)

    def range(self, client: int) -> slice:
        return slice(self.start[client], self.start[client] + self.length[client])

    def places(self, client: int, start: int, count: int) -> Tensor:
        """`count` of a client's images from `start` on; past its last one, the last again."""
        wanted = torch.arange(start, start + count, device=self.pixels.device)
        return wanted.clamp_(max=self.length[client] - 1) + self.start[client]


def _read(found: dict[int, tuple[list[str], Tensor, int, int]]) -> dict[int, dict[str, float]]:
    """All sums of losses in one copy from the GPU, as means a step."""
    if not found:
        return {}
    columns = torch.stack([totals[:, g] for _, totals, g, _ in found.values()]).tolist()
    return {
        client: {name: value / steps for name, value in zip(names, column, strict=True)}
        for (client, (names, _, _, steps)), column in zip(found.items(), columns, strict=True)
    }


def _to_host(tensors: dict[int, Tensor]) -> dict[int, Tensor]:
    """Vectors of any lengths, brought over in one transfer."""
    if not tensors:
        return {}
    joined = torch.cat(list(tensors.values())).cpu()
    return dict(zip(tensors, torch.split(joined, [len(v) for v in tensors.values()]), strict=True))
