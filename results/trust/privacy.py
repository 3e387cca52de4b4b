"""What do letters reveal? Membership inference by a peer, on digits, with and without noise.

    python results/trust/privacy.py --out runs/privacy --plot results/trust/privacy.png > results/trust/privacy.md

The setting is the demo's: ten clients, two clusters, 25 training images per client, 45 rounds. For every client
(the victim) another client of its cluster (the attacker) takes the victim's letters and says of images whether the
victim trained on them. Members are the victim's training images. The others are images of the same classes that no
client trains on. An attacker knows the label of an image, its own networks, and the letters of all clients of its
cluster.

An attack gives each image a score: how much better the victim's letter fits it than the letters of the others in the
cluster do (a likelihood ratio with the other clients as reference models). Scores are standardised per letter and
averaged over the letters of every third round, which also averages out noise. Nothing needs a gradient. Outcomes that
are in the folder already are not computed again.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from mapl.analysis.compare import Estimate
from mapl.data.partition import partition
from mapl.methods._mixing import load_flat
from mapl.network import Inbox, Letter, Mail, MemoryPost, epsilon
from mapl.recipe import Recipe
from mapl.runs.client_data import load_data
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

EVERY = 3
"""Rounds between the letters that the attacker uses."""
FALSE_ALARMS = 0.01

CLIPS = {"courier": 30.0, "mapl": 4.0}
"""The norm of most letters of the last round, or a little more, so that clipping by itself changes little."""
MULTIPLIERS: dict[str, tuple[float, ...]] = {
    "courier": (0.001, 0.003, 7.0),
    "mapl": (0.03, 7.0),
    "fedproto": (),
    "fedavg": (),
}
"""Levels of noise. The last one has ε ≈ 10."""

Scores = NDArray[np.float64]


class Tap(MemoryPost):
    """The in-memory post, which keeps a copy of what clients write."""

    def __init__(self) -> None:
        self.letters: dict[int, Letter] = {}

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        if mail.leg == "letters":
            self.letters = {
                sender: replace(letter, tensors={name: tensor.clone() for name, tensor in letter.tensors.items()})
                for sender, letter in mail.letters.items()
            }
        return super().exchange(mail)


@dataclass(frozen=True)
class Job:
    method: str
    multiplier: float | None
    seed: int

    def recipe(self) -> Recipe:
        noise = {} if self.multiplier is None else {"clip": CLIPS[self.method], "multiplier": self.multiplier}
        return Recipe.of(
            data="digits",
            method=self.method,
            seed=self.seed,
            network={"noise": noise},
            evaluate={"moment": "mixed"},
            engine={"device": "cpu", "workers": 1},
        )


@dataclass(frozen=True)
class Outcome:
    accuracy: float
    epsilon: float
    auc: dict[str, float]
    """By attack: the mean over victims."""
    found: dict[str, float]
    """By attack: the share of members found at 1 % false alarms, mean over victims."""
    classes: dict[str, float]
    """By guess: the AUC of telling classes that the victim has from those that it lacks, mean over victims."""


def carry_out(job: Job) -> Outcome:
    """Play a run, attack it, and measure how well that works."""
    torch.set_num_threads(1)
    recipe, tap = job.recipe(), Tap()
    part = build_part(recipe, transport=tap)
    dataset = load_data(recipe)
    images, labels = part.engine.augmentation.normalise(dataset.train.inputs), dataset.train.labels
    evidence: dict[str, list[Scores]] = {}
    guesses: dict[str, Scores] = {}
    for t in range(recipe.rounds):
        line, _ = play_round(part, t)
        if (t + 1) % EVERY == 0:
            for name, fit in fits_of(part, tap.letters, images, labels).items():
                evidence.setdefault(name, []).append(fit)
            guesses = class_guesses(job.method, tap.letters)
    shards = partition(dataset, recipe.partition, recipe.clients, recipe.seed)
    clusters = np.array([shard.cluster for shard in shards])
    trained_on = np.zeros((len(shards), len(labels)), dtype=bool)
    for client, shard in enumerate(shards):
        trained_on[client, shard.train.numpy()] = True
    auc: dict[str, float] = {}
    found: dict[str, float] = {}
    for name, rounds in evidence.items():
        for title, some in ((name, rounds), (f"{name}, last letter alone", rounds[-1:])):
            measured = [attack(some, victim, clusters, trained_on, labels.numpy()) for victim in range(len(shards))]
            auc[title], found[title] = (fmean(column) for column in zip(*measured, strict=True))
    has = np.array([[k in shard.classes for k in range(dataset.classes)] for shard in shards])
    classes = {name: fmean(map(roc_auc_score, has, guess)) for name, guess in guesses.items()}
    assert line.accuracy is not None
    spent = epsilon(recipe.network.noise, recipe.rounds)
    return Outcome(fmean(line.accuracy), spent, auc, found, classes)


def attack(
    fits: Sequence[Scores],
    victim: int,
    clusters: NDArray[np.int64],
    trained_on: NDArray[np.bool_],
    labels: NDArray[np.int64],
) -> tuple[float, float]:
    """AUC, and the share of members found at 1 % false alarms. `fits`: by letter, as `fits_of` has them."""
    others = np.flatnonzero((clusters == clusters[victim]) & (np.arange(len(clusters)) != victim))
    attacker = others[np.searchsorted(others, victim) % len(others)]
    ratios = [fit[attacker, victim] - fit[attacker, others].mean(axis=0) for fit in fits]
    scores = np.mean([ratio / ratio.std() for ratio in ratios], axis=0)
    members = trained_on[victim]
    outside = ~trained_on.any(axis=0) & np.isin(labels, np.unique(labels[members]))
    asked = members | outside
    false, true, _ = roc_curve(members[asked], scores[asked], drop_intermediate=False)
    return float(roc_auc_score(members[asked], scores[asked])), float(true[false <= FALSE_ALARMS].max())


# How well a writer's letter fits images, in the eyes of an attacker: (attackers, writers, images)


@torch.no_grad()
def fits_of(part: Part, letters: Mapping[int, Letter], images: Tensor, labels: Tensor) -> dict[str, Scores]:
    method = part.recipe.method.name
    if method == "courier":
        return {"courier": _same_for_all(part, letters, "courier", images, labels)}
    if method == "fedavg":
        return {"whole network": _same_for_all(part, letters, "model", images, labels)}
    seen = [_eval(client.model.backbone)(images) for client in part.clients]
    if method == "fedproto":
        return {"mean embeddings": _each(seen, letters, lambda z, letter: _closeness(z, letter, labels))}
    found = {"learned prototypes": _each(seen, letters, lambda z, letter: _likeness(z, letter, labels))}
    if all("head" in letter.tensors for letter in letters.values()):
        found["head"] = _each(seen, letters, lambda z, letter: _margin(z @ letter.tensors["head"].T, labels))
    return found


def _same_for_all(part: Part, letters: Mapping[int, Letter], name: str, images: Tensor, labels: Tensor) -> Scores:
    """Of a whole network: it needs nothing of the attacker's."""
    client = part.clients[0]
    if name == "courier":
        network: nn.Module = copy.deepcopy(client.model.own["courier"])
        run: Callable[[Tensor], Tensor] = network
        modules = [network]
    else:
        model = copy.deepcopy(client.model)
        modules, run = [model.backbone, model.head], lambda x: model.classify(model.embed(x))
    rows = []
    for letter in letters.values():
        load_flat(letter.tensors[name], *modules)
        for module in modules:
            module.eval()
        rows.append(_margin(run(images), labels))
    fit = torch.stack(rows).double().numpy()
    return np.broadcast_to(fit, (len(letters), *fit.shape))


def _each(seen: Sequence[Tensor], letters: Mapping[int, Letter], fit: Callable[[Tensor, Letter], Tensor]) -> Scores:
    """For a letter that needs a backbone: every attacker has its own."""
    rows = [torch.stack([fit(embedding, letter) for letter in letters.values()]) for embedding in seen]
    return torch.stack(rows).double().numpy()


def _eval(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).eval()


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """log p − log(1 − p) of the label: unlike the loss, it is not squeezed together where the network is sure."""
    mine = logits.double().gather(1, labels.unsqueeze(1)).squeeze(1)
    rest = logits.double().scatter(1, labels.unsqueeze(1), -torch.inf)
    return mine - rest.logsumexp(1)


def _closeness(embedding: Tensor, letter: Letter, labels: Tensor) -> Tensor:
    return -(embedding - letter.tensors["prototypes"][labels]).square().sum(1)


def _likeness(embedding: Tensor, letter: Letter, labels: Tensor) -> Tensor:
    return torch.cosine_similarity(embedding, letter.tensors["prototypes"][labels])


def class_guesses(method: str, letters: Mapping[int, Letter]) -> dict[str, Scores]:
    """How likely a writer has each class (writers, K), from its last letter alone.

    An attacker learns the signs from its own letters, because it knows its own classes.
    """
    guesses: dict[str, dict[str, Callable[[Mapping[str, Tensor]], Tensor]]] = {
        "courier": {"courier": lambda tensors: tensors["drift"][:, -1]},
        "mapl": {
            "learned prototypes": lambda tensors: -tensors["prototypes"].norm(dim=1),
            "head": lambda tensors: -tensors["head"].norm(dim=1),
        },
        "fedproto": {"mean embeddings": lambda tensors: tensors["prototypes"].norm(dim=1)},
    }
    return {
        name: torch.stack([guess(letter.tensors) for letter in letters.values()]).double().numpy()
        for name, guess in guesses.get(method, {}).items()
        if name != "head" or all("head" in letter.tensors for letter in letters.values())
    }


# The page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"), help="folder for the outcomes")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--plot", type=Path, help="where to draw the picture")
    options = parser.parse_args()
    arms = [(method, level) for method in MULTIPLIERS for level in (None, *MULTIPLIERS[method])]
    jobs = [Job(method, level, seed) for seed in range(options.seeds) for method, level in arms]
    options.out.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        outcomes = pool.map(partial(remembered, out=options.out), jobs, chunksize=1)
    by_arm: Outcomes = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        by_arm.setdefault((job.method, job.multiplier), []).append(outcome)
    print("\n".join(page(by_arm, options.seeds)))
    if options.plot:
        draw(by_arm, options.plot)


Outcomes = dict[tuple[str, float | None], list[Outcome]]


def remembered(job: Job, out: Path) -> Outcome:
    """The outcome of a job, from the folder if it is there."""
    path = out / f"{job.method}-{job.multiplier}-seed{job.seed}.json"
    if not path.exists():
        path.write_text(json.dumps(asdict(carry_out(job))))
    return Outcome(**json.loads(path.read_text()))


COMMAND = (
    "python results/trust/privacy.py --out runs/privacy --plot results/trust/privacy.png > results/trust/privacy.md"
)


def page(outcomes: Outcomes, seeds: int) -> Iterator[str]:
    yield "# What letters reveal"
    yield ""
    yield f"    {COMMAND}"
    yield ""
    yield (
        f"{seeds} seeds, 10 clients, 45 rounds, digits. ± is the 95 % interval over seeds. AUC: 50 is a coin flip, 100 "
        "finds every member. Found: the share of members found at 1 % false alarms; guessing finds 1.0. Classes: the "
        "AUC of telling which classes a client has from its last letter."
    )
    yield ""
    yield "## Without noise"
    yield ""
    yield "| letter | method | accuracy, % | AUC, all letters | found, % | AUC, last letter | found, % | classes |"
    yield "|---|---|---|---|---|---|---|---|"
    for method in MULTIPLIERS:
        runs = outcomes[method, None]
        for letter in (name for name in runs[0].auc if "," not in name):
            last = f"{letter}, last letter alone"
            attacks = [(measure, name) for name in (letter, last) for measure in ("auc", "found")]
            columns = [[getattr(run, measure)[name] for run in runs] for measure, name in attacks]
            columns = [[run.accuracy for run in runs], *columns]
            cells = [Estimate.of(column).text() for column in columns]
            known = [run.classes[letter] for run in runs if letter in run.classes]
            yield f"| {letter} | `{method}` | {' | '.join(cells)} | {Estimate.of(known).text() if known else ''} |"
    yield ""
    yield "## With noise"
    yield ""
    yield (
        "ε is for δ = 1e-5 and all 45 letters. σ: `network.noise.multiplier`; C: `network.noise.clip`. The attack uses "
        "the letters of all rounds. Of MAPL's two tensors, a column is for the one that tells more."
    )
    yield ""
    yield "| method | C | σ | ε | accuracy, % | AUC | found, % | classes |"
    yield "|---|---|---|---|---|---|---|---|"
    for (method, level), runs in outcomes.items():
        if not MULTIPLIERS[method]:
            continue
        noise = ("", "none", "∞") if level is None else (f"{CLIPS[method]:g}", f"{level:g}", f"{runs[0].epsilon:.2g}")
        columns = [best([getattr(run, measure) for run in runs]) for measure in ("auc", "found", "classes")]
        columns = [[run.accuracy for run in runs], *columns]
        yield f"| {' | '.join((f'`{method}`', *noise, *(Estimate.of(column).text() for column in columns)))} |"


def best(measured: Sequence[Mapping[str, float]]) -> list[float]:
    """By seed, of the tensor of a letter that tells most in the mean; of attacks on letters of all rounds."""
    names = [name for name in measured[0] if "," not in name]
    return max(([one[name] for one in measured] for name in names), key=fmean)


def draw(outcomes: Outcomes, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    runs = {level: outcomes["courier", level] for level in (None, *MULTIPLIERS["courier"])}
    x = [100 * fmean(run.auc["courier"] for run in some) for some in runs.values()]
    y = [100 * fmean(run.accuracy for run in some) for some in runs.values()]
    axes.plot(x, y, "o-")
    for place, level in zip(zip(x, y, strict=True), runs, strict=True):
        text = "no noise" if level is None else f"ε = {runs[level][0].epsilon:.2g}"
        axes.annotate(text, place, textcoords="offset points", xytext=(6, -12), fontsize=8)
    axes.axvline(50, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="AUC of membership inference, % (50: a coin flip)", ylabel="answers, %")
    axes.set_title("Couriers on digits, with more and more noise", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
