"""Small runs for the tests: digits, four clients with four backbones, a few rounds, well under a second each."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Without a GPU its kernels run in Triton's interpreter, which has to be asked for before Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        from interpreter import quicken

        quicken()

import mapl.cli
import mapl.methods.flt
import mapl.runs.run
from mapl import Client, Dataset, Images, Inbox, Letter, Recipe
from mapl.client import Peers
from mapl.errors import MaplWarning, hand_over_warnings
from mapl.network import Mail, MemoryPost
from mapl.runs.exchange import Exchange, look_around
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round
from mapl.trees import Tree, merge

# Operations as small as these are far slower when they are spread over threads.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
hypothesis.settings.register_profile("mapl", deadline=None, max_examples=50)
hypothesis.settings.load_profile("mapl")

SMALL: Tree = {
    "clients": 4,
    "rounds": 3,
    "method": {"name": "mapl", "warmup": 1},
    "partition": {"shots": 2, "test_shots": 5},
    "model": {"embedding": 12, "projection": 8, "hidden": 16},
    "evaluate": {"every": 1},
    "checkpoint": {"every": 1},
}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test makes the package remember is not remembered for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


REAL_LASTING = mapl.runs.run.lasting
"""What a run does about the garbage collector, for the test of it."""


@pytest.fixture(scope="session", autouse=True)
def no_collections() -> Iterator[None]:
    """A run collects garbage before its first round. In a process of tests that takes longer than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.runs.run.lasting", nullcontext)
        yield


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command line handles signals to the end of its process; a test goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


REAL_PLANE = mapl.methods.flt._plane
"""FLT's own, for the few tests that take the time."""


@pytest.fixture(scope="module")
def coarse() -> Iterator[None]:
    """Pictures of fewer dots, which take less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.report.drawing.DPI", 50)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, for the modules that import `chromium`."""
    from chromium import launched

    with launched() as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def flat_plane() -> Iterator[None]:
    """Two coordinates of FLT's centres in place of UMAP, which takes half a minute to import and compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapl.methods.flt, "_plane", lambda points, seed: points[:, :2].astype(float))
        yield


def skip_without_umap(method: str) -> None:
    """FLT asks for UMAP before it begins. Whether it is installed is seen without importing it."""
    if method == "flt" and find_spec("umap") is None:
        pytest.skip("FLT needs UMAP")


@contextmanager
def told() -> Iterator[list[str]]:
    """The sentences that the package warns with inside, as they come."""
    said: list[str] = []
    with warnings.catch_warnings():
        hand_over_warnings(said.append)
        yield said


@contextmanager
def in_silence() -> Iterator[None]:
    """Inside, a warning of the package is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", MaplWarning)
        yield


def small(name: str = "mapl", /, **over: Any) -> Recipe:
    """A recipe that runs in a fraction of a second; `over` is laid over it."""
    base = merge(SMALL, {"method": {"name": name}})
    if not name.startswith("mapl"):
        base["method"] = {"name": name}
    return Recipe.of(**merge(base, over))


def play(recipe: Recipe, rounds: int | None = None, part: Part | None = None) -> Part:
    """The part after its rounds, in memory alone; `part.lines` has what they wrote into the history."""
    part = part or build_part(recipe)
    total = rounds if rounds is not None else recipe.rounds
    part.lines = [play_round(part, t)[0] for t in range(part.round, total)]  # type: ignore[attr-defined]
    return part


def deliver(letters: Mapping[int, Letter], requests: Mapping[int, torch.Tensor], round: int = 0) -> dict[int, Inbox]:
    """The in-memory post; nobody's schema is asked for there."""
    return MemoryPost().exchange(Mail(round, "letters", letters, requests, lambda reader: pytest.fail("schema")))


def inboxes_of(part: Part, round: int) -> list[tuple[Client, Inbox]]:
    """The exchanges of a round, without training and without absorbing: every client with its inbox."""
    look_around(part.method, part.clients, part.server, part.topology, round)
    return Exchange(part.method, part.clients, part.server, part.transport, part.ledger, round).run()


def row_of(client: Client, clients: int) -> torch.Tensor:
    """The client's row of W (M,), dense."""
    row = torch.zeros(clients, dtype=torch.float64)
    row[torch.from_numpy(client.peers.ids)] = torch.from_numpy(client.peers.weights)
    return row


def meet_all(client: Client, weights: Sequence[float], samples: int | Sequence[int] = 10) -> None:
    """Make a client know clients 0, 1, … with these weights and numbers of samples."""
    ids = np.arange(len(weights))
    client.peers = Peers(ids, np.array(weights, dtype=float), np.broadcast_to(samples, len(ids)).copy())


def parameters(part: Part) -> dict[str, torch.Tensor]:
    """Every tensor of every client's model."""
    return {f"{c.id}.{k}": v for c in part.clients for k, v in c.model.state_dict().items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def made_of(train: list[int], test: list[int], classes: int, image: tuple[int, int, int] = (1, 4, 4)) -> Dataset:
    """A data set with these labels; the first two pixels of an image hold its number."""

    def images(labels: list[int]) -> Images:
        number = torch.arange(len(labels))
        pixels = torch.zeros(len(labels), *image, dtype=torch.uint8)
        pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = (number // 256).byte(), (number % 256).byte()
        return Images(pixels, torch.tensor(labels, dtype=torch.int64))

    return Dataset("made", images(train), images(test), classes, (0.5,) * image[0], (0.5,) * image[0])


PRELOADED = multiprocessing.get_context("forkserver")
"""Its processes start in milliseconds, from one that has imported the package already."""
# The last one is imported by the first use of the digits, and takes longer than a whole run.
PRELOADED.set_forkserver_preload(["mapl.cli.app", "mapl.runs.jobs", "sklearn.datasets"])


def in_child(target: Callable[..., object], *args: object) -> ForkServerProcess:
    """A new process that calls `target`."""
    process = PRELOADED.Process(target=_with_signals, args=(target, *args), daemon=True)
    process.start()
    return process


def _with_signals(target: Callable[..., object], *args: object) -> None:
    """Signals reach it as they reach a program that a shell starts, whatever blocked them where it comes from."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    target(*args)


def command(arguments: list[str], output: Path) -> None:
    """What a shell does for `mapl …  > output 2>&1`; for use in a child."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Standard streams of a child of the fork server may be closed or not be a terminal's: open them on the file.
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.argv = ["mapl", *arguments]
    mapl.cli.main()


def line_with(*parts: object) -> str:
    """A pattern for a line that has these in this order, whatever stands between them. A number is all of its digits."""
    patterns = []
    for text in map(str, parts):
        before, after = r"(?<![\d.,])" * text[0].isdigit(), r"(?!\d)" * text[-1].isdigit()
        patterns.append(f"{before}{re.escape(text)}{after}")
    return ".*".join(patterns)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def processes_of(group: int) -> int:
    """How many there are: the parent, its workers, and the one in which multiprocessing keeps count of semaphores."""
    return sum(_group_of(path) == group for path in Path("/proc").glob("[0-9]*/stat"))


def _group_of(stat: Path) -> int | None:
    with suppress(OSError):  # it ended meanwhile
        state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        return None if state == "Z" else int(group)  # one that ended may wait long for its parent to take note
    return None


def written(folder: Path) -> dict[str, bytes]:
    """What equal runs have in common: all but the times, the recipe's name, and checkpoints but the last."""
    last = max((folder / "checkpoints").glob("0*"))
    names = ("history.jsonl", "clients.json", "graph.rows", "graph.index")
    return {last.name: last.read_bytes()} | {
        name: (folder / name).read_bytes() for name in names if (folder / name).exists()
    }


def stop_after(rounds: int) -> Callable[[], bool]:
    """A `stop` that says yes after that many rounds."""
    left = iter([False] * (rounds - 1))
    return lambda: next(left, True)
