"""What the paper's figures need: works that are the cells where they should be, and extras of the right shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import small
from mapl.analysis.control import control_of
from mapl.paper import find_cell
from mapl.paper.extras import extras
from mapl.paper.figures import FIGURES, GRAPH_ROUNDS, needs
from mapl.paper.pictures import separation
from mapl.paper.protocol import Protocol
from mapl.paper.statistics import difference
from mapl.paper.store import Store, key_of
from mapl.runs.part import Part
from mapl.runs.record import Record
from mapl.runs.run import restored_part, run
from reproduction_store import add_figures, made_row


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Part, Record]:
    record = run(small(rounds=2), tmp_path_factory.mktemp("run") / "one")
    part = restored_part(record.folder)
    assert part is not None
    return part, record


def test_the_works_of_class_sim_differ_in_the_prototype_term_alone() -> None:
    without, full = (work.recipe for work in FIGURES["class_sim"].works())
    assert without.method.terms == ("contrastive", "uniformity")  # type: ignore[attr-defined]
    assert full.fingerprint() == find_cell("var1/scenario=1/clients=10/MAPL").recipe().fingerprint()
    assert without.model_copy(update={"method": full.method}).fingerprint() == full.fingerprint()


def test_the_graphs_are_of_the_appendix_with_two_classes_in_common() -> None:
    works = {work.name: work for work in FIGURES["col_graph"].works(seed=3)}
    assert works["scenario=2"].recipe.partition.overlap == 2
    assert {work.recipe.seed for work in works.values()} == {3}
    early = works["scenario=1/rounds=50"].recipe
    assert early.rounds == 50
    assert early.fingerprint() == works["scenario=1"].recipe.fingerprint()
    assert works["scenario=1/rounds=50"].weights_at == (0, 49)


def test_the_works_of_conv_are_the_cells_themselves() -> None:
    works = FIGURES["conv"].works()
    assert len(works) == 10
    assert all(work.recipe == find_cell(work.name).recipe(seed=0) for work in works)
    assert FIGURES["complexity"].works() == []


def test_names_of_works_are_folders_of_their_own() -> None:
    names = [work.recipe.title() for figure in FIGURES.values() for work in figure.works()]
    assert len(set(names)) == len(names)
    assert not any("/" in name or " " in name for name in names)


def test_a_run_hands_over_what_all_figures_want_of_it_whatever_it_was_run_for() -> None:
    cell = find_cell("var1/scenario=1/clients=10/MAPL")
    wanted = needs(Protocol().of_cell(cell, 1))
    assert wanted.extra == ("heads", "distribution", "embedding")
    assert wanted.weights_at == GRAPH_ROUNDS
    assert needs(Protocol(form="paper").of_cell(cell, 1)) == wanted
    assert needs(find_cell("res_hetero/scenario=1/SVHN/FedProto").recipe()) == needs(small("local"))
    assert needs(small("local")).weights_at == needs(small("local")).extra == ()


def test_a_work_finds_its_row_under_any_table_but_at_no_other_scale(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_figures(store)
    for name in ("class_sim", "col_graph"):
        for work in FIGURES[name].works():
            row = work.run_in(store)
            assert row is not None
            assert row.key == key_of(Protocol().of_tree(work.tree, name))
        assert all(work.run_in(store) is None for work in FIGURES[name].works(seed=1))


def test_extras_are_what_the_models_say_and_fit_a_line(finished: tuple[Part, Record]) -> None:
    part, record = finished
    made = extras(part, record, ("heads", "distribution", "embedding"))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["rounds"] == 2
    similarity = torch.tensor(made["heads"]["by_class"])
    assert torch.equal(similarity, similarity.T)
    assert torch.equal(similarity.diagonal(), torch.ones(4))
    heads = [client.model.head.weight.detach().flatten() for client in part.clients]
    whole = [[float(torch.cosine_similarity(a, b, dim=0)) for b in heads] for a in heads]
    assert torch.tensor(made["heads"]["own"]).sub(torch.tensor(whole)).abs().max() < 1e-4  # as the printed graph has it
    assert made["distribution"] == [[2] * 5 + [0] * 5] * 2 + [[0] * 5 + [2] * 5] * 2
    found, images = made["embedding"], 4 * 25
    assert found["prototypes"] == 4 * 5
    assert len(found["z"]) == images
    assert len(found["p"]) == len(found["labels"]) == len(found["clients"]) == images + 20
    assert 0 <= found["p_aligned"] <= 1
    assert found["clients"][images:] == [i for i in range(4) for _ in range(5)]
    assert extras(part, record, ()) == {}


def test_the_same_run_has_the_same_extras(finished: tuple[Part, Record]) -> None:
    part, record = finished
    assert extras(part, record, ("embedding",)) == extras(part, record, ("embedding",))


def test_separation_is_how_often_a_pair_of_one_cluster_is_more_alike() -> None:
    clusters = [0, 0, 1, 1]
    label = torch.tensor(clusters)
    apart = (label[:, None] == label[None, :]).double()
    assert separation(apart, clusters) == (1, 0, 1)
    assert separation(1 - apart, clusters) == (0, 1, 0)
    assert separation(torch.ones(4, 4), clusters) == (1, 1, 0.5)


def test_rows_of_different_data_are_not_paired_and_rows_from_before_there_was_a_digest_fit_any():
    recipe = find_cell("var1/scenario=1/clients=10/MAPL").recipe()
    row, control = made_row(recipe, "var1", "MAPL", 0.7), made_row(control_of(recipe), "var1", "MAPL", 0.6)
    for ours, theirs, paired in (("", "", True), ("aa", "", True), ("aa", "aa", True), ("aa", "bb", False)):
        gain, _ = difference([replace(row, data=ours)], [replace(control, data=theirs)], "accuracy")
        assert (gain is not None) == paired


def test_the_rows_in_the_repository_are_all_in_use():
    folder = Path(__file__).parents[1] / "docs" / "reproduction"
    lines = sum(len(path.read_text().splitlines()) for path in folder.glob("*.jsonl"))
    assert len(Store(folder).runs) == lines == 33
