"""One round for any part of the network: over bytes, over a network that loses letters, and divided among processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mapl.methods
from conftest import assert_same, parameters, play, row_of, skip_without_umap, small
from mapl import Client, Dataset, Inbox, Letter, MaplError, Recipe
from mapl.data.partition import partition
from mapl.keys import generator
from mapl.methods.mapl import Mapl
from mapl.network import THIS_ROUND, EncodedPost, Mail, MemoryPost, decode, encode
from mapl.plugins import known
from mapl.runs.client_data import load_data
from mapl.runs.exchange import Exchange, look_around
from mapl.runs.part import Part, build_part

METHODS = list(known(mapl.methods))
CLIENTS = 6


def recipe(name: str, rounds: int = 4, **over: Any) -> Recipe:
    skip_without_umap(name)
    if known(mapl.methods)[name].homogeneous:
        over = {"model": {"backbones": ["mlp"]}, **over}
    warmup = {"method": {"warmup": 2}} if "warmup" in known(mapl.methods)[name].Settings.model_fields else {}
    return small(name, clients=CLIENTS, rounds=rounds, **warmup, **over)


def all_of(part: Part) -> dict[str, torch.Tensor]:
    """Every client's parameters, state and row of W."""
    rows = {f"{c.id}.row": row_of(c, CLIENTS) for c in part.clients}
    return parameters(part) | rows | {f"{c.id}.{name}": t for c in part.clients for name, t in c.state.items()}


# Over bytes


@pytest.mark.parametrize("topology", ["full", "ring"])
@pytest.mark.parametrize("name", METHODS)
def test_over_bytes_a_run_is_the_same_to_the_bit(name: str, topology: str) -> None:
    network = {"topology": {"name": topology}}
    memory = play(recipe(name, network=network))
    encoded = play(recipe(name, network={**network, "transport": "bytes"}))
    assert isinstance(encoded.transport, EncodedPost)
    assert isinstance(memory.transport, MemoryPost)
    assert encoded.lines == memory.lines
    assert_same(all_of(encoded), all_of(memory))


@pytest.mark.parametrize("name", METHODS)
def test_every_letter_fits_the_schema_that_its_reader_expects_and_no_other(name: str) -> None:
    """Over bytes a letter with another shape, another dtype or another name is refused."""
    part = build_part(recipe(name, network={"transport": "bytes"}))
    seen: list[tuple[Letter, Any]] = []

    class Watched(EncodedPost):
        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            for reader, asked in mail.requests.items():
                letters = [mail.personal.get(reader) or mail.letters.get(sender) for sender in asked.tolist()]
                seen.extend((letter, mail.expects(reader)) for letter in letters if letter)
            return super().exchange(mail)

    part.transport = Watched()
    play(part.recipe, part=part)
    assert len(seen) == part.ledger.messages
    assert bool(seen) == (not part.method.silent)
    for letter, schema in seen[:: max(1, len(seen) // 8)]:
        name_, tensor = next(iter(letter.tensors.items()))
        for changed in (
            {**letter.tensors, name_: tensor.double() if tensor.is_floating_point() else tensor.int()},
            {**letter.tensors, name_: torch.stack([tensor, tensor])},
            {**letter.tensors, "more": torch.zeros(1)},
            {key: value for key, value in letter.tensors.items() if key != name_},
        ):
            with pytest.raises(MaplError):
                decode(encode(replace(letter, tensors=changed)), schema)


def test_a_backbone_of_another_architecture_may_have_any_length_and_of_ones_own_may_not() -> None:
    part = build_part(recipe("mapl+"))
    look_around(part.method, part.clients, None, part.topology, 0)
    mlp, cnn, *_, again = part.clients[:5]  # four backbones: the fifth client has the first one's
    assert mlp.architecture == again.architecture != cnn.architecture
    exchange = Exchange(part.method, part.clients, None, part.transport, part.ledger, 0)
    schema = exchange._schema(mlp, "letters")
    for sender in (cnn, again):
        decode(encode(part.method.letter(sender, 0)), schema)
    letter = part.method.letter(again, 0)
    longer = {**letter.tensors, "backbone": torch.cat([letter.tensors["backbone"], torch.zeros(1)])}
    with pytest.raises(MaplError, match="backbone"):
        decode(encode(replace(letter, tensors=longer)), schema)


# Over a network that loses, delays, repeats and reorders


class Faulty:
    """A transport that loses a tenth of all letters, delivers a tenth a round late, some twice, in any order.

    It says nothing of rounds, so letters of any earlier one may be read.
    """

    def __init__(self, seed: int, lost: float = 0.1, late: float = 0.1, twice: float = 0.2) -> None:
        self.draw, self.lost, self.late, self.twice = random.Random(seed), lost, late, twice
        self.waiting: dict[tuple[int, str], list[bytes]] = {}
        self.counts = dict.fromkeys(("lost", "late", "twice", "refused", "stale"), 0)

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        return {reader: self.inbox(mail, reader, asked.tolist()) for reader, asked in mail.requests.items()}

    def inbox(self, mail: Mail, reader: int, asked: Sequence[int]) -> Inbox:
        if not asked:
            return Inbox.of([])
        arrived = self.waiting.pop((reader, mail.leg), [])
        for sender in asked:
            letter = mail.personal.get(reader) or mail.letters.get(sender)
            if letter is not None:
                arrived += self.copies(encode(letter), (reader, mail.leg))
        self.draw.shuffle(arrived)
        schema, letters = replace(mail.expects(reader), round=None), []
        for data in arrived:
            try:
                letters.append(decode(data, schema))
            except MaplError:  # written in a round whose letters looked different
                self.counts["refused"] += 1
        letters = [letter for letter in letters if letter.sender in asked]
        self.counts["stale"] += sum(letter.round < mail.round for letter in letters)
        return Inbox.of(letters)

    def copies(self, data: bytes, to: tuple[int, str]) -> list[bytes]:
        fate = self.draw.random()
        if fate < self.lost:
            self.counts["lost"] += 1
            return []
        if fate < self.lost + self.late:
            self.counts["late"] += 1
            self.waiting.setdefault(to, []).append(data)
            return []
        if fate < self.lost + self.late + self.twice:
            self.counts["twice"] += 1
            return [data, data]
        return [data]


@pytest.mark.parametrize("name", METHODS)
def test_letters_that_are_lost_late_or_repeated_stop_nobody(name: str) -> None:
    faulty = Faulty(seed=0)
    made = recipe(name, rounds=20, evaluate={"every": 10}, network={"topology": {"name": "full"}})
    part = play(made, part=build_part(made, transport=faulty))
    assert part.round == 20
    for tensor in all_of(part).values():
        assert tensor.isfinite().all()
    if not part.method.silent:
        # ProxyFL asks somebody else in the next round, so a late letter finds no reader.
        kinds = ("lost", "late", "twice", *(() if name == "proxyfl" else ("stale",)))
        assert min(faulty.counts[kind] for kind in kinds) > 0
    reasons = {reason for line in part.lines for counts in (line.refused or {}).values() for reason in counts}
    assert "round" not in reasons  # a late letter is read
    for client in part.clients:
        assert np.isclose(client.peers.weights.sum(), 1)


@pytest.mark.parametrize("name", METHODS)
def test_a_network_that_carries_nothing_is_no_network(name: str) -> None:
    """All letters lost: every client ends as its control arm without letters does, to the bit."""
    lost, alone = recipe(name), recipe(name, network={"topology": {"name": "none"}})
    part = play(lost, part=build_part(lost, transport=Faulty(0, lost=1)))
    assert part.ledger.messages == 0
    assert_same(parameters(part), parameters(play(alone)))


def test_a_peer_that_goes_and_comes_back_is_met_once() -> None:
    """Peers appear and go between rounds: what a client knows grows with those it met."""
    made = recipe("mapl", rounds=6)
    part = build_part(made)

    class Partial(MemoryPost):
        def exchange(self, mail: Mail) -> dict[int, Inbox]:
            gone = {0: {3, 4, 5}, 1: {4, 5}, 2: {1, 2}}.get(mail.round, set())
            return super().exchange(replace(mail, letters={i: x for i, x in mail.letters.items() if i not in gone}))

    part.transport = Partial()
    known_to_0 = []
    for rounds in range(1, 5):
        play(made, rounds=rounds, part=part)
        known_to_0.append(part.clients[0].peers.ids.tolist())
    assert known_to_0 == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


# Divided among processes


class Hub:
    """Joins the parts of one network, each in a thread of its own. Nothing but bytes goes between them.

    One part works at a time: they stand for processes, and threads would share torch's global generator.
    """

    rounds = THIS_ROUND

    def __init__(self, parts: int) -> None:
        self.barrier = threading.Barrier(parts, timeout=60)
        self.turn = threading.Lock()
        self.letters: dict[tuple[int, str, int, int | None], bytes] = {}

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        for sender, letter in mail.letters.items():
            self.letters[mail.round, mail.leg, sender, None] = encode(letter)
        for reader, letter in mail.personal.items():
            self.letters[mail.round, mail.leg, letter.sender, reader] = encode(letter)
        self.wait_for_all()
        inboxes = {reader: self.inbox(mail, reader, asked.tolist()) for reader, asked in mail.requests.items()}
        self.wait_for_all()
        return inboxes

    def wait_for_all(self) -> None:
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()

    def inbox(self, mail: Mail, reader: int, asked: Sequence[int]) -> Inbox:
        if not asked:
            return Inbox.of([])
        schema = mail.expects(reader)
        keys = [(mail.round, mail.leg, sender, to) for sender in asked for to in (reader, None)]
        return Inbox.of([decode(self.letters[key], schema) for key in keys if key in self.letters])


def in_parts(made: Recipe, division: Sequence[Sequence[int]], build: Callable[..., Part] = build_part) -> list[Part]:
    """The parts of a network after all rounds. The first holds the server, if there is one."""
    hub = Hub(len(division))
    parts = [build(made, holds=held, serves=i == 0, transport=hub) for i, held in enumerate(division)]
    errors: list[BaseException] = []

    def work(part: Part) -> None:
        with hub.turn:
            try:
                play(made, part=part)
            except BaseException as error:
                errors.append(error)
                hub.barrier.abort()

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return parts


@pytest.mark.parametrize("division", [[[0, 1, 2], [3, 4, 5]], [[1, 4], [0, 2, 3, 5]]], ids=["halves", "mixed"])
@pytest.mark.parametrize("name", METHODS)
def test_a_network_in_two_parts_is_the_same_network_to_the_bit(name: str, division: list[list[int]]) -> None:
    made = recipe(name)
    whole, parts = play(made), in_parts(made, division)
    together: dict[str, torch.Tensor] = {}
    for part in parts:
        together |= all_of(part)
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(whole).items())))
    assert sum(part.ledger.messages for part in parts) == whole.ledger.messages
    assert sum(part.ledger.bytes for part in parts) == whole.ledger.bytes
    for part, held in zip(parts, division, strict=True):
        for line, all_lines in zip(part.lines, whole.lines, strict=True):
            assert line.accuracy == [all_lines.accuracy[i] for i in sorted(held)]


def test_one_client_per_part() -> None:
    made = recipe("mapl", rounds=3)
    parts = in_parts(made, [[i] for i in range(CLIENTS)])
    together = {name: tensor for part in parts for name, tensor in all_of(part).items()}
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(play(made)).items())))


def own_data(made: Recipe) -> dict[int, Dataset]:
    """What each client holds, as a data set of its own."""
    dataset = load_data(made)
    shards = partition(dataset, made.partition, made.clients, made.seed)
    return {
        i: replace(dataset, train=dataset.train.take(s.train), test=dataset.test.take(s.test))
        for i, s in enumerate(shards)
    }


def test_a_part_is_built_from_the_data_of_that_part_alone() -> None:
    made = recipe("mapl", rounds=2)
    data = own_data(made)

    def build(made: Recipe, holds: Sequence[int], **more: Any) -> Part:
        return build_part(made, {i: data[i] for i in holds}, holds=holds, **more)

    parts = in_parts(made, [[0, 3], [1, 2, 4, 5]], build)
    together = {name: tensor for part in parts for name, tensor in all_of(part).items()}
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(play(made)).items())))
    with pytest.raises(MaplError, match="client 1"):
        build_part(made, {0: data[0]}, holds=[0, 1])
    other = replace(data[1], mean=(0.25,))
    with pytest.raises(MaplError, match="0 and 1"):
        build_part(made, {0: data[0], 1: other}, holds=[0, 1])


def test_a_part_of_a_network_has_no_message_budget() -> None:
    made = recipe("mapl", network={"message_budget": 100})
    with pytest.raises(MaplError, match="message_budget"):
        build_part(made, holds=[0, 1])


class Noisy(Mapl):
    """Shares prototypes with noise: what a client mixes of itself is what it has, not what it wrote."""

    def contents(self, client: Client, round: int) -> dict[str, torch.Tensor]:
        tensors = super().contents(client, round)
        draw = generator(client.seed, client.id, round, "noise")
        return {**tensors, "prototypes": tensors["prototypes"] + torch.randn(10, 8, generator=draw)}


def test_a_client_mixes_what_it_has_and_not_what_it_wrote() -> None:
    made = [small("test_transports:Noisy", rounds=2, network={"transport": way}) for way in ("memory", "bytes")]
    assert_same(*(parameters(play(one)) for one in made))


class FarSighted(Mapl):
    """Asks for letters of clients that it cannot reach."""

    def wants(self, client: Client, round: int) -> torch.Tensor:
        return torch.tensor([i for i in range(CLIENTS) if i != client.id])


def test_a_method_asks_for_letters_of_neighbours_alone() -> None:
    ring = {"topology": {"name": "ring"}}
    with pytest.raises(MaplError, match="neighbours"):
        play(small("test_transports:FarSighted", clients=CLIENTS, network=ring))
    assert play(small("test_transports:FarSighted", clients=CLIENTS)).ledger.messages > 0


@pytest.mark.parametrize("held", [[], [-1], [0, CLIENTS]])
def test_a_part_holds_clients_that_there_are(held: list[int]) -> None:
    with pytest.raises(MaplError, match="holds"):
        build_part(recipe("mapl"), holds=held)


def test_data_of_clients_is_checked_before_anything_is_built() -> None:
    made = recipe("local")
    data = own_data(made)
    none = data[1].train.take(torch.empty(0, dtype=torch.long))
    for wrong, words in (
        ({**data, 1: replace(data[1], train=none)}, "client 1 has no training"),
        ({**data, 1: replace(data[1], test=none)}, "client 1 has no test"),
        ({**data, 1: None}, "client 1"),
        ({**data, CLIENTS: data[0]}, f"client {CLIENTS}"),
        ([data[0]], "list"),
    ):
        with pytest.raises(MaplError, match=words):
            build_part(made, wrong)  # type: ignore[arg-type]
