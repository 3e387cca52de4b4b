"""A recipe is one tree of layers that survives being written down; what is wrong with one is said in a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapl.methods
from conftest import line_with
from mapl import MaplError, MethodSettings, Recipe
from mapl.data.augment import PLAIN, RELEASED
from mapl.methods.local import Local
from mapl.plugins import known
from mapl.recipe import assignment, compose, read, to_toml, validated
from mapl.runs.folder import load
from mapl.trees import merge

# Layers


def test_each_layer_lies_over_the_one_before_and_provenance_says_which_won():
    recipe, origin = compose(
        ("my.toml", {"rounds": 7, "partition": {"shots": 3}, "seed": 1}), ("command line", {"seed": 2, "clients": 6})
    )
    assert (recipe.rounds, recipe.seed, recipe.clients) == (7, 2, 6)
    assert (recipe.partition.shots, recipe.partition.sharding) == (3, "random")
    said = {
        "rounds": "my.toml",
        "seed": "command line",
        "clients": "command line",
        "partition.shots": "my.toml",
        "partition.sharding": "data set digits",
        "method.warmup": "data set digits",
        "method.graph.beta": "default",
        "partition.clusters": "default",
    }
    assert {key: origin[key] for key in said} == said


@pytest.mark.parametrize("tree", [{"data": "cifar10"}, {"data": "digits", "method": "fedproto"}])
def test_a_data_set_that_suggests_nothing_for_a_method_is_not_where_its_defaults_came_from(tree):
    _, origin = compose(("my.toml", tree))
    own = {place for key, place in origin.items() if key.startswith("method.") and key != "method.name"}
    assert own == {"default"}


def test_a_layer_that_names_another_method_leaves_behind_what_this_one_does_not_take():
    file = ("my.toml", {"method": {"name": "mapl", "warmup": 7, "graph": {"beta": 0.2}}})
    recipe, origin = compose(file, ("command line", {"method": "fedproto"}))
    assert recipe == Recipe.of(method="fedproto")
    assert origin["method.name"] == "command line"
    plus = compose(file, ("command line", {"method": {"name": "mapl+", "warmup": 8}}))[0].method
    assert (plus.name, plus.warmup, plus.graph.beta) == ("mapl+", 8, 0.2)
    with pytest.raises(MaplError, match=r"unknown key 'method.graph'; known: "):
        compose(file, ("command line", {"method": {"name": "fedproto", "graph": {"beta": 0.2}}}))


def test_a_data_sets_suggestions_reach_only_methods_that_take_them():
    assert Recipe.of().method.warmup == 20
    assert not hasattr(Recipe.of(method="local").method, "warmup")


def test_defaults_are_the_papers_where_nothing_is_suggested():
    recipe = Recipe.of(data="python")
    assert recipe == Recipe(data=recipe.data)
    assert (recipe.clients, recipe.rounds, recipe.method.warmup, recipe.partition.shots) == (20, 400, 100, 300)
    assert (recipe.augment.contrastive, recipe.augment.plain) == (RELEASED, PLAIN)


def test_a_table_that_sets_one_thing_leaves_the_rest_as_it_is():
    recipe = Recipe.of(data="python", augment={"contrastive": {"flip": 0}}, method={"graph": {"mu1": 0.3}})
    assert recipe.augment.contrastive == RELEASED.model_copy(update={"flip": 0.0})
    assert recipe.augment.plain == PLAIN
    assert recipe.method.graph == Recipe.of(data="python").method.graph.model_copy(update={"mu1": 0.3})


@given(
    *[st.dictionaries(st.sampled_from("ab"), st.integers() | st.dictionaries(st.sampled_from("xy"), st.integers()))] * 3
)
def test_merging_layers_does_not_depend_on_how_they_are_grouped_and_changes_none(a, b, c):
    before = repr((a, b, c))
    if all(isinstance(layer.get(k, {}), dict) == isinstance(a.get(k, {}), dict) for layer in (b, c) for k in "ab"):
        assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, {}) == a == merge({}, a)
    assert merge(a, a) == a
    assert repr((a, b, c)) == before


# Written down


@pytest.mark.parametrize("method", sorted(known(mapl.methods)))
def test_a_recipe_written_as_toml_reads_as_the_same_recipe(method, tmp_path):
    recipe = Recipe.of(
        name='a "quoted" name, with ξ',
        method=method,
        seed=12,
        partition={"scenario": 4, "shots_range": [2, 9], "test_shots": 3},
        augment={"contrastive": {"crop_scale": "none", "blur": 0.25}},
        network={"letter_limit": 10**9, "topology": {"name": "file", "path": 'a "\\ \t\x1b\x7f\x9b\u202e\U000e0041'}},
    )
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert validated(read(tmp_path / "recipe.toml"), "file") == recipe
    _, origin = compose(("here", {"method": method}))
    text = to_toml(recipe, origin)
    assert compose(("again", tomllib.loads(text)))[0] == recipe
    assert text.replace("\n", "").isprintable()


def test_a_setting_without_a_value_is_none_in_a_file_and_on_the_command_line():
    """RELEASED crops, so that None there must be said: leaving it out would mean the default."""
    recipe = Recipe.of(data="python", augment={"contrastive": {"crop_scale": None}})
    assert recipe.augment.contrastive.crop_scale is None
    assert 'crop_scale = "none"' in to_toml(recipe)
    assert validated(tomllib.loads(to_toml(recipe)), "text") == recipe
    set_there = compose(("x", {"data": "python"}), ("y", assignment("augment.contrastive.crop_scale=none")))[0]
    assert set_there == recipe
    assert recipe.network.letter_limit is None
    assert Recipe.of(network={"topology": {"name": "none"}}).network.topology.name == "none"


class Optional(Local):
    """A method of somebody else's, with a setting that may be unset but is not by default."""

    class Settings(MethodSettings):
        strength: float | None = 0.5


def test_a_setting_of_a_foreign_method_may_be_none_too():
    recipe = Recipe.of(method={"name": "test_recipe:Optional", "strength": None})
    assert recipe.method.strength is None
    assert validated(tomllib.loads(to_toml(recipe)), "text") == recipe
    assert Recipe.of(method="test_recipe:Optional").method.strength == 0.5


def test_settings_objects_are_taken_as_they_are():
    settings = Recipe.of(method={"name": "mapl+", "warmup": 3}).method
    assert Recipe.of(method=settings).method == settings
    assert Recipe.of(data=Recipe.of(data="python").data) == Recipe.of(data="python")


def test_the_fingerprint_ignores_what_does_not_change_the_rounds_and_nothing_else():
    base = Recipe.of()
    changed = {"evaluate": {"every": 9, "all_images": True}, "engine": {"device": "cpu"}, "data": {"folder": "there"}}
    same = Recipe.of(name="x", rounds=99, checkpoint={"every": 3, "keep": 5}, network={"transport": "bytes"}, **changed)
    assert same.fingerprint() == base.fingerprint()
    assert same.settings() == base.settings()
    alone = [Recipe.of(method="local", network={"topology": {"name": name}}) for name in ("none", "ring")]
    assert alone[0].fingerprint() == alone[1].fingerprint()
    others = [
        Recipe.of(seed=1),
        Recipe.of(clients=11),
        Recipe.of(method={"graph": {"beta": 0.51}}),
        Recipe.of(method="mapl+"),
        Recipe.of(partition={"shots": 6}),
        Recipe.of(train={"reset": False}),
        Recipe.of(network={"topology": {"name": "ring"}}),
        Recipe.of(evaluate={"moment": "mixed"}),
    ]
    assert len({r.fingerprint() for r in [base, *others]}) == len(others) + 1


def test_a_title_is_made_of_what_the_run_is():
    assert Recipe.of(seed=3).title() == "digits-s1-mapl-full-m10-seed3"
    assert Recipe.of(name="mine").title() == "mine"
    assert "/" not in Recipe.of(method="test_recipe:Optional").title()


# The command line's assignments


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("rounds=3", {"rounds": 3}),
        ("method.graph.beta=0.2", {"method": {"graph": {"beta": 0.2}}}),
        ("train.reset=false", {"train": {"reset": False}}),
        ('model.backbones=["mlp", "cnn"]', {"model": {"backbones": ["mlp", "cnn"]}}),
        ("network.topology.name=ring", {"network": {"topology": {"name": "ring"}}}),
        ('name="a=b"', {"name": "a=b"}),
        ("name=a=b", {"name": "a=b"}),
        ("name=", {"name": ""}),
        (" rounds =3", {"rounds": 3}),
        ("method=local", {"method": {"name": "local"}}),
        ("data=digits", {"data": {"name": "digits"}}),
    ],
)
def test_an_assignment_is_toml_or_else_a_plain_string(text, tree):
    assert assignment(text) == tree


@pytest.mark.parametrize("text", ["rounds", "=3", "", " = 1"])
def test_an_assignment_that_is_none_says_how_to_write_one(text):
    with pytest.raises(MaplError, match=r"write it as key=value, for example method\.graph\.beta=0\.2"):
        assignment(text)


# What can be wrong

BAD = {
    "unknown method": ({"method": "mappl"}, r"unknown method 'mappl'; known: .*mapl, mapl\+.*\. Did you mean 'mapl'\?"),
    "unknown data set": ({"data": "digit"}, r"unknown data set 'digit'; known: .*digits.*Did you mean 'digits'\?"),
    "unknown key": ({"round": 3}, r"recipe \(Python\): unknown key 'round'; known: augment, .*\. Did you mean 'rounds'\?"),
    "unknown key below": ({"partition": {"shot": 3}}, r"unknown key 'partition.shot'; known: .* Did you mean 'shots'\?"),
    "unknown key of a method": ({"method": {"name": "local", "warmup": 3}}, r"unknown key 'method.warmup'; known: name\."),
    "unknown key of the graph": ({"method": {"graph": {"bta": 3}}}, r"unknown key 'method.graph.bta'; .*Did you mean 'beta'"),
    "unknown key of a topology": ({"network": {"topology": {"degre": 3}}}, r"'network.topology.degre'; .* mean 'degree'\?"),
    "a word for a number": ({"clients": "many"}, r"clients: got 'many', but it should be a valid integer$"),
    "a number for a word": ({"model": {"backbones": ["mlp", 3]}}, r"model.backbones.1: got 3, but it should be a valid string"),
    "a number for a table": ({"partition": 3}, r"partition: got 3, but it should be a table"),
    "a number for a method": ({"method": 3}, r"method: got 3, but it takes a name or a table"),
    "a number for a method's name": ({"method": {"name": 3}}, r"method: its name should be a string"),
    "a number for a data set's name": ({"data": {"name": 3}}, r"data.name: got 3, but it should be a valid string"),
    "a number for a graph": ({"method": {"graph": 3}}, r"method.graph: got 3, but it should be a table"),
    "too small": ({"rounds": 0}, r"rounds: got 0, but it should be greater than or equal to 1"),
    "never tested": ({"evaluate": {"every": 0}}, r"evaluate.every: got 0, but it should be greater than or equal to 1"),
    "no such scenario": ({"partition": {"scenario": 7}}, r"partition.scenario: got 7, but it should be 1, 2, 3 or 4"),
    "neither a number nor all": ({"partition": {"test_shots": "al"}}, r"partition.test_shots: got 'al', but it should be a "
                                 r"valid integer or 'all'"),
    "no tests": ({"partition": {"test_shots": 0}}, r"partition.test_shots: got 0, but .*greater than or equal to 1"),
    "no backbone": ({"model": {"backbones": []}}, r"model.backbones: got \[\], but it should have at least 1 item"),
    "no such term": ({"method": {"terms": ["protoype"]}}, r"method.terms.0: got 'protoype', but it should be 'contrastive', "),
    "infinite": ({"method": {"temperature": float("inf")}}, r"method.temperature: got inf, but it should be a finite number"),
    "not a number": ({"train": {"learning_rate": float("nan")}}, r"train.learning_rate: got nan, but it should be"),
    "no such beta": ({"train": {"betas": [0.5, 1.5]}}, r"train.betas.1: got 1.5, but it should be less than 1"),
    "two crops": ({"augment": {"contrastive": {"crop_padding": 3}}}, r"augment.contrastive: .*crop_scale and crop_padding"),
    "not a method": ({"method": "json:dumps"}, r"method 'json:dumps' is not a method.*mapl.Method"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_which_key_what_it_got_and_what_it_takes(case):
    tree, sentence = BAD[case]
    with pytest.raises(MaplError, match=sentence):
        Recipe.of(**tree)


def test_several_mistakes_are_all_said_at_once():
    with pytest.raises(MaplError) as error:
        Recipe.of(clients=0, seed=-1)
    said = str(error.value)
    assert "clients: got 0" in said
    assert "seed: got -1" in said


def test_the_error_names_the_layers():
    with pytest.raises(MaplError, match=r"recipe \(my.toml and command line\): "):
        compose(("my.toml", {"clients": 0}), ("command line", {"seed": 1}))


def test_files_that_are_no_recipes(tmp_path: Path):
    with pytest.raises(MaplError, match=r"there is no recipe '.*missing.toml'"):
        read(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("clients = = 3")
    with pytest.raises(MaplError, match=r"recipe '.*bad.toml' is not TOML: .*line 1"):
        read(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MaplError, match=r"recipe '.*binary.toml' cannot be read"):
        read(tmp_path / "binary.toml")
    with pytest.raises(MaplError, match="is a folder, but a recipe is a TOML file"):
        read(tmp_path)


def test_a_folder_that_is_no_run(tmp_path: Path):
    with pytest.raises(MaplError, match=line_with("not the folder of a run", "recipe.toml")):
        load(tmp_path)
    (tmp_path / "recipe.toml").write_text(to_toml(Recipe.of()))
    with pytest.raises(MaplError, match=r"cannot be read: .*clients.json"):
        load(tmp_path)
