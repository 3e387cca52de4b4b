"""Comparisons: means and intervals over seeds, and what the letters bought against the twin without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

import mapl
from conftest import made_of, small
from damaged_runs import make_npz
from mapl import Images, Recipe, Record
from mapl.analysis.clusters import adjusted_rand, class_overlap, edges, first_mixed, share_by_chance, share_inside
from mapl.analysis.compare import Estimate, compare, group, left_out, notes
from mapl.analysis.control import ceilings, control_of, is_ceiling, is_control
from mapl.client import Peers
from mapl.report.lines import lines
from mapl.runs.chain import Round
from mapl.runs.graph import GraphWriter
from mapl.runs.record import ClientCard

ALONE = {"network": {"topology": {"name": "none"}}}
POOLED = {**ALONE, "partition": {"pooled": True}}


def record(
    recipe: Recipe,
    accuracy: list[float],
    messages: int = 0,
    played: int = 3,
    folder: str = "nowhere",
    data: str = "",
) -> Record:
    """A run that nobody made; the accuracies are repeated until every client has one."""
    size = recipe.clients
    accuracy = accuracy * (size // len(accuracy))
    cards = [ClientCard(i, i * 2 // size, [i], 4, 5, "mlp", 100, data) for i in range(size)]
    earlier = [Round(t, {"cross_entropy": [1.0]}, [0.99] * size, 0, 0) for t in range(played - 1)]
    last = Round(played - 1, {"cross_entropy": [0.5]}, accuracy, messages, 10 * messages)
    times = [{"round": t, "seconds": 1.0} for t in range(played)]
    return Record(Path(folder), recipe, cards, [*earlier, last], times)


def write_graph(run: Record, weights: torch.Tensor) -> None:
    """Give a run this W in each of its rounds."""
    ids = torch.arange(len(weights)).numpy()
    run.folder.mkdir()
    writer = GraphWriter(run.folder, ids.tolist())
    for _ in run.rounds:
        writer.append({i: Peers(ids, row.numpy(), ids) for i, row in enumerate(weights)})


def seeds(accuracies: dict[int, float], **over: object) -> list[Record]:
    name = str(over.pop("name", "mapl"))
    return [record(small(name, seed=s, **over), [a - 0.1, a + 0.1]) for s, a in accuracies.items()]


def test_the_interval_is_students_over_seeds():
    values = [0.71, 0.69, 0.74, 0.70]
    estimate = Estimate.of(values)
    low, high = stats.t.interval(0.95, 3, loc=estimate.mean, scale=stats.sem(values))
    assert estimate.mean == pytest.approx(sum(values) / 4)
    assert (estimate.mean - estimate.interval, estimate.mean + estimate.interval) == pytest.approx((low, high))
    assert estimate.text() == f"71.0 ± {100 * (high - low) / 2:.1f}"
    assert Estimate.of([0.5]) == Estimate(0.5, None)
    assert Estimate(0.012, None).text(sign="+") == "+1.2"


def test_seeds_of_one_recipe_are_one_arm_in_the_order_given():
    runs = [*seeds({0: 0.5}, name="local"), *seeds({0: 0.6, 1: 0.8, 2: 0.7})]
    arms = compare(runs)
    assert [(arm.label, arm.seeds) for arm in arms] == [("local", [0]), ("mapl", [0, 1, 2])]
    assert arms[1].accuracy == Estimate.of([0.6, 0.8, 0.7])
    assert arms[1].spread == pytest.approx(0.1)  # population: ±0.1 around each mean
    assert (arms[1].rounds, arms[1].planned, arms[1].seconds) == (3, 3, 3.0)


def test_how_a_run_is_tested_saved_and_named_does_not_make_it_another_arm():
    runs = [
        *seeds({0: 0.5}),
        record(small(seed=1, evaluate={"every": 3}, checkpoint={"every": 7}, name="x"), [0.5, 0.5]),
        *seeds({2: 0.5}, evaluate={"moment": "mixed"}),
    ]
    assert [arm.seeds for arm in compare(runs)] == [[0, 1], [2]]


def test_the_gain_pairs_by_seed_whatever_the_order_and_uses_only_seeds_that_both_have():
    ours = seeds({0: 0.60, 1: 0.80, 2: 0.70, 3: 0.10})
    control = seeds({2: 0.69, 0: 0.55, 1: 0.74, 9: 0.99}, **ALONE)
    arm, twin = compare([*ours, *control])
    paired = Estimate.of([0.05, 0.06, 0.01])
    assert arm.gain.mean == pytest.approx(paired.mean)
    assert arm.gain.interval == pytest.approx(paired.interval)
    # A pairing by position, or the difference of the means, would be far away.
    assert abs(arm.gain.mean - (arm.accuracy.mean - twin.accuracy.mean)) > 0.05
    assert twin.is_control
    assert twin.gain is None


def test_a_seed_that_is_given_twice_counts_once():
    runs = seeds({0: 0.6, 1: 0.8})
    (arm,) = compare([*runs, *runs])
    assert arm.accuracy == Estimate.of([0.6, 0.8])


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_runs_of_one_seed_the_longer_counts_and_the_other_is_named(turn):
    whole = record(small(), [0.7, 0.7], folder="whole")
    stopped = record(small(), [0.5, 0.5], played=2, folder="stopped")
    other = record(small(seed=1), [0.6, 0.6], folder="other")
    given = [*[stopped, whole][::turn], other, other]
    (arm,) = compare(given)
    assert (arm.label, arm.seeds, arm.accuracy) == ("mapl", [0, 1], Estimate.of([0.7, 0.6]))
    (sentence,) = left_out(given)
    assert sentence.index("'stopped' (2 of 3 rounds)") < sentence.index("'whole' (3 of 3 rounds)")


def test_a_run_that_was_tested_counts_before_a_longer_one_that_was_not():
    untested = replace(record(small(), [0.5], folder="untested"), rounds=[Round(t, {}, None, 0, 0) for t in range(3)])
    tested = record(small(), [0.5], played=1, folder="tested")
    assert group([untested, tested]) == {"mapl (1 of 3 rounds)": [tested]}


def test_an_arm_that_is_not_finished_says_so_and_its_gain_is_that_of_its_age():
    stopped = record(small(), [0.6], played=2)
    control = record(small(**ALONE), [0.5])
    arm, twin = compare([stopped, control])
    assert (arm.label, arm.rounds, arm.planned) == ("mapl (2 of 3 rounds)", 2, 3)
    assert twin.label == "mapl, no letters"
    assert arm.gain.mean == pytest.approx(0.6 - 0.99)  # the control as it was then, not as it ended
    seeds_apart = [stopped, record(small(seed=1), [0.6])]
    assert [arm.label for arm in compare(seeds_apart)] == ["mapl (2 to 3 of 3 rounds)"]


def test_runs_on_different_data_are_never_paired_nor_taken_for_each_other():
    """However alike their recipes: a run on real data and a control on noise have no gain."""
    real, noise = (
        record(small(), [0.8], folder="real", data="aa11"),
        record(small(), [0.2], folder="noise", data="bb22"),
    )
    control = record(small(**ALONE), [0.2], data="bb22")
    arms = compare([real, noise, control])
    assert [arm.label for arm in arms] == ["mapl, data aa11", "mapl, data bb22", "mapl, no letters"]
    assert [arm.gain and arm.gain.mean for arm in arms] == [None, pytest.approx(0.0), None]
    assert left_out([real, noise, control]) == []
    pooled = record(small(**POOLED), [0.9], data="bb22")
    assert [arm.room for arm in compare([real, control, pooled])] == [None, None, None]
    assert compare([noise, control, pooled])[0].room.mean == pytest.approx(0.7)
    assert len({run.identity for run in (real, noise, control)}) == 3
    assert replace(real, folder=Path("copy")).identity == real.identity


def test_real_runs_on_different_data_in_python_have_names_and_arms_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = made_of([0, 1, 2, 3] * 30, [0, 1, 2, 3] * 10, 4)
    noise = replace(real, train=Images(255 - real.train.pixels, real.train.labels))
    over = {"rounds": 1, "model": {"backbones": ["mlp"]}, "augment": {"contrastive": {"saturation": 0, "hue": 0}}}
    runs = [mapl.run(small(**over), data=data) for data in (real, noise)]
    assert runs[0].folder != runs[1].folder
    assert {run.folder.name.rpartition("-")[0] for run in runs} == {"python-s1-mapl-mlp-full-m4-seed0"}
    control = mapl.run(small(**over, **ALONE), data=noise)
    assert [arm.gain is None for arm in compare([*runs, control])] == [True, False, True]
    assert runs[0].data != runs[1].data == control.data


def test_real_runs_on_two_files_are_arms_of_their_own(tmp_path, monkeypatch):
    """Two files, or one that was replaced: neither is paired with the control on the other, nor taken for it."""
    monkeypatch.chdir(tmp_path)
    over = {
        "clients": 2,
        "rounds": 1,
        "partition": {"clusters": 2, "sharding": "random"},
        "model": {"backbones": ["mlp"]},
    }
    grey = {"augment": {"contrastive": {"saturation": 0, "hue": 0, "greyscale": 0}}}
    runs = []
    for seed in (0, 1):
        recipe = small(**over, **grey, data={"name": "npz", "folder": make_npz(tmp_path / "mine.npz", seed)})
        runs.append(mapl.run(recipe))
        runs.append(mapl.run(recipe.model_copy(update={"network": control_of(recipe).network})))
    assert len({run.folder for run in runs}) == 4
    assert len({run.identity for run in runs}) == 4
    first, control, second, other = runs
    assert [arm.gain is None for arm in compare([first, other])] == [True, True]
    assert [arm.gain is None for arm in compare([first, control, second])] == [False, True, True]
    assert left_out(runs) == []


def test_a_control_of_more_rounds_or_another_device_is_paired_at_the_same_age():
    ours = record(small(), [0.6])
    longer = record(small(rounds=9, engine={"device": "cpu", "workers": 1}, **ALONE), [0.5], played=9)
    arm, _ = compare([ours, longer])
    assert (arm.pairs, arm.gain.mean) == (1, pytest.approx(0.6 - 0.99))
    shorter = record(small(rounds=2, **ALONE), [0.5], played=2)
    assert compare([ours, shorter])[0].gain is None


def test_the_notes_say_over_how_many_pairs_a_gain_is():
    ours, control = seeds({0: 0.6, 1: 0.7, 2: 0.8, 3: 0.9}), seeds({0: 0.5, 2: 0.5}, **ALONE)
    arm, _ = compare([*ours, *control])
    assert (len(arm.seeds), arm.pairs) == (4, 2)
    (note,) = notes([arm])
    assert "2 pairs" in note
    assert "4 seeds" in note
    (note,) = notes(compare(seeds({0: 0.5})))
    assert note.startswith("no gain for mapl: ")
    assert "--trust" not in note
    (alone,) = compare(seeds({0: 0.5}))
    (note,) = notes([replace(alone, method="mine:Own")])
    assert "--trust" in note
    assert notes(compare(seeds({0: 0.5}, **ALONE))) == []


def test_the_notes_name_every_setting_in_which_arms_differ_beside_the_method():
    slow = {"train": {"learning_rate": 0.1, "epochs": 2}, "partition": {"shots": 4}}
    arms = compare([*seeds({0: 0.5}), *seeds({0: 0.5}, name="fedsim", **slow), *seeds({0: 0.5}, **ALONE)])
    keys = {"train.learning_rate", "train.epochs", "partition.shots"}
    assert all(set(arm.differs) == keys for arm in arms)
    assert arms[1].differs == {"train.learning_rate": 0.1, "train.epochs": 2, "partition.shots": 4}
    (rate,) = [note for note in notes(arms) if note.startswith("train.learning_rate:")]
    assert "0.1 (fedsim)" in rate
    assert "(mapl; mapl, no letters)" in rate
    warmups = compare([*seeds({0: 0.5}), *seeds({0: 0.5}, method={"warmup": 3}, clients=6)])
    assert [arm.differs for arm in warmups] == [{"clients": 4, "method.warmup": 1}, {"clients": 6, "method.warmup": 3}]


def test_runs_that_were_never_tested_are_left_out_with_a_sentence():
    untested = replace(record(small(seed=1), [0.5], folder="untested"), rounds=[])
    alone = replace(record(small(**ALONE), [0.5], folder="alone"), rounds=[])
    tested = record(small(), [0.5], folder="tested")
    (arm,) = compare([untested, tested, alone])
    assert (arm.label, arm.seeds) == ("mapl", [0])
    assert [sentence.split("'")[1] for sentence in left_out([untested, tested, alone])] == ["untested", "alone"]
    first, _ = lines([untested, tested, alone])
    assert (first.label, first.arm) == ("mapl", arm)
    assert compare([untested]) == []


def test_without_a_control_there_is_no_gain():
    others = [
        seeds({0: 0.5}, partition={"shots": 4}, **ALONE),  # another recipe's control
        seeds({1: 0.5}, **ALONE),  # another seed's
        seeds({0: 0.5}, name="local"),
        seeds({0: 0.5}, name="mapl+", **ALONE),  # MAPL is not MAPL+'s simpler twin, it is the other way round
    ]
    for other in others:
        assert compare([*seeds({0: 0.6}), *other])[0].gain is None


def test_mapl_plus_takes_mapls_control_unless_it_has_its_own():
    plus, shared = seeds({0: 0.7}, name="mapl+"), seeds({0: 0.6}, **ALONE)
    own = seeds({0: 0.65}, name="mapl+", **ALONE)
    assert compare([*plus, *shared])[0].gain.mean == pytest.approx(0.1)
    assert compare([*plus, *shared, *own])[0].gain.mean == pytest.approx(0.05)


def test_the_ceiling_is_the_control_with_pooled_images():
    recipe = small("mapl+", seed=3)
    ceiling = ceilings(recipe)[-1]
    assert ceiling.partition.pooled
    unpooled = ceiling.partition.model_copy(update={"pooled": False})
    assert ceiling.model_copy(update={"partition": unpooled}) == control_of(recipe)
    assert (is_ceiling(ceiling), is_control(ceiling)) == (True, False)
    assert (is_ceiling(control_of(recipe)), is_control(control_of(recipe))) == (False, True)
    assert not is_ceiling(small(partition={"pooled": True}))


def test_the_share_of_the_way_by_hand():
    ours = seeds({0: 0.60, 1: 0.72, 2: 0.70, 3: 0.10})
    control = seeds({2: 0.60, 0: 0.50, 1: 0.70, 7: 0.2}, **ALONE)
    ceiling = seeds({1: 0.80, 0: 0.90, 2: 0.80, 3: 0.9}, **POOLED)
    arm, alone, pooled = compare([*ours, *control, *ceiling])
    # Seed 0: 0.10 of 0.40; seed 1: 0.02 of 0.10; seed 2: 0.10 of 0.20. Seed 3 has no control.
    expected = Estimate.of([0.25, 0.2, 0.5])
    assert arm.share.mean == pytest.approx(expected.mean)
    assert arm.share.interval == pytest.approx(expected.interval)
    assert arm.room.mean == pytest.approx((0.4 + 0.1 + 0.2) / 3)
    assert arm.way == f"31.7 ± {100 * expected.interval:.1f} %"
    assert (alone.label, alone.is_control, alone.is_ceiling) == ("mapl, no letters", True, False)
    assert (pooled.label, pooled.is_control, pooled.is_ceiling) == ("mapl, no letters, pooled", False, True)
    for other in (alone, pooled):
        assert other.gain is other.room is other.share is None
        assert other.way == ""
    assert arm.gain.mean == pytest.approx((0.1 + 0.02 + 0.1) / 3)


def test_a_share_may_be_negative_or_more_than_the_whole():
    control, ceiling = seeds({0: 0.5}, **ALONE), seeds({0: 0.6}, **POOLED)
    assert compare([*seeds({0: 0.45}), *control, *ceiling])[0].share.mean == pytest.approx(-0.5)
    assert compare([*seeds({0: 0.7}), *control, *ceiling])[0].share.mean == pytest.approx(2)


@pytest.mark.parametrize("rooms", [(-0.1, -0.1), (0, 0), (0.2, 0), (0.2, -0.1)])
def test_where_a_ceiling_is_no_better_than_the_control_there_is_no_share_but_a_reason(rooms):
    control = seeds({0: 0.5, 1: 0.5}, **ALONE)
    ceiling = seeds({seed: 0.5 + room for seed, room in enumerate(rooms)}, **POOLED)
    arm = compare([*seeds({0: 0.6, 1: 0.6}), *control, *ceiling])[0]
    assert arm.share is None
    assert arm.room.mean == pytest.approx(sum(rooms) / 2)
    assert arm.way == "no room"


def test_without_a_control_or_a_ceiling_of_its_own_an_arm_has_no_share():
    ours, control, ceiling = seeds({0: 0.6}), seeds({0: 0.5}, **ALONE), seeds({0: 0.7}, **POOLED)
    others = [
        [*control],
        [*ceiling],
        [*control, *seeds({1: 0.7}, **POOLED)],  # another seed's
        [*control, *seeds({0: 0.7}, **{**POOLED, "partition": {"pooled": True, "shots": 4}})],  # another recipe's
        [*control, *seeds({0: 0.7}, partition={"pooled": True})],  # pooled, but with letters
        [*control, *seeds({0: 0.7}, **POOLED, train={"learning_rate": 0.1})],
    ]
    for other in others:
        arm = compare([*ours, *other])[0]
        assert (arm.room, arm.share, arm.way) == (None, None, "")
    assert compare([*ours, *control, *ceiling])[0].share is not None


def test_a_ceiling_may_take_other_steps_and_be_tested_otherwise():
    """It has more images, so equal compute needs a limit. The same steps count first, else the first given."""
    ours, control = seeds({0: 0.6}), seeds({0: 0.5}, **ALONE, evaluate={"every": 3})
    few = seeds({0: 0.7}, **POOLED, train={"steps": 2}, evaluate={"all_images": True})
    more = seeds({0: 0.9}, **POOLED, train={"steps": 4})
    same = seeds({0: 1.0}, **POOLED)
    share = {"few": 0.1 / 0.2, "more": 0.1 / 0.4, "same": 0.1 / 0.5}
    assert compare([*ours, *control, *few])[0].share.mean == pytest.approx(share["few"])
    assert compare([*ours, *control, *more, *few])[0].share.mean == pytest.approx(share["more"])
    arms = compare([*ours, *control, *few, *same, *more])
    assert arms[0].share.mean == pytest.approx(share["same"])
    assert [arm.label for arm in arms[2:]] == [
        "mapl, no letters, pooled, train.steps=2",
        "mapl, no letters, pooled, train.steps=None",
        "mapl, no letters, pooled, train.steps=4",
    ]


def test_a_ceiling_is_shared_as_controls_are():
    one = {"model": {"backbones": ["cnn"]}}
    ours = seeds({0: 0.7}, name="fedavg", **one)
    control, ceiling = seeds({0: 0.6}, name="local", **one), seeds({0: 0.8}, name="local", **one, **POOLED)
    arm, alone, pooled = compare([*ours, *control, *ceiling])
    assert arm.share.mean == pytest.approx(0.5)
    assert (alone.label, pooled.label) == ("local", "local, pooled")
    assert (alone.is_control, pooled.is_control, pooled.is_ceiling) == (True, False, True)
    plus, shared = seeds({0: 0.7}, name="mapl+"), [*seeds({0: 0.6}, **ALONE), *seeds({0: 0.8}, **POOLED)]
    assert compare([*plus, *shared])[0].share.mean == pytest.approx(0.5)


def test_letters_between_clients_with_pooled_images_gain_over_the_ceiling():
    """A strange arm, but an arm: its control has pooled images, too."""
    arm, pooled = compare([*seeds({0: 0.8}, partition={"pooled": True}), *seeds({0: 0.7}, **POOLED)])
    assert (arm.label, arm.is_ceiling, pooled.is_ceiling) == ("mapl, pooled", False, True)
    assert arm.gain.mean == pytest.approx(0.1)
    assert arm.room is arm.share is None


def test_a_stopped_arm_is_measured_against_both_at_its_age():
    stopped = record(small(), [0.6], played=2)
    control, ceiling = record(small(**ALONE), [0.5]), record(small(**POOLED), [0.9], played=2)
    arm = compare([stopped, control, ceiling])[0]
    assert arm.room.mean == pytest.approx(0.9 - 0.99)  # the control as it was then
    assert arm.way == "no room"


LABELS = {
    "methods": ([{"name": "mapl"}, {"name": "mapl+"}, {"name": "local"}], ["mapl", "mapl+", "local"]),
    "control": ([{}, ALONE], ["mapl", "mapl, no letters"]),
    "pooled": ([{}, ALONE, POOLED, {"partition": {"pooled": True}}],
               ["mapl", "mapl, no letters", "mapl, no letters, pooled", "mapl, pooled"]),
    "topologies": ([{}, {"network": {"topology": {"name": "ring"}}}],
                   ["mapl, full", "mapl, ring"]),
    "scenarios": ([{}, {"partition": {"scenario": 2}}], ["mapl, scenario 1", "mapl, scenario 2"]),
    "clients": ([{}, {"clients": 6}], ["mapl, 4 clients", "mapl, 6 clients"]),
    "backbones": ([{}, {"model": {"backbones": ["cnn"]}}], ["mapl, 4 backbones", "mapl, one backbone"]),
    "a setting": ([{}, {"method": {"warmup": 3}}], ["mapl, method.warmup=1", "mapl, method.warmup=3"]),
    "same number of backbones": ([{"model": {"backbones": ["cnn"]}}, {"model": {"backbones": ["mlp"]}}],
                                 ["mapl, one backbone, model.backbones=['cnn']",
                                  "mapl, one backbone, model.backbones=['mlp']"]),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_labels_tell_arms_apart(case):
    recipes, expected = LABELS[case]
    labels = [arm.label for arm in compare([run for over in recipes for run in seeds({0: 0.5}, **over)])]
    assert len(set(labels)) == len(recipes)
    assert labels == expected


@pytest.mark.parametrize("name", ["local", "mutual"])
def test_a_method_that_never_writes_is_one_arm_whatever_its_network_and_no_control_of_itself(name):
    (arm,) = compare([*seeds({0: 0.5}, name=name), *seeds({1: 0.5}, name=name, **ALONE)])
    assert (arm.label, arm.is_control) == (name, True)
    assert arm.seeds == [0, 1]
    assert arm.gain is None


@pytest.mark.parametrize("network", [{}, ALONE])
def test_a_method_that_only_mixes_weights_has_local_as_its_control(network):
    one = {"model": {"backbones": ["cnn"]}}
    arms = compare([*seeds({0: 0.7}, name="fedavg", **one), *seeds({0: 0.6}, name="local", **one, **network)])
    assert arms[0].gain.mean == pytest.approx(0.1)


def test_cost_and_recovered_clusters_are_means_over_seeds(tmp_path):
    inside = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]).double()
    half = torch.full((4, 4), 0.25).double()
    runs = [record(small(seed=s), [0.5], m, folder=str(tmp_path / str(s))) for s, m in ((0, 10), (1, 30))]
    for run, weights in zip(runs, (inside, half), strict=True):
        write_graph(run, weights)
        assert first_mixed(run) == 0
    (arm,) = compare(runs)
    assert arm.inside == pytest.approx((1 + 1 / 3) / 2)
    assert (arm.messages, arm.bytes) == (20, 200)
    alone = record(small(**ALONE), [0.5])
    assert compare([alone])[0].inside is first_mixed(alone) is None


def test_an_arm_as_a_dictionary_is_plain_data():
    (arm,) = compare(seeds({0: 0.5, 1: 0.7}))
    assert arm.as_dict()["accuracy"].keys() == {"mean", "interval"}
    assert arm.as_dict()["seeds"] == [0, 1]


def test_measures_of_recovered_clusters():
    clusters = [0, 0, 0, 1, 1, 1]
    same = torch.tensor([[float(a == b) for b in clusters] for a in clusters]).double()
    uniform = torch.ones(6, 6).double()
    assert share_inside(same, clusters) == 1
    assert share_inside(1 - same, clusters) == 0
    assert share_inside(uniform, clusters) == share_by_chance(clusters) == pytest.approx(2 / 5)
    assert share_inside(torch.eye(6).double(), clusters) is None
    assert share_inside(uniform, [0] * 6) is adjusted_rand(uniform, [0] * 6) is share_by_chance([0]) is None
    assert (edges(same), edges(torch.eye(6))) == (12, 0)
    assert adjusted_rand(same, clusters) == 1
    assert adjusted_rand(1 - same, clusters) < 1
    overlap = class_overlap([[0, 1], [1, 2], [5]])
    assert overlap.tolist() == [[1, pytest.approx(1 / 3), 0], [pytest.approx(1 / 3), 1, 0], [0, 0, 1]]
