"""Two of ten real peers poison their letters: what the others lose, by the mean and by the median.

    python results/trust/peers.py --out runs/peers > results/trust/peers.md

Ten processes on this machine train over QUIC with mutual TLS. The attackers train as everybody does, but write other
letters. A round waits for every letter, so a run has the same result each time. Accuracy is the mean over the honest
peers. The page is written from the runs; runs that are finished are not run again. It takes a quarter of an hour on two
cores.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from poison import ATTACKS, LIMIT, METHODS, PLACES, SPREAD, TOGETHER, poisoned

from mapl import Letter, Recipe
from mapl.analysis.compare import Estimate
from mapl.keys import generator
from mapl.network.refused import total
from mapl.peer.local import LocalNetwork, make_network
from mapl.peer.settings import read_settings
from mapl.runs.folder import load
from mapl.trees import Tree, merge

RULES = ("mean", "median")
RECIPE: Tree = {
    "data": "digits",
    "clients": 10,
    "rounds": 16,
    "evaluate": {"moment": "mixed", "every": 100},
    "engine": {"device": "cpu", "workers": 1},
    "train": {"threads": 1},
}
"""That of the simulated runs of poison.py."""
PATIENT: Tree = {"wait": {"patience": 300.0, "first": 300.0, "staleness": 0}}
MINUTES = 10.0
"""The longest that one run may take."""


@dataclass(frozen=True)
class Case:
    """One run of ten peers."""

    attack: str
    """"none", or a kind of attack."""
    place: str
    rule: str
    seed: int

    @property
    def file(self) -> str:
        return f"{self.attack}-{self.place}-{self.rule}-{self.seed}.json".replace(" ", "_")


@dataclass(frozen=True)
class Outcome:
    """What a run left."""

    accuracy: list[float]
    """Of every peer."""
    arrived: int
    """How many letters honest peers got."""
    refused: int
    """How many of them they left out."""
    seconds: float


def attack(case: Case, number: int) -> None:
    """Called first in a peer's process. An attacker encodes other letters than it writes."""
    if case.attack == "none" or number not in PLACES[case.place]:
        return
    import mapl.peer.post as post

    honest = post.encode

    def encode(letter: Letter) -> bytes:
        draw = generator(case.seed, letter.sender, letter.round, "poison")
        changed = {
            name: poisoned(tensor, name, case.attack, draw) if tensor.is_floating_point() else tensor
            for name, tensor in letter.tensors.items()
        }
        return honest(replace(letter, tensors=changed))

    post.encode = encode


def carry_out(case: Case) -> Outcome:
    tree = merge(merge(RECIPE, METHODS["courier"]), {"seed": case.seed, "network": {"mixing": case.rule}})
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = make_network(Path(folder) / "net", Recipe.of(**tree), PATIENT)
        with LocalNetwork(files, functools.partial(attack, case)) as network:
            network.start_all()
            ended = network.wait(60 * MINUTES)
            assert ended, "a peer has not ended"
            logs = [(file.parent / "peer.log").read_text()[-300:] for file in files]
            assert all(network.status(number) == 0 for number in range(len(files))), logs
        records = [load(read_settings(file).run) for file in files]
    seconds = time.monotonic() - begin
    last = [record.rounds[-1].accuracy for record in records]
    lines = [line for number, one in enumerate(records) if number not in PLACES[case.place] for line in one.rounds]
    arrived, refused = sum(line.messages for line in lines), sum(total(line.refused) for line in lines)
    return Outcome([one[0] for one in last if one], arrived, refused, seconds)


def cases(seeds: int) -> Iterator[Case]:
    for seed in range(seeds):
        for rule in RULES:
            yield Case("none", SPREAD, rule, seed)
            yield from (Case(kind, SPREAD, rule, seed) for kind in ATTACKS)
            yield Case("flip", TOGETHER, rule, seed)


class Page:
    """The tables, from the outcomes of all runs."""

    def __init__(self, outcomes: Mapping[Case, Outcome], seeds: int):
        self.outcomes, self.seeds = outcomes, seeds

    def lines(self) -> Iterator[str]:
        yield "# Poisoned letters between real peers"
        yield ""
        yield (
            "Two of ten peers poison their letters. Each peer is a process; they train over QUIC with mutual TLS. "
            "Written by [`peers.py`](peers.py): `python results/trust/peers.py --out runs/peers > "
            f"results/trust/peers.md`, at commit {commit()}. [`docs/robust.md`](../../docs/robust.md) explains the "
            "rules. [`poison.md`](poison.md) has all rules and more methods, simulated."
        )
        yield ""
        yield (
            f"Couriers on handwritten digits, two clusters of five, {RECIPE['rounds']} rounds, {self.seeds} seeds, "
            "tested after mixing. Numbers are changes of the honest peers' mean accuracy, in points, against the run "
            "in which nobody attacks and letters are averaged by the mean; ± is the 95 % interval over seeds. "
            f"**Bold**: on average it loses {100 * LIMIT:.0f} points or more. Attackers change every floating-point "
            "tensor of their letters in every round. Letters pass the usual checks "
            "([docs/letters.md](../../docs/letters.md)). They leave out what is scaled by 100."
        )
        plain = Estimate.of([self.honest("none", SPREAD, "mean", seed) for seed in range(self.seeds)])
        yield from ("", f"Nobody attacks, mean: {plain.text()} %.", "")
        kinds = [("none", SPREAD), *((kind, SPREAD) for kind in ATTACKS), ("flip", TOGETHER)]
        titles = ["nobody attacks", *ATTACKS.values(), f"{ATTACKS['flip']}, {TOGETHER}"]
        yield f"| mixing | {' | '.join(titles)} |"
        yield "|---" * (1 + len(titles)) + "|"
        for rule in RULES:
            yield f"| {rule} | {' | '.join(self.change(*kind, rule) for kind in kinds)} |"
        yield from ("", f"Attackers: {SPREAD}, except in the last column.")
        yield from ("", "How many letters honest peers left out, of those that they got, in all seeds:", "")
        yield f"| mixing | {' | '.join(titles)} |"
        yield "|---" * (1 + len(titles)) + "|"
        for rule in RULES:
            yield f"| {rule} | {' | '.join(self.left_out(*kind, rule) for kind in kinds)} |"
        slowest = max(outcome.seconds for outcome in self.outcomes.values())
        yield from ("", f"The slowest run took {slowest:.0f} s on two cores, with other work beside it.")

    def honest(self, kind: str, place: str, rule: str, seed: int) -> float:
        """The mean accuracy of those who are honest if attackers are in this place."""
        accuracy = self.outcomes[Case(kind, place if kind != "none" else SPREAD, rule, seed)].accuracy
        return fmean(one for number, one in enumerate(accuracy) if number not in PLACES[place])

    def change(self, kind: str, place: str, rule: str) -> str:
        """Against the mean when nobody attacks, seed by seed."""
        seeds = range(self.seeds)
        lost = [self.honest(kind, place, rule, s) - self.honest("none", place, "mean", s) for s in seeds]
        estimate = Estimate.of(lost)
        text = estimate.text(sign="+")
        return f"**{text}**" if estimate.mean <= -LIMIT else text

    def left_out(self, kind: str, place: str, rule: str) -> str:
        found = [self.outcomes[Case(kind, place, rule, seed)] for seed in range(self.seeds)]
        return f"{sum(one.refused for one in found):,} of {sum(one.arrived for one in found):,}"


def commit() -> str:
    """The code that runs here."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/peers"), help="folder for the outcomes")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    planned = list(cases(options.seeds))
    for case in planned:  # one after the other: a run has ten processes
        path = options.out / case.file
        if not path.exists():
            path.write_text(json.dumps(asdict(carry_out(case))))
    outcomes = {case: Outcome(**json.loads((options.out / case.file).read_text())) for case in planned}
    print("\n".join(Page(outcomes, options.seeds).lines()))


if __name__ == "__main__":
    main()
