"""Writers say what happened, once a round, whatever happened to the run in between."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import mapl
import mapl.runs.writers
from conftest import line_with, small
from mapl import MaplError, Recipe
from mapl.measures import METRICS
from mapl.plugins import known
from mapl.runs.chain import Round
from mapl.runs.writers import open_writers
from mapl.runs.writers.csv_file import CsvFile

DOCUMENT = Path(__file__).parent.parent / "docs" / "ecosystem.md"
RECIPE = Recipe.of(clients=2)

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="the extra mapl[tensorboard] is not installed"
)


def line(t: int, tested: bool = True, **losses: float) -> Round:
    terms = {name: [value, value + 1] for name, value in (losses or {"ce": 1.0}).items()}
    return Round(t, terms, [0.5, 0.25 + t / 100] if tested else None, messages=2, bytes=64)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def column(path: Path, name: str) -> list[str]:
    return [row[name] for row in rows(path)]


def test_writers_are_found_like_methods() -> None:
    assert {"csv", "tensorboard"} <= known(mapl.runs.writers).keys()


def test_an_unknown_writer_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(MaplError, match=line_with("unknown writer 'csvv'", "csv, tensorboard", "'csv'?")):
        open_writers(["csvv"], tmp_path)


@pytest.mark.parametrize("name", ["json:loads.__doc__", "pathlib:Path"])
def test_what_is_no_writer_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(MaplError, match="is not a writer"):
        open_writers([name], tmp_path)


def test_opening_writes_nothing_and_opens_each_once(tmp_path: Path) -> None:
    assert len(open_writers(["csv", "csv"], tmp_path / "run")) == 1
    assert not (tmp_path / "run").exists()


def test_the_tables_of_a_run(tmp_path: Path) -> None:
    recipe, folder = small(rounds=3, evaluate={"every": 2}), tmp_path / "run"
    record = mapl.run(recipe, folder, observers=open_writers(["csv"], folder))
    table = rows(folder / "rounds.csv")
    terms = [f"loss_{term}" for term in record.rounds[0].losses]
    assert list(table[0]) == [
        *("round", "accuracy", "std", *METRICS[1:]),
        *("messages", "bytes", "seconds", *terms),
    ]
    assert [row["accuracy"] == "" for row in table] == [True, False, False]
    assert float(table[-1]["accuracy"]) == pytest.approx(record.mean)
    assert float(table[-1]["std"]) == pytest.approx(record.std)
    assert sum(int(row["bytes"]) for row in table) == record.bytes
    assert sum(float(row["seconds"]) for row in table) == pytest.approx(record.seconds)
    assert [float(x) for x in column(folder / "clients.csv", "accuracy")][-4:] == record.accuracy.tolist()
    assert column(folder / "clients.csv", "round") == ["1"] * 4 + ["2"] * 4


def without_seconds(folder: Path) -> tuple[list[dict[str, str]], bytes]:
    table = rows(folder / "rounds.csv")
    return [{**row, "seconds": ""} for row in table], (folder / "clients.csv").read_bytes()


@pytest.mark.parametrize("from_the_start", [True, False], ids=["logged", "logged only when resumed"])
def test_a_killed_and_resumed_run_has_the_tables_of_an_unbroken_one(tmp_path: Path, from_the_start: bool) -> None:
    recipe = small(rounds=4, checkpoint={"every": 2})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    mapl.run(recipe, whole, observers=open_writers(["csv"], whole))

    def kill(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        if line.round == 2:
            raise KeyboardInterrupt

    logs = open_writers(["csv"], broken) if from_the_start else []
    with pytest.raises(KeyboardInterrupt):
        mapl.run(recipe, broken, observers=[*logs, kill])
    if from_the_start:
        for name in ("rounds.csv", "clients.csv"):  # the round of the checkpoint itself is damaged
            lines = (broken / name).read_bytes().splitlines(keepends=True)
            (broken / name).write_bytes(b"".join(lines[:2]) + lines[2][:3])
    mapl.resume(broken, observers=open_writers(["csv"], broken))
    assert without_seconds(broken) == without_seconds(whole)


def test_an_overwritten_run_leaves_no_rows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mapl.run(small(rounds=3), folder, observers=open_writers(["csv"], folder))
    mapl.run(small(rounds=1, seed=1), folder, observers=open_writers(["csv"], folder), overwrite=True)
    assert column(folder / "rounds.csv", "round") == ["0"]


def test_in_a_folder_without_a_history_rounds_played_again_replace_their_rows(tmp_path: Path) -> None:
    first = CsvFile(tmp_path)
    for t in range(4):
        first(RECIPE, line(t), {"train": 1.0})
    for path in (tmp_path / "rounds.csv", tmp_path / "clients.csv"):
        path.write_bytes(path.read_bytes()[:-4])  # a kill cut the last line off
    again = CsvFile(tmp_path)
    for t in (2, 3):
        again(RECIPE, line(t), {"train": 2.0})
    again(RECIPE, line(3), {"train": 3.0})
    assert column(tmp_path / "rounds.csv", "round") == ["0", "1", "2", "3"]
    assert column(tmp_path / "rounds.csv", "seconds") == ["1.0", "1.0", "2.0", "3.0"]
    assert column(tmp_path / "clients.csv", "round") == list("00112233")


def test_a_term_that_appears_later_gets_a_column(tmp_path: Path) -> None:
    writer = CsvFile(tmp_path)
    writer(RECIPE, line(0, tested=False, ce=1), {})
    writer(RECIPE, line(1, tested=False, ce=2, graph=7), {})
    writer(RECIPE, line(2, tested=False, ce=3), {})
    assert column(tmp_path / "rounds.csv", "loss_ce") == ["1.5", "2.5", "3.5"]
    assert column(tmp_path / "rounds.csv", "loss_graph") == ["", "7.5", ""]
    assert not (tmp_path / "clients.csv").exists()


class Failing:
    """A writer that fails in its second round."""

    def __init__(self, folder: Path):
        self.calls = 0

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("no room")


def test_a_writer_that_fails_is_dropped_with_one_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writers = open_writers([f"{__name__}:Failing", "csv"], folder)
    with pytest.warns(UserWarning, match="Failing.* round 1 .*dropped.*no room") as warned:
        record = mapl.run(small(rounds=4, model={"backbones": ["mlp"]}), folder, observers=writers)
    assert len([w for w in warned if "dropped" in str(w.message)]) == 1
    assert record.finished
    assert column(folder / "rounds.csv", "round") == ["0", "1", "2", "3"], "the others are not affected"


def test_an_observer_that_is_no_writer_may_still_end_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no room"):
        mapl.run(small(rounds=4, model={"backbones": ["mlp"]}), tmp_path / "run", observers=[Failing(tmp_path)])


def test_somebody_elses_table_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rounds.csv").write_text("name,age\nAda,36\n")
    with pytest.raises(MaplError, match=r"rounds\.csv'.* not overwritten"):
        CsvFile(tmp_path)(RECIPE, line(0), {})
    assert "Ada" in (tmp_path / "rounds.csv").read_text()


def test_a_table_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MaplError, match="could not be written"):
        CsvFile(tmp_path / "file")(RECIPE, line(0), {})


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@needs_tensorboard
def test_the_curves_of_a_killed_and_resumed_run(tmp_path: Path) -> None:
    recipe, folder = small(rounds=4, checkpoint={"every": 2}), tmp_path / "run"
    played = []

    def kill(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        played.append(line.round)
        if played == [0, 1, 2]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapl.run(recipe, folder, observers=[*open_writers(["tensorboard"], folder), kill])
    record = mapl.resume(folder, observers=[*open_writers(["tensorboard"], folder), kill])
    assert played == [0, 1, 2, 2, 3]
    curves = points(folder)
    losses = {f"loss/{term}" for term in record.rounds[0].losses}
    assert losses | {"accuracy/mean", "accuracy/client_3", "network/messages", "time/train"} <= curves.keys()
    assert [step for step, _ in curves["accuracy/mean"]] == [0, 1, 2, 3]
    assert curves["accuracy/mean"][-1][1] == pytest.approx(record.mean)
    assert [value for _, value in curves["network/bytes"]] == [r.bytes for r in record.rounds]


@needs_tensorboard
def test_curves_asked_for_late_are_whole(tmp_path: Path) -> None:
    mapl.run(small(rounds=2), tmp_path / "run")
    mapl.resume(tmp_path / "run", rounds=3, observers=open_writers(["tensorboard"], tmp_path / "run"))
    assert [step for step, _ in points(tmp_path / "run")["network/bytes"]] == [0, 1, 2]


def test_without_tensorboard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MaplError, match=r"needs the package tensorboard.*pip install 'mapl\[tensorboard\]'"):
        open_writers(["tensorboard"], tmp_path)


def examples() -> dict[str, str]:
    """The files that the document tells its readers to write."""
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return {name: code for code, name in blocks}


class Calls:
    """A stand-in for a service: it has the functions that the examples call, with the arguments these take."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def wandb(self) -> ModuleType:
        module: Any = ModuleType("wandb")
        module.init = lambda *, project, id, name, config, resume: self._start(id=id, resume=resume, config=config)
        return module

    def mlflow(self) -> ModuleType:
        module: Any = ModuleType("mlflow")
        module.start_run = lambda *, run_id, run_name: self._start(id=run_id)
        module.log_metrics = self.log
        module.log_dict = lambda dictionary, artifact_file: None
        return module

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def _start(self, **how: Any) -> SimpleNamespace:
        self.started.append(how)
        return SimpleNamespace(log=self.log, info=SimpleNamespace(run_id="number-1"))


@pytest.mark.parametrize(("service", "path"), [("wandb", "my_wandb:WandB"), ("mlflow", "my_mlflow:MLflow")])
def test_the_writers_of_the_document(service: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls, folder = path.partition(":")[0], Calls(), tmp_path / "run"
    (tmp_path / f"{module}.py").write_text(examples()[f"{module}.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, service, getattr(calls, service)())
    try:
        mapl.run(small(rounds=2), folder, observers=open_writers([path], folder))
        record = mapl.resume(folder, rounds=3, observers=open_writers([path], folder))
    finally:
        sys.modules.pop(module, None)
    assert [step for step, _ in calls.logged] == [0, 1, 2]
    assert calls.logged[-1][1]["accuracy"] == pytest.approx(record.mean)
    first, second = (how["id"] for how in calls.started)
    assert second == (first or "number-1")  # the resumed run goes on in the same place


def test_the_examples_of_the_document_are_short() -> None:
    assert {"my_wandb.py", "my_mlflow.py", "serve.py", "use_weights.py"} <= examples().keys()
    assert all(len(code.splitlines()) <= 28 for code in examples().values())
