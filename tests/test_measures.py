"""What is measured beside accuracy equals scikit-learn and a slow computation, and is seen wherever accuracy is."""

from __future__ import annotations

import csv
import json
import warnings
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score
from typer.testing import CliRunner

import mapl
from conftest import play, small
from mapl import MaplError, Record
from mapl.analysis.compare import compare
from mapl.analysis.paired import differences, explained, verdict
from mapl.cli.app import app
from mapl.measures import BINS, METRICS, TITLES, Measure, measured, worst_tenth
from mapl.report import write_report
from mapl.runs.chain import Round
from mapl.runs.folder import load
from mapl.runs.writers import open_writers
from test_paired import run_of


@st.composite
def answers(draw: st.DrawFn, classes: int = 5) -> list[np.ndarray]:
    """A client's labels, answers and confidences, some of them exactly on an edge of a bin."""
    number = draw(st.integers(1, 30))
    ids = st.lists(st.integers(0, classes - 1), min_size=number, max_size=number)
    share = st.one_of(st.floats(0, 1), st.integers(0, BINS).map(lambda k: k / BINS))
    sure = draw(st.lists(share, min_size=number, max_size=number))
    return [np.array(draw(ids)), np.array(draw(ids)), np.array(sure)]


def slow_error(true: np.ndarray, guess: np.ndarray, sure: np.ndarray) -> float:
    """The calibration error in exact fractions, bin by bin; the edges are the float64 nearest to k / 15."""
    total = Fraction(0)
    for k in range(BINS):
        inside = [i for i, c in enumerate(sure) if k / BINS < c <= (k + 1) / BINS or (k == 0 and c == 0)]
        if inside:
            right = Fraction(sum(int(true[i] == guess[i]) for i in inside), len(inside))
            confidence = sum((Fraction(float(sure[i])) for i in inside), Fraction(0)) / len(inside)
            total += Fraction(len(inside), len(true)) * abs(right - confidence)
    return float(total)


@given(st.lists(answers(), min_size=1, max_size=4))
def test_measures_equal_scikit_learn_and_exact_fractions(clients):
    found = measured(*zip(*clients, strict=True))
    for place, (true, guess, sure) in enumerate(clients):
        f1 = f1_score(true, guess, labels=np.unique(true), average="macro")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about answers of classes that the client lacks
            recall = balanced_accuracy_score(true, guess)
        assert found["macro_f1"][place] == pytest.approx(f1, abs=1e-12)
        assert found["balanced_accuracy"][place] == pytest.approx(recall, abs=1e-12)
        assert found["calibration_error"][place] == pytest.approx(slow_error(true, guess, sure), abs=1e-12)


@given(st.lists(answers(), min_size=2, max_size=5), st.data())
def test_a_clients_measures_have_the_same_bits_whoever_is_measured_with_it(clients, data):
    together = measured(*zip(*clients, strict=True))
    place = data.draw(st.integers(0, len(clients) - 1))
    alone = measured(*([one] for one in clients[place]))
    assert {name: values[place] for name, values in together.items()} == {k: v[0] for k, v in alone.items()}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=45))
def test_the_worst_tenth_is_at_least_one_client_and_at_least_a_tenth(accuracy):
    number = next(k for k in range(1, 46) if 10 * k >= len(accuracy))
    assert worst_tenth(accuracy) == pytest.approx(fmean(sorted(accuracy)[:number]))
    assert worst_tenth(accuracy) <= fmean(accuracy) + 1e-12


def test_confidences_that_are_no_numbers_count_as_none():
    labels = np.array([0, 1])
    found = measured([labels], [labels], [np.array([np.nan, 1.0])])
    assert found["calibration_error"].tolist() == [0.5]  # right, but sure of nothing


@pytest.mark.parametrize("method", ["mapl", "courier", "fedproto"])
def test_a_round_measures_what_its_clients_answer(method):
    part = play(small(method))
    line = part.lines[-1]
    assert line.measures.keys() == set(get_args(Measure))
    recipe = small(method, evaluate={"moment": "mixed"})
    mixed = play(recipe)
    networks = mixed.method.answers_with
    for place, client in enumerate(mixed.clients):
        with torch.no_grad():
            outputs = mixed.engine._outputs(client, networks)
            scores = mixed.method.scores(client, {k: v[: client.tests] for k, v in outputs.items()}).double().numpy()
        sure = np.exp(scores - scores.max(1, keepdims=True))
        sure = scores.max(1) if method == "courier" else 1 / sure.sum(1)
        true, guess = client.test.labels[: client.tests].numpy(), scores.argmax(1)
        values = {name: values[place] for name, values in mixed.lines[-1].measures.items()}
        assert values["macro_f1"] == pytest.approx(
            f1_score(true, guess, labels=np.unique(true), average="macro"), abs=6e-7
        )
        assert values["calibration_error"] == pytest.approx(slow_error(true, guess, sure), abs=6e-7)
        assert mixed.lines[-1].accuracy[place] == pytest.approx(float((true == guess).mean()))


def test_scores_that_are_probabilities_sum_to_one():
    part = play(small("courier"), rounds=1)
    client = part.clients[0]
    with torch.no_grad():
        scores = part.method.scores(client, part.engine._outputs(client, part.method.answers_with))
    assert part.method.scores_are == "probabilities"
    assert scores.sum(1).tolist() == pytest.approx([1.0] * len(scores), abs=1e-5)


def test_the_images_beside_the_recipes_own_change_no_measure():
    plain, every = play(small()), play(small(evaluate={"every": 1, "all_images": True}))
    assert [line.measures for line in plain.lines] == [line.measures for line in every.lines]


def test_a_history_without_measures_is_read_and_says_so(tmp_path):
    line = Round(round=0, losses={"a": [1.0]}, accuracy=[0.5, 0.7], messages=0, bytes=0)
    assert "measures" not in line.line()
    assert Round.of_line(line.line()) == line
    record = Record(tmp_path, small(), [], [line], [])
    assert record.measures == {}
    assert record.worst_tenth == 0.5
    with pytest.raises(MaplError, match="from before macro-F1 was measured"):
        record.value("macro_f1")
    with pytest.raises(MaplError, match="unknown metric 'f1'"):
        record.value("f1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for arm, over in (("letters", {}), ("alone", {"network": {"topology": {"name": "none"}}})):
            recipe = small("mapl", seed=seed, evaluate={"every": 2}, **over)
            folder = root / f"{arm}-{seed}"
            mapl.run(recipe, folder, observers=open_writers(["csv"], folder))
    return root


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_measures_are_in_the_record_the_frame_and_the_tables(runs):
    pytest.importorskip("pandas")
    record = load(runs / "letters-0")
    assert record.measures.keys() == set(get_args(Measure))
    frame = record.to_pandas()
    last = frame[frame["round"] == record.rounds[-1].round]
    rows = table(runs / "letters-0" / "clients.csv")
    for name in get_args(Measure):
        assert last[name].tolist() == record.measures[name].tolist()
        assert [float(row[name]) for row in rows[-4:]] == record.measures[name].tolist()
        assert frame[frame["round"] == 0][name].isna().all()  # not tested
        assert record.value(name) == pytest.approx(float(record.measures[name].mean()))
    last_round = table(runs / "letters-0" / "rounds.csv")[-1]
    assert float(last_round["worst_tenth"]) == record.worst_tenth == min(record.accuracy.tolist())


def test_a_longer_run_forgets_the_measures_of_a_test_that_it_would_not_have_made(tmp_path):
    recipe = small(evaluate={"every": 2})
    mapl.run(recipe, tmp_path / "run")
    longer = mapl.resume(tmp_path / "run", rounds=5)
    assert [line.measures is not None for line in longer.rounds] == [False, True, False, True, True]


@pytest.mark.parametrize("metric", METRICS)
def test_gains_and_differences_are_in_the_metric_asked_for(runs, metric):
    records = [load(folder) for folder in sorted(runs.iterdir())]
    arms = {arm.is_control: arm for arm in compare(records, metric)}
    by_arm = {
        control: [r.value(metric) for r in records if (r.recipe.network.topology.name == "none") == control]
        for control in (False, True)
    }
    gains = np.subtract(by_arm[False], by_arm[True])
    assert arms[False].gain.mean == pytest.approx(gains.mean())
    assert arms[False].value.mean == pytest.approx(fmean(by_arm[False]))
    assert arms[True].measures.keys() == set(METRICS[1:])
    shown = CliRunner().invoke(app, ["compare", str(runs), "--metric", metric], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert ("lower is better" in shown.output) == (metric == "calibration_error")
    assert (f"gain in {TITLES[metric]}" in shown.output) == (metric != "accuracy")


def test_compare_writes_every_metric(runs, tmp_path):
    out = tmp_path / "table"
    command = ["compare", str(runs), "--metric", "macro_f1", "--to", f"{out}.csv", "--to", f"{out}.md", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    arms = json.loads(result.stdout)["arms"]
    rows = table(Path(f"{out}.csv"))
    for arm, row in zip(arms, rows, strict=True):
        assert row["metric"] == "macro_f1"
        for name in METRICS[1:]:
            assert float(row[name]) == arm["measures"][name]["mean"]
    assert "macro-F1, %" in Path(f"{out}.md").read_text()


def test_an_unknown_metric_is_refused_before_anything_is_read(tmp_path):
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "nothing"), "--metric", "f1"])
    assert "unknown metric 'f1'" in str(result.exception)
    with pytest.raises(MaplError, match="unknown metric"):
        compare([], "f1")


def test_a_lower_calibration_error_is_a_gain():
    runs = [run_of(m, seed, a + 0.001 * seed) for m, a in (("local", 0.6), ("courier", 0.7)) for seed in range(5)]
    lower = [
        Record(
            r.folder, r.recipe, r.clients, [measured_line(line, 0.3 - line.accuracy[0] / 10) for line in r.rounds], []
        )
        for r in runs
    ]
    (found,) = differences(lower, "calibration_error")
    assert (found.first, found.difference.mean > 0) == ("local", True)
    assert found.verdict == "a loss that the interval confirms"
    assert explained([found]).startswith("differences are in calibration error and paired by seed")
    assert verdict(found.difference, 5) == "a gain that the interval confirms"  # were it accuracy
    (worst,) = differences(lower, "worst_tenth")
    assert worst.verdict == "a loss that the interval confirms"


def measured_line(line: Round, error: float) -> Round:
    values = {"calibration_error": [error] * 4}
    return Round(line.round, line.losses, line.accuracy, 0, 0, measures=values)  # type: ignore[arg-type]


@pytest.mark.usefixtures("coarse")
def test_the_report_has_a_table_of_measures(runs, tmp_path):
    page = write_report([load(folder) for folder in sorted(runs.iterdir())], tmp_path).read_text()
    for name in METRICS[1:]:
        assert f"{TITLES[name]} (%)" in page
