"""What `resume` does with a run's folder before it goes on: find out what is intact, repair what it can, and say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mapl.errors import MaplError, warn
from mapl.recipe import Recipe
from mapl.runs import checkpoint
from mapl.runs.chain import History, Round, cut_history, digest, read_history
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.files import write_aside
from mapl.runs.folder import (
    CLIENTS,
    HISTORY,
    RECIPE,
    TIMES,
    check_recipe,
    clients_file,
    intact_times,
    is_as_written,
    read_cards,
    read_times,
    write_recipe,
)
from mapl.runs.graph import Graph
from mapl.runs.player import Player
from mapl.runs.record import ClientCard
from mapl.runs.round import is_tested
from mapl.runs.saving import binding


def intact_history(folder: Path, recipe: Recipe) -> History:
    """The intact lines of a run's history. Refuses a recipe that is not the one that the run began with."""
    history, edited = read_history(folder / HISTORY), not is_as_written(folder)
    if history.header is not None:
        check_recipe(folder, history.header, recipe)
        if edited:
            warn(f"{str(folder / RECIPE)!r} was edited since the run wrote it; the run goes on with it as it is now")
    elif edited:
        raise MaplError(
            f"{str(folder / RECIPE)!r} was edited, and no line of {HISTORY} says what the run is: run it again"
        )
    return history


def restore_newest(folder: Path, player: Player, history: History) -> None:
    """Set a player to the newest checkpoint that fits the intact part of the folder."""
    cards = player.cards
    _mend_clients(folder, cards, history)
    intact, problem = len(history.entries), history.problem
    graph = Graph(folder, [card.id for card in cards], [entry.graph for entry in history.entries])
    rounds, graph_problem = graph.problem(intact)
    if rounds < intact:
        intact, problem = rounds, graph_problem
    if problem:
        warn(f"{problem}; only what was written before it can be used")
    elif history.torn:
        warn(f"the last line of {str(folder / HISTORY)!r} was cut off, as after a crash; its round is played again")
    saved = checkpoint.latest(folder, lambda saved: unfit(saved, history, intact, problem))
    if saved is not None:
        player.restore(saved)
        checkpoint.forget_newer(folder, saved.rounds)
    if len(history.entries) > player.round:
        warn(f"{str(folder)!r} has no usable checkpoint after round {player.round}: later rounds are played again")


def unfit(saved: Checkpoint, history: History, intact: int, problem: str) -> str:
    """Why a checkpoint does not fit a history with so many intact rounds; empty if it does."""
    if not binding(saved):
        return "it was written by an older version of mapl; run it again"
    if saved.rounds > intact:
        return f"it is from after round {saved.rounds}, but {problem or f'only {intact} rounds are recorded'}"
    if saved.rounds < 1 or binding(saved) != history.before(saved.rounds):
        return "it is from another run"
    return ""


def _mend_clients(folder: Path, today: list[ClientCard], history: History) -> None:
    """Write clients.json again if it was damaged; refuse other data than those that the run began with."""
    contents = clients_file(today)
    try:
        known, data = read_cards(folder)
    except MaplError as error:
        known, data = [], b""
        if history.header is None or history.header.clients == digest(contents):
            warn(f"{error}; it is written again")
    if data == contents:
        if history.header is not None and history.header.clients != digest(contents):
            raise MaplError(f"{str(folder / HISTORY)!r} is from another run than {CLIENTS}, according to its line 1")
        return
    if history.header is not None and history.header.clients == digest(contents):
        if known:
            warn(f"{str(folder / CLIENTS)!r} was changed, or is from another run; it is written again")
    elif known:
        check_same_data(folder, known, today)
        raise MaplError(f"the clients are not those of run {str(folder)!r} ({CLIENTS} differs): start a new run")
    elif history.header is not None:
        raise MaplError(f"{str(folder / CLIENTS)!r} is damaged, and the data are not those that the run began with")
    write_aside(folder / CLIENTS, contents)


def check_same_data(folder: Path, known: list[ClientCard], today: list[ClientCard]) -> None:
    """Refuse data that are not those of the run."""
    data = {card.id: card.data for card in today}
    others = [card.id for card in known if card.id in data and card.data != data[card.id]]
    if others:
        whose = "all clients" if len(others) == len(known) else f"client {others[0]}"
        raise MaplError(
            f"the data are not those of run {str(folder)!r}: images or labels of {whose} changed since it began; give "
            "it its own data, or start a new run"
        )


def cut_to(folder: Path, player: Player, history: History) -> str:
    """Cut the files after the last round played: later ones will be played again. Returns the hash to go on from."""

    def last(line: Round) -> Round:
        # The last round of a shorter run was tested only because it was the last.
        keeps_test = player.budget_is_spent or is_tested(player.recipe, line.round)
        return line if keeps_test else replace(line, accuracy=None, all_images=None, ways=None, measures=None)

    write_recipe(folder, player.recipe)
    _cut_times(folder, history, player.round)
    return cut_history(folder / HISTORY, history, player.round, last)


def _cut_times(folder: Path, history: History, rounds: int) -> None:
    """Keep the times of the first `rounds` rounds. A line that is damaged is dropped: a run does not need its times."""
    intact, damaged = _times(folder, history)
    if damaged:
        warn(f"{str(folder / TIMES)!r}: {len(damaged)} damaged lines are dropped (first: line {damaged[0]})")
    kept = b"".join(line + b"\n" for round, line in intact.items() if round < rounds)
    write_aside(folder / TIMES, kept)


def _times(folder: Path, history: History) -> tuple[Mapping[int, bytes], list[int]]:
    try:
        return intact_times(read_times(folder), history)
    except MaplError as error:
        warn(str(error))
        return {}, []
