"""Who writes a method that returns the wrong kind of thing reads one sentence: which method, which client, what then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import play, skip_without_umap, small
from mapl import MaplError
from mapl.client import Client, Peers
from mapl.methods._base import Centralised, Method, MethodSettings
from mapl.methods.fedavg import FedAvg
from mapl.methods.mapl import Mapl
from mapl.network import Inbox, Letter
from mapl.runs.contract import checked_wants
from mapl.runs.part import Part, build_part
from mapl.runs.round import graph

Change = Callable[[Any], Any]
"""What a function returned, made wrong."""


def part_where(name: str, function: str, change: Change, client: int = 2, **over: Any) -> Part:
    """A part whose method returns something else from one of its functions, for one client or the server."""
    part = build_part(small(name, rounds=2, model={"backbones": ["mlp"]}, **over))
    honest = getattr(part.method, function)

    def changed(node: Any, *rest: Any) -> Any:
        made = honest(node, *rest)
        return change(made) if not isinstance(node, Client) or node.id == client else made

    setattr(part.method, function, changed)
    return part


def said(part: Part) -> str:
    with pytest.raises(MaplError) as error:
        play(part.recipe, part=part)
    return str(error.value)


def with_a_list(letter: Letter) -> Letter:
    return replace(letter, tensors={"prototypes": [1.0, 2.0]})


WRONG: dict[str, list[tuple[str, Change, str, str]]] = {
    "mapl": [
        ("letter", lambda letter: dict(letter.tensors), "a dict", "client.letter("),
        ("letter", lambda letter: letter.tensors["prototypes"], "a tensor of float32 (10, 8)", "client.letter("),
        ("letter", with_a_list, "a list for 'prototypes'", "client.letter("),
        ("schema", lambda schema: tuple(schema.values()), "a tuple", "mapl.network.Spec"),
        ("schema", lambda schema: None, "a NoneType", "mapl.network.Spec"),
        ("schema", lambda schema: {"prototypes": (10, 8)}, "a tuple for 'prototypes'", "mapl.network.Spec"),
        ("wants", lambda wanted: wanted.tolist(), "a list", "client.neighbours"),
        ("wants", lambda wanted: wanted > 1, "a tensor of bool (3,)", "client.neighbours"),
        ("wants", lambda wanted: wanted.float(), "a tensor of float32 (3,)", "client.neighbours"),
        ("wants", lambda wanted: wanted[:1].squeeze(0), "a tensor of int64 ()", "client.neighbours"),
        ("wants", lambda wanted: torch.tensor([2]), "[2]", "client.neighbours"),
    ],
    "fedavg": [
        ("letter", lambda letter: dict(letter.tensors), "a dict", "client.letter("),
        ("schema", lambda schema: [*schema], "a list", "mapl.network.Spec"),
        ("reply", lambda letter: letter.tensors, "a dict", "server.letter("),
    ],
    "flt": [
        ("opening_schema", lambda schema: (*schema,), "a tuple", "mapl.network.Spec"),
        ("opening", lambda letter: letter.tensors, "a dict", "server.letter("),
        ("answer", lambda letter: letter.tensors, "a dict", "client.letter("),
    ],
}


@pytest.mark.parametrize(
    ("name", "function", "change", "got", "right"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_what_a_function_returns_is_named_with_method_and_client(
    name: str, function: str, change: Change, got: str, right: str
) -> None:
    skip_without_umap(name)
    words = said(part_where(name, function, change))
    assert f"method {name!r}" in words
    assert f"{function}()" in words
    assert "client 2" in words or "the server" in words
    assert got in words
    assert right in words
    assert "\n" not in words


@pytest.mark.parametrize("network", [{"letter_limit": 10**6}, {"compress": "int8"}, {"noise": {"clip": 1.0}}])
def test_letters_that_are_looked_at_before_the_first_round_are_named_then(network: dict[str, Any]) -> None:
    with pytest.raises(MaplError, match=r"method 'dict-writer': letter\(\) returned a dict for client 0"):
        build_part(small("test_contract:DictWriter", network=network))


class DictWriter(Mapl):
    """Forgets that a letter has a header."""

    name = "dict-writer"

    def letter(self, client: Client, round: int) -> Any:
        return {"prototypes": client.model.prototypes}


@pytest.mark.parametrize("contents", [torch.ones(3), {"head": [1.0]}, None])
def test_a_letter_has_named_tensors(contents: object) -> None:
    client = build_part(small(rounds=1)).clients[1]
    with pytest.raises(MaplError, match=r"node 1 in round 3.*by name"):
        client.letter(3, contents)  # type: ignore[arg-type]


def peers(**changed: object) -> Peers:
    made = {"ids": np.array([0, 2]), "weights": np.array([0.5, 0.5]), "samples": np.array([4, 4])}
    return Peers(**{**made, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (np.ones(4), "returned a ndarray"),
        ({0: 0.5, 2: 0.5}, "returned a dict"),
        (peers(weights=np.array([1.0])), "has weights"),
        (peers(weights=torch.ones(2)), "has weights"),
        (peers(samples=np.array([4.0, 4.0])), "has samples"),
        (peers(ids=np.array([2, 0])), "ids that do not ascend"),
        (peers(weights=np.array([1.5, -0.5])), "a weight below 0"),
    ],
)
def test_a_row_of_the_graph_that_could_not_be_saved(row: object, words: str) -> None:
    part = part_where("mapl", "weights", lambda honest: row)
    play(part.recipe, part=part)
    with pytest.raises(MaplError, match=r"method 'mapl'.*weights\(\).*client 2") as error:
        graph(part)
    assert words in str(error.value)


def test_a_row_that_can_be_saved_is_kept() -> None:
    part = part_where("mapl", "weights", lambda honest: peers())
    play(part.recipe, part=part)
    assert graph(part)[2].ids.tolist() == [0, 2]


class Nameless(Method[MethodSettings]):
    """Has no name, and reads an empty inbox as if it had letters."""

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": client.model(images).sum()}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        inbox.rows("head")


def test_an_error_in_absorb_names_the_client_the_round_and_how_many_letters_there_were() -> None:
    client = build_part(small("local")).clients[3]
    with pytest.raises(MaplError) as error:
        Nameless(MethodSettings()).absorb_all(5, [(client, Inbox.of([]))])
    assert error.value.__notes__ == ["in absorb() of client 3 in round 5, with 0 letters"]


def test_a_method_without_a_name_is_refused_with_a_sentence_too() -> None:
    client = build_part(small("local")).clients[0]
    with pytest.raises(MaplError, match=r"method 'unnamed': wants\(\) returned a list"):
        checked_wants(Nameless(MethodSettings()), client, [1])


class Collecting(Mapl):
    """Returns what it should write into its clients."""

    name = "collecting"

    def absorb_all(self, round: int, pairs: Any) -> Any:
        return {client.id: inbox.tensor("prototypes").mean(0) for client, inbox in pairs}


class Yielding(Mapl):
    """Would never run: a generator does nothing until somebody asks for its first value."""

    name = "yielding"

    def absorb_all(self, round: int, pairs: Any) -> Any:
        for client, inbox in pairs:
            yield self.absorb(client, round, inbox)


@pytest.mark.parametrize("name", ["Collecting", "Yielding"])
def test_absorbing_happens_in_place(name: str) -> None:
    part = build_part(small(f"test_contract:{name}"))
    kind = {"Collecting": "a dict", "Yielding": "a generator"}[name]
    assert f"method {name.lower()!r}: absorb_all() returned {kind}" in said(part)


def test_a_method_with_a_server_that_says_too_little() -> None:
    class Silent(FedAvg):
        schema = Centralised.schema

    part = build_part(small("fedavg", model={"backbones": ["mlp"]}))
    part.method = Silent(part.method.settings)
    assert "give it a schema()" in said(part)
