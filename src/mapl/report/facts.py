"""What was run, for somebody who has never seen a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import mapl.data.sources
import mapl.methods
from mapl.analysis.privacy import spent
from mapl.data.loading import GIVEN_IN_PYTHON
from mapl.data.partition import SCENARIOS
from mapl.errors import MaplError
from mapl.methods._base import Centralised
from mapl.network import TOPOLOGIES
from mapl.plugins import find, looking, summary
from mapl.recipe import Recipe
from mapl.report.curves import graph_start
from mapl.report.lines import Line
from mapl.report.text import count, listing, percent
from mapl.runs.record import Record, share_of_network


def title(lines: Sequence[Line]) -> str:
    recipes = [line.first.recipe for line in lines]
    methods = listing(recipe.method.name for recipe in recipes)
    return f"{methods} on {listing(recipe.data.name for recipe in recipes)}"


@looking()
def facts(lines: Sequence[Line]) -> dict[str, list[str]]:
    """What was run, by subject; several texts where arms differ."""
    recipes = [line.first.recipe for line in lines]
    runs = [run for line in lines for run in line.runs]
    entries = {
        "Method": _all(_method(recipe) for recipe in recipes),
        "Data": _all(_data(recipe) for recipe in recipes),
        "Scenario": _all(_scenario(recipe) for recipe in recipes),
        "Clients": _all(_clients(line.first) for line in lines),
        "Network": _all(_network(recipe) for recipe in recipes),
        "Training": _all(_training(recipe) for recipe in recipes),
        "Participation": _all(text for recipe in recipes if (text := _participation(recipe))),
        "Rounds": [_rounds(lines)],
        "Seeds": [f"{listing(sorted({run.recipe.seed for run in runs}))} ({count(len(runs), 'run')} in all)"],
        "Privacy": _all(budget for run in runs if (budget := spent(run))),
        "Form": _all(text for recipe in recipes for text in _forms(recipe)),
    }
    return {subject: texts for subject, texts in entries.items() if texts}


def _participation(recipe: Recipe) -> str:
    """Who does not take part in every round; empty if everybody does."""
    network, texts = recipe.network, []
    if network.participation < 1:
        texts.append(f"{percent(network.participation)} of the clients in each round, drawn anew")
    if late := network.joiners.clients:
        texts.append(f"the last {count(late, 'client')} from round {network.joiners.round + 1} on, with fresh models")
    return "; ".join(texts)


FORMS = {"paper": "as printed in the paper", "released": "as in the paper's released program"}


def _forms(recipe: Recipe) -> Iterator[str]:
    """Whether a run follows the printed paper or its released program, where the two differ."""
    method = recipe.method.model_dump(mode="json")
    if form := method.get("form"):
        yield f"losses {FORMS.get(form, form)}"
    if method.get("learn_graph") and recipe.network.topology.name != "none":
        relative = method["graph"]["confidence"] == "relative"
        words = ", with confidence relative to its mean" if relative else ""
        yield f"graph learning {FORMS[method['graph']['form']]}{words}"


def _all(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _method(recipe: Recipe) -> str:
    return _described(recipe.method.name, lambda: summary(find("method", recipe.method.name, mapl.methods)))


def _data(recipe: Recipe) -> str:
    if recipe.data.name == GIVEN_IN_PYTHON:
        return "given in Python"
    return _described(recipe.data.name, lambda: summary(find("data set", recipe.data.name, mapl.data.sources)))


def _described(name: str, description: Callable[[], str]) -> str:
    """A name and what it is, if that is known here."""
    try:
        text = description()
    except MaplError:
        text = ""
    return f"{name} – {text}" if text else name


def _scenario(recipe: Recipe) -> str:
    number = recipe.partition.scenario
    if recipe.partition.scheme != "scenario":
        return f"none; the data are split by the scheme {recipe.partition.short()!r}"
    return f"{number} – {SCENARIOS[number]}; {count(recipe.partition.clusters, 'cluster')}"


def _clients(record: Record) -> str:
    cards = record.clients
    backbones = Counter(card.backbone for card in cards)
    models = listing(f"{name} ({number})" for name, number in backbones.items())
    each = "all with the same backbone: " if len(backbones) == 1 else "each with a model of its own; backbones: "
    data = "the data of its whole cluster" if record.recipe.partition.pooled else "private data"
    number = str(len(cards))
    if not record.whole:
        number += f" (a part of a network: {share_of_network(record.held, record.recipe.clients)})"
    return (
        f"{number}, each with {data} ({_range([card.samples for card in cards])} training samples, "
        f"{_range([card.tests for card in cards])} test samples), {each}{models}"
    )


def _training(recipe: Recipe) -> str:
    train = recipe.train
    most = "" if train.steps is None else f", at most {train.steps:,} an epoch"
    return (
        f"optimiser {train.optimizer}, learning rate {train.learning_rate:g}, "
        f"{count(train.epochs, 'epoch')} a round, batches of {train.batch:,}{most}"
    )


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"


def _network(recipe: Recipe) -> str:
    name = recipe.network.topology.name
    if name != "none" and _has_server(recipe):
        return "a server in the middle"
    return f"{name} – {summary(TOPOLOGIES[name])}" if name in TOPOLOGIES else name


def _has_server(recipe: Recipe) -> bool:
    try:
        method = find("method", recipe.method.name, mapl.methods)
    except MaplError:
        return False
    return isinstance(method, type) and issubclass(method, Centralised)


def _rounds(lines: Sequence[Line]) -> str:
    text = listing(sorted({line.first.recipe.rounds for line in lines}))
    unfinished = [run for line in lines for run in line.runs if not run.finished]
    if unfinished:
        text += f"; not finished: {listing(f'{r.folder.name} ({len(r.rounds)} so far)' for r in unfinished)}"
    starts = sorted({start + 1 for line in lines if (start := graph_start(line)) is not None})
    return text + (f"; graph learning starts in round {listing(starts)}" if starts else "")
