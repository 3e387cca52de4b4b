"""Two of ten senders poison their letters: what the mean loses, what each robust rule loses, what the graph resists.

    python results/trust/poison.py --out runs/poison > results/trust/poison.md

The attackers train as everybody does, but their letters are changed on the way. They are the same clients in every run.
Accuracy is the mean over the honest clients. The page is written from the runs; runs that are finished are not run
again. It takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from time import process_time

import torch
from torch import Tensor

import mapl.runs.exchange
from mapl import Letter, MaplError, Recipe
from mapl.analysis.compare import Estimate
from mapl.keys import generator
from mapl.network import THIS_ROUND, Inbox, Mail, MemoryPost, inspect
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round
from mapl.trees import Tree, merge

METHODS: dict[str, Tree] = {
    "courier": {"method": "courier", "model": {"backbones": ["mlp"]}},
    "mapl": {"method": {"name": "mapl", "warmup": 5}, "model": {"backbones": ["mlp"]}},
    "fedavg": {
        "method": "fedavg",
        "model": {"backbones": ["cnn"], "common_start": True},
        "partition": {"clusters": 1},
        "train": {"learning_rate": 0.003, "cosine_rounds": 24},
        "rounds": 24,
    },
}
TITLES = {
    "courier": "Courier, two clusters of five",
    "mapl": "MAPL, two clusters of five",
    "fedavg": "FedAvg, one cluster of ten, learning rate decayed to 0",
}
GRAPHS = ("courier", "mapl")
"""Methods that learn whom to listen to."""
PLACES = {"one in each cluster": (0, 5), "both in one cluster": (0, 1)}
SPREAD, TOGETHER = PLACES
RULES: dict[str, Tree] = {
    "mean": {"kind": "mean"},
    "clip": {"kind": "clip"},
    "trimmed": {"kind": "trimmed"},
    "median": {"kind": "median"},
    "geometric": {"kind": "geometric"},
}
WIDER: dict[str, Tree] = {"trimmed, 0.4": {"kind": "trimmed", "trim": 0.4}}
"""For two attackers among five: the default cuts off only one in five."""
ATTACKS = {"flip": "signs flipped", "scale": "scaled by 100", "noise": "noise of the same norm"}
HIDDEN = "hidden flip"
"""Signs flipped, except in what the learned graph looks at."""
LOOKED_AT = ("drift", "head")
COMMON: Tree = {
    "data": "digits",
    "rounds": 16,
    "evaluate": {"moment": "mixed", "every": 100},
    "engine": {"device": "cpu", "workers": 1},
}
LIMIT = 0.02


class Poisoned:
    """A transport on which the letters of some clients are changed, or lost."""

    rounds = THIS_ROUND

    def __init__(self, attackers: Sequence[int], attack: str, seed: int):
        self.attackers, self.attack, self.seed = attackers, attack, seed
        self.post = MemoryPost()

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        letters = {i: self.changed(letter) if i in self.attackers else letter for i, letter in mail.letters.items()}
        return self.post.exchange(replace(mail, letters={i: one for i, one in letters.items() if one is not None}))

    def changed(self, letter: Letter) -> Letter | None:
        """The letter as it arrives. Only tensors of floating-point numbers change."""
        if self.attack == "absent":
            return None
        draw = generator(self.seed, letter.sender, letter.round, "poison")
        tensors = {
            name: poisoned(tensor, name, self.attack, draw) if tensor.is_floating_point() else tensor
            for name, tensor in letter.tensors.items()
        }
        return replace(letter, tensors=tensors)


def poisoned(tensor: Tensor, name: str, attack: str, draw: torch.Generator) -> Tensor:
    if attack == "flip" or (attack == HIDDEN and name not in LOOKED_AT):
        return -tensor
    if attack == "scale":
        return 100 * tensor
    if attack == "noise":
        noise = torch.randn(tensor.shape, generator=draw)
        return noise * (tensor.norm() / noise.norm())
    return tensor


@dataclass(frozen=True)
class Case:
    """One run."""

    method: str
    attack: str
    """"none", "absent" (the attackers' letters never arrive), or a kind of attack."""
    place: str
    rule: str
    seed: int
    checked: bool = False
    """Whether letters are checked before they are mixed, as they always are outside of this script."""

    @property
    def file(self) -> str:
        checked = "-checked" if self.checked else ""
        return f"{self.method}-{self.attack}-{self.place}-{self.rule}-{self.seed}{checked}.json".replace(" ", "_")

    @property
    def attackers(self) -> tuple[int, ...]:
        return PLACES[self.place]


@dataclass(frozen=True)
class Outcome:
    """What a run left."""

    accuracy: list[float]
    """Of every client."""
    heard: float | None
    """The share of an honest client's weight that attackers have at the end, mean over honest clients."""
    seconds: float
    """CPU time of a round, median over rounds."""
    rounds: int
    """Played until a loss was no longer finite, or all of them."""


def unchecked(mail: Mail, inboxes: Mapping[int, Inbox], own: Mapping[int, Letter] | None) -> dict[int, Inbox]:
    """In the place of the inspection: every letter passes."""
    return dict(inboxes)


def carry_out(case: Case) -> Outcome:
    torch.set_num_threads(1)
    tree = merge(
        merge(COMMON, METHODS[case.method]), {"seed": case.seed, "network": {"mixing": (RULES | WIDER)[case.rule]}}
    )
    recipe = Recipe.of(**tree)
    mapl.runs.exchange.inspect = inspect if case.checked else unchecked
    part = build_part(recipe, transport=Poisoned(case.attackers, case.attack, case.seed))
    times = []
    for t in range(recipe.rounds):
        begin = process_time()
        try:
            play_round(part, t)
        except MaplError:  # a loss or a weight is no longer finite
            break
        times.append(process_time() - begin)
    accuracy = [float(answers.right[0].float().mean()) for answers in part.engine.evaluate_all(part.clients)]
    return Outcome(accuracy, heard(part, case.attackers), median(times or [0.0]), len(times))


def save(case: Case, out: Path) -> None:
    (out / case.file).write_text(json.dumps(asdict(carry_out(case))))


def heard(part: Part, attackers: Sequence[int]) -> float | None:
    shares = []
    for client in part.clients:
        row = part.method.weights(client)
        if row is not None and client.id not in attackers:
            bad = [i in attackers for i in row.ids.tolist()]
            shares.append(float(row.weights[bad].sum()))
    return fmean(shares) if shares else None


def cases(seeds: int) -> Iterator[Case]:
    """All runs, the main table first."""
    for seed in range(seeds):
        for method in METHODS:
            # Without attacks both places are the same run.
            yield from (Case(method, "none", SPREAD, rule, seed) for rule in RULES)
            yield Case(method, "absent", SPREAD, "mean", seed)
            yield from (Case(method, attack, SPREAD, rule, seed) for attack in ATTACKS for rule in RULES)
    for seed in range(seeds):
        yield from (Case("courier", HIDDEN, SPREAD, rule, seed) for rule in RULES)
        yield Case("courier", "absent", TOGETHER, "mean", seed)
        yield from (Case("courier", attack, TOGETHER, rule, seed) for attack in ATTACKS for rule in RULES | WIDER)
        yield from (
            Case(method, attack, SPREAD, "mean", seed, checked=True) for method in METHODS for attack in ATTACKS
        )


def rounds(method: str) -> int:
    """How many rounds its runs have: enough to come near its best accuracy."""
    number: int = merge(COMMON, METHODS[method])["rounds"]
    return number


class Page:
    """The tables, from the outcomes of all runs."""

    def __init__(self, outcomes: Mapping[Case, Outcome], seeds: int):
        self.outcomes, self.seeds = outcomes, seeds

    def lines(self) -> Iterator[str]:
        yield "# Poisoned letters"
        yield ""
        yield (
            "Two of ten clients poison their letters. Written by [`poison.py`](poison.py): "
            "`python results/trust/poison.py --out runs/poison > results/trust/poison.md`. "
            "[`docs/robust.md`](../../docs/robust.md) explains the rules."
        )
        yield ""
        yield (
            f"Handwritten digits, {self.seeds} seeds, tested after mixing. Numbers are "
            "changes of the honest clients' mean accuracy, in points, against the run in which nobody attacks and "
            "letters are averaged by the mean; ± is the 95 % interval over seeds. **Bold**: on average it loses "
            f"{100 * LIMIT:.0f} points or more. †: in at least one seed a loss was no longer finite, and the run "
            "stopped there. Attackers change every floating-point tensor of their letters in every round. Nothing but "
            "the rule protects the clients here, except in the section on checked letters: this script turns off the "
            "checks that letters pass before they are mixed."
        )
        for method, title in TITLES.items():
            yield from self.table(f"## {title}", method, SPREAD, ATTACKS, list(RULES))
        yield from self.table("## Courier, both attackers in one cluster", "courier", TOGETHER, ATTACKS, self.wider())
        yield from self.checked()
        yield from self.graph()
        hidden = {HIDDEN: "signs flipped, but not in the drift"}
        yield from self.table("## Courier, a flip that the graph cannot see", "courier", SPREAD, hidden, list(RULES))
        yield from self.costs()

    def checked(self) -> Iterator[str]:
        yield from ("", "## The mean, with letters checked", "")
        yield (
            "The same with the checks that every letter passes ([docs/letters.md](../../docs/letters.md)): one with a "
            "norm of more than 30 times the median of the others' is left out. Attackers: one in each cluster."
        )
        yield from ("", f"| method | {' | '.join(ATTACKS.values())} |", "|---" * (1 + len(ATTACKS)) + "|")
        for method in METHODS:
            yield f"| {method} | {' | '.join(self.change(method, a, 'mean', SPREAD, checked=True) for a in ATTACKS)} |"

    def wider(self) -> list[str]:
        return [*RULES, *WIDER]

    def table(
        self, title: str, method: str, place: str, attacks: Mapping[str, str], rules: Sequence[str]
    ) -> Iterator[str]:
        plain = Estimate.of([self.honest(method, "none", "mean", place, seed) for seed in range(self.seeds)])
        yield from ("", title, "")
        where = "" if method == "fedavg" else f"Attackers: {place}. "
        yield (
            f"{rounds(method)} rounds. {where}Nobody attacks: {plain.text()} %. The attackers' letters never arrive: "
            f"{self.change(method, 'absent', 'mean', place)}."
        )
        yield from ("", f"| mixing | nobody attacks | {' | '.join(attacks.values())} |")
        yield "|---" * (2 + len(attacks)) + "|"
        for rule in rules:
            untouched = self.change(method, "none", rule, place) if rule in RULES else ""
            cells = [untouched, *(self.change(method, attack, rule, place) for attack in attacks)]
            yield f"| {rule} | {' | '.join(cells)} |"

    def outcome(self, method: str, attack: str, rule: str, place: str, seed: int, checked: bool = False) -> Outcome:
        place = SPREAD if attack == "none" else place
        return self.outcomes[Case(method, attack, place, rule, seed, checked)]

    def honest(self, method: str, attack: str, rule: str, place: str, seed: int, checked: bool = False) -> float:
        """The honest clients' mean accuracy."""
        accuracy = self.outcome(method, attack, rule, place, seed, checked).accuracy
        return fmean(one for i, one in enumerate(accuracy) if i not in PLACES[place])

    def change(self, method: str, attack: str, rule: str, place: str, checked: bool = False) -> str:
        """Against the mean when nobody attacks, seed by seed."""
        seeds = range(self.seeds)
        differences = [
            self.honest(method, attack, rule, place, seed, checked) - self.honest(method, "none", "mean", place, seed)
            for seed in seeds
        ]
        estimate = Estimate.of(differences)
        ended = any(self.outcome(method, attack, rule, place, seed, checked).rounds < rounds(method) for seed in seeds)
        text = estimate.text(sign="+") + (" †" if ended else "")
        return f"**{text}**" if estimate.mean <= -LIMIT else text

    def graph(self) -> Iterator[str]:
        yield from ("", "## How much the learned graphs listen to attackers", "")
        yield (
            "The share of an honest client's weight that the two attackers have together at the end, mean over clients "
            "and seeds. This is the graph's own resistance: it decides before any rule mixes. Attackers one in each "
            "cluster, except in the last line."
        )
        yield from ("", f"| method | mixing | nobody attacks | {' | '.join(ATTACKS.values())} |")
        yield "|---|---|---|---|---|---|"
        for method, place in ((GRAPHS[0], SPREAD), (GRAPHS[1], SPREAD), (GRAPHS[0], TOGETHER)):
            for rule in ("mean", "median"):
                attacks = ([] if place == TOGETHER else ["none"]) + list(ATTACKS)
                shares = [
                    fmean(self.outcome(method, attack, rule, place, seed).heard or 0.0 for seed in range(self.seeds))
                    for attack in attacks
                ]
                cells = [f"{share:.2f}" for share in shares]
                name = f"{method}, {place}" if place == TOGETHER else method
                yield f"| {name} | {rule} | {' | '.join(cells if place == SPREAD else ['', *cells])} |"

    def costs(self) -> Iterator[str]:
        yield from ("", "## CPU time of a round", "")
        yield "Relative to the mean, training included; median over rounds, then over seeds. Nobody attacks."
        yield from ("", f"| method | {' | '.join(RULES)} | a round with the mean |", "|---" * (2 + len(RULES)) + "|")
        for method in METHODS:
            seconds = {
                rule: median(self.outcome(method, "none", rule, SPREAD, seed).seconds for seed in range(self.seeds))
                for rule in RULES
            }
            cells = [f"{one / seconds['mean']:.2f}" for one in seconds.values()]
            yield f"| {method} | {' | '.join(cells)} | {seconds['mean']:.2f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/poison"), help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--processes", type=int, default=2, help="how many runs at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    planned = list(cases(options.seeds))
    missing = [case for case in planned if not (options.out / case.file).exists()]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for future in [pool.submit(save, case, options.out) for case in missing]:
            future.result()
    outcomes = {case: Outcome(**json.loads((options.out / case.file).read_text())) for case in planned}
    print("\n".join(Page(outcomes, options.seeds).lines()))


if __name__ == "__main__":
    main()
