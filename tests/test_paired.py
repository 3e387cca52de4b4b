"""Differences between arms: paired by seed, corrected by Holm's method, said with care, and written to files."""

from __future__ import annotations

import csv
import itertools
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import mapl
from conftest import line_with, small
from mapl import Record
from mapl.analysis.compare import Estimate, compare
from mapl.analysis.files import KINDS, write_comparison
from mapl.analysis.paired import Difference, differences, explained, verdict, worth
from mapl.cli.app import app
from mapl.runs.chain import Round
from mapl.runs.record import ClientCard

METHODS = ("local", "mapl", "courier", "fedproto")


def run_of(name: str, seed: int, accuracy: float, played: int = 3, **over: object) -> Record:
    """A run that nobody made; one round earlier it was ten points worse."""
    recipe = small(name, seed=seed, **over)
    cards = [ClientCard(i, 0, [0], 4, 5, "mlp", 100, "data") for i in range(4)]
    spread = np.array([-0.02, -0.01, 0.01, 0.02])
    rounds = [Round(t, {}, list(accuracy + spread - 0.1 * (played - 1 - t)), 0, 0) for t in range(played)]
    return Record(Path(f"{name}-{seed}"), recipe, cards, rounds, [])


def drawn(seeds: int, draw: int) -> tuple[dict[str, np.ndarray], list[Record]]:
    """Runs of all methods, of which the later are a little better."""
    generator = np.random.default_rng(draw)
    shared = generator.normal(0, 0.05, seeds)
    means = {m: 0.6 + 0.02 * i + shared + generator.normal(0, 0.01, seeds) for i, m in enumerate(METHODS)}
    return means, [run_of(m, seed, a) for m, values in means.items() for seed, a in enumerate(values)]


def by_closure(p: list[float]) -> list[float]:
    """Holm's p-values as what they are: those of the closed test whose parts are corrected by Bonferroni."""
    places = range(len(p))
    subsets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(places, size)]
    return [max(min(1.0, len(s) * min(p[j] for j in s)) for s in subsets if i in s) for i in places]


@pytest.mark.parametrize(("seeds", "draw"), [(5, 0), (5, 1), (3, 2), (10, 3), (2, 4)])
def test_the_corrected_differences_equal_those_of_scipy(seeds, draw):
    means, records = drawn(seeds, draw)
    found = differences(records)
    pairs = list(itertools.combinations(METHODS, 2))
    assert [(d.first, d.second) for d in found] == pairs
    tests = [stats.ttest_rel(means[a], means[b]) for a, b in pairs]
    assert [d.p for d in found] == pytest.approx([test.pvalue for test in tests])
    corrected = by_closure([float(test.pvalue) for test in tests])
    assert [d.holm for d in found] == pytest.approx(corrected)
    factors = 1 + np.arange(len(pairs))
    for d, test, (a, b), p in zip(found, tests, pairs, corrected, strict=True):
        assert d.difference.mean == pytest.approx((means[a] - means[b]).mean())
        levels = [test.confidence_interval(1 - 0.05 / factor) for factor in factors]
        assert any(d.difference.interval == pytest.approx((low_high.high - low_high.low) / 2) for low_high in levels)
        assert (abs(d.difference.mean) > d.difference.interval) == (p < 0.05)


def test_some_of_these_draws_are_significant_and_some_are_not():
    """Or the test above would compare nothing."""
    holm = [d.holm for seeds, draw in [(5, 0), (10, 3)] for d in differences(drawn(seeds, draw)[1])]
    assert 0 < sum(p < 0.05 for p in holm) < len(holm)


def test_only_equal_seeds_on_equal_data_at_an_equal_age_are_paired():
    ours = [run_of("mapl", seed, 0.8 + 0.01 * seed) for seed in (0, 1, 2)]
    theirs = [run_of("local", seed, 0.7) for seed in (2, 1, 9)]
    (one,) = differences([*ours, *theirs])
    assert (one.seeds, one.difference.mean) == ([1, 2], pytest.approx(0.115))
    stopped = [run_of("local", 0, 0.7, played=2)]  # after two rounds the others were at 0.7 too
    assert differences([*ours, *stopped])[0].difference.mean == pytest.approx(0.0)
    assert differences([*ours, *(run_of("local", s, 0.7, partition={"shots": 4}) for s in (0, 1))]) == []
    assert differences([*ours, *(run_of("local", s, 0.7, clients=6) for s in (0, 1))]) == []


def test_controls_do_not_compete_unless_there_is_nobody_else():
    alone = {"network": {"topology": {"name": "none"}}}
    runs = [run_of(m, s, 0.7) for m in ("local", "mapl", "courier") for s in (0, 1)]
    controls = [run_of(m, s, 0.6, **alone) for m in ("mapl", "courier") for s in (0, 1)]
    assert len(differences([*runs, *controls])) == 3
    assert len(differences(controls)) == 1
    pooled = [run_of("mapl", s, 0.9, partition={"pooled": True}, **alone) for s in (0, 1)]
    assert len(differences([*runs, *pooled])) == 3


def test_only_five_seeds_confirm():
    for seeds in range(2, 8):
        words = verdict(Estimate(0.05, 0.01), seeds)
        assert ("confirms" in words) == (seeds >= 5)
        assert words.startswith("a gain")
    assert verdict(Estimate(-0.05, 0.01), 5) == "a loss that the interval confirms"
    assert verdict(Estimate(0.05, 0.06), 9) == "no difference that these seeds can show"
    assert verdict(Estimate(0.05, None), 1) == "from one seed: no claim"


@pytest.mark.parametrize(("seeds", "factor"), [(2, "12.7"), (3, "4.3"), (4, ""), (5, "")])
def test_few_seeds_are_told_what_an_interval_is_worth(seeds, factor):
    said = worth(compare([run_of("local", seed, 0.7) for seed in range(seeds)]))
    assert bool(said) == bool(factor)
    assert not factor or f"{factor} standard errors" in said
    assert "no interval" in worth(compare([run_of("local", 0, 0.7)]))


def test_one_seed_has_differences_without_a_claim():
    (one,) = differences([run_of("local", 0, 0.7), run_of("mapl", 0, 0.8)])
    assert (one.p, one.holm, one.difference.interval) == (None, None, None)
    assert explained([one]) == ""
    equal = differences([run_of(m, seed, 0.5) for m in ("local", "mapl") for seed in (0, 1)])
    assert (equal[0].p, equal[0].difference.mean) == (1.0, 0.0)


# Files


def test_the_files_have_the_numbers(tmp_path):
    _, records = drawn(5, 0)
    arms, found = compare(records), differences(records)
    written = write_comparison(tmp_path / "a.csv", arms, found)
    assert [path.name for path in written] == ["a.csv", "a-differences.csv"]
    rows, pairs = (list(csv.DictReader(path.open(encoding="utf-8"))) for path in written)
    assert [float(row["accuracy"]) for row in rows] == [arm.accuracy.mean for arm in arms]
    assert [float(pair["p_holm"]) for pair in pairs] == [d.holm for d in found]
    assert rows[0]["gain"] == "", "there is none"
    (page,) = write_comparison(tmp_path / "a.md", arms, found)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert f"| local | 5 | {arms[0].accuracy.text()} |" in lines[2]
    assert sum(line.startswith("| ") for line in lines) == 2 + len(arms) + 2 + len(found)
    assert "Holm" in lines[-1] or "Holm" in lines[-2]


def test_latex_compiles_whatever_the_labels_are(tmp_path):
    label = r"50 % of a_b & c^d \input{x} ~ #1 $2$ <"
    odd = Difference(label, "b\x1b", [0, 1], Estimate(-0.1, 0.2), 0.5, 0.5)
    (page,) = write_comparison(tmp_path / "a.tex", compare(drawn(2, 4)[1]), [odd])
    text = page.read_text(encoding="utf-8")
    escaped = r"50 \% of a\_b \& c\textasciicircum{}d \textbackslash{}input\{x\} \textasciitilde{} \#1 \$2\$ $<$"
    assert f"{escaped} & b\\textbackslash{{}}x1b & 2 & -10.0 $\\pm$ 20.0 & 0.500 &" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert "±" not in "".join(line for line in text.splitlines() if not line.startswith("%"))


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
def test_parquet_keeps_all_digits(tmp_path):
    import pyarrow.parquet

    arms = compare(drawn(5, 0)[1])
    (path,) = write_comparison(tmp_path / "a.parquet", arms, [])
    table = pyarrow.parquet.read_table(path).to_pydict()
    assert table["accuracy"] == [arm.accuracy.mean for arm in arms]
    assert table["arm"] == list(METHODS)


def test_without_pyarrow_parquet_is_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("mapl.analysis.files.find_spec", lambda name: None)
    with pytest.raises(mapl.MaplError, match=line_with("Parquet", "pip install pyarrow")):
        write_comparison(tmp_path / "a.parquet", compare(drawn(2, 4)[1]), [])
    assert not list(tmp_path.iterdir())


# The commands


def cli(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_compare_takes_a_folder_of_runs_and_list_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no runs" in cli("list", "runs")
    for name, seed in itertools.product(("local", "mapl"), (0, 1)):
        mapl.run(small(name, seed=seed, rounds=2), f"runs/{name}/{seed}")
    said = json.loads(cli("compare", "runs", "--json"))
    assert said == json.loads(cli("compare", *(f"runs/{n}/{s}" for n in ("local", "mapl") for s in (0, 1)), "--json"))
    assert [arm["seeds"] for arm in said["arms"]] == [[0, 1], [0, 1]]
    out = cli("compare", "runs/local", "runs/mapl", "--to", "a.md", "--to", "a.csv")
    assert "12.7 standard errors" in out
    assert [line for line in out.splitlines() if line.startswith("written")] == [
        *("written: a.md", "written: a.csv", "written: a-differences.csv")
    ]
    listed = cli("list", "runs").splitlines()
    assert [line.split()[0] for line in listed] == [f"runs/{n}/{s}" for n in ("local", "mapl") for s in (0, 1)]
    assert re.search(line_with("local on digits", "full", "seed 1", "2 of 2 rounds", "accuracy"), listed[1])
    Path("runs/mapl/1/history.jsonl").write_text("{}\n")
    assert "cannot be read" in cli("list", "runs").splitlines()[3]


@pytest.mark.parametrize("name", ["a.xls", "nowhere/a.csv", "runs.csv"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").mkdir()
    result = CliRunner().invoke(app, ["compare", "there-is-no-run", "--to", name])
    assert isinstance(result.exception, mapl.MaplError)
    assert f"'{name}'" in str(result.exception)
    assert set(KINDS) == {".csv", ".parquet", ".md", ".tex"}
