"""One typed tree of settings that describes a run. It comes from TOML and the command line and is saved with the run.

A recipe is made of layers, each overriding the one before: the defaults written here, the suggestions of the data set,
a recipe file, the command line. `Provenance` remembers which layer each value came from.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

import mapl.data.sources
import mapl.methods
from mapl.complaints import complaint
from mapl.data.augment import PLAIN, RELEASED, AugmentSettings
from mapl.data.dataset import DataSettings
from mapl.data.kinds import FeatureSettings, TokenSettings
from mapl.data.loading import GIVEN_IN_PYTHON, load
from mapl.data.objects import Data, as_data
from mapl.data.own import located, suited, suited_to
from mapl.data.partition import PartitionSettings
from mapl.engine.settings import EngineSettings, TrainSettings
from mapl.errors import MaplError
from mapl.methods._base import Method, MethodSettings
from mapl.methods.mapl import MaplSettings
from mapl.mixing import MixingSettings
from mapl.model import ModelSettings
from mapl.names import check_name, folder_name
from mapl.network import CompressSettings, JoinersSettings, NoiseSettings, TopologySettings
from mapl.plugins import Untrusted, find, is_looking, looking, take_as_named
from mapl.trees import UNSET, Provenance, Tree, flat, merge, toml_lines

LATER = {
    "data": ("size", "label"),
    "augment": ("features", "tokens", "function"),
    "train": ("steps", "warmup_rounds", "cosine_rounds"),
    "partition": ("pooled", "sizes", "digest"),
    "network": ("noise", "participation", "joiners"),
}
"""Settings that were added later. A run with their defaults is the run that it was before."""

VERSION = 1
"""The version of recipe files that this mapl writes. It reads this one, older ones, and files that name none."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AugmentSection(Section):
    """How training samples are augmented, by their kind."""

    contrastive: AugmentSettings = Field(RELEASED, description="Images, for methods that compare two views of one.")
    plain: AugmentSettings = Field(PLAIN, description="Images, for methods that take one view.")
    features: FeatureSettings = Field(FeatureSettings(), description="Rows of a table, and signals.")
    tokens: TokenSettings = Field(TokenSettings(), description="Texts.")
    function: str | None = Field(
        None,
        description="Import path of your own function, in place of all of these: (samples, uniforms) → samples. It "
        "gets images in [0, 1], standardised features or token ids, and as many uniform random numbers.",
    )

    @model_validator(mode="before")
    @classmethod
    def _over_the_defaults(cls, values: Any) -> Any:
        """A table that sets one value keeps the other defaults of this section, not those of `AugmentSettings`."""
        if not isinstance(values, dict):
            return values
        defaults = {"contrastive": RELEASED.model_dump(), "plain": PLAIN.model_dump()}
        return {k: {**defaults.get(k, {}), **v} if isinstance(v, dict) else v for k, v in values.items()}


class NetworkSection(Section):
    """Who can reach whom, how letters travel, and how large they may be."""

    topology: TopologySettings = Field(TopologySettings(), description="Who can reach whom.")
    transport: Literal["memory", "bytes"] = Field(
        "memory",
        description="How letters travel: 'memory' hands over tensors; 'bytes' encodes, checks and decodes each letter, "
        "as a real network would. The results are the same.",
    )
    message_budget: int | None = Field(
        None, ge=1, description="Stop after the round in which the total reaches this many messages."
    )
    letter_limit: int | None = Field(None, ge=1, description="The largest letter in bytes; 'none': no limit.")
    compress: CompressSettings = Field(CompressSettings(), description="How letters are compressed.")
    noise: NoiseSettings = Field(NoiseSettings(), description="Noise on the letters that clients write.")
    mixing: MixingSettings = Field(MixingSettings(), description="How letters are averaged.")
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="The share of the clients that takes part in a round, at least one, drawn anew for each. The "
        "others neither train nor write nor read, and their models stay as they are. All are tested.",
    )
    joiners: JoinersSettings = Field(JoinersSettings(), description="Clients that join late.")


class EvaluateSection(Section):
    """When the clients are tested."""

    every: int = Field(1, ge=1, description="Rounds between tests; the last round is always tested.")
    moment: Literal["trained", "mixed"] = Field(
        "trained",
        description="Test after local training ('trained', as the released program does) or after mixing ('mixed').",
    )
    all_images: bool = Field(False, description="Also test with all test images of each client's classes.")


class CheckpointSection(Section):
    """How often a run is saved."""

    every: int = Field(10, ge=1, description="Rounds between checkpoints; the last round is always saved.")
    keep: int = Field(
        2, ge=1, description="How many checkpoints to keep; if the newest is damaged, an older one is used."
    )


def _method_name(table: Any) -> str | None:
    """The method that a recipe's table of it names; without a name it is the default. None: it names no method."""
    name = table.get("name", "mapl") if isinstance(table, dict) else None
    return name if isinstance(name, str) else None


def _typed_method(value: Any) -> Any:
    """Validate the method's table with the settings of the method that it names."""
    if isinstance(value, MethodSettings):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        raise ValueError("it takes a name or a table")
    name = _method_name(value)
    if name is None:
        raise ValueError("its name should be a string")
    # A ValidationError raised here becomes part of the recipe's own.
    settings = settings_class(name)
    return settings.model_validate({**_with_none(value, settings), "name": name})


class UnreadSettings(MethodSettings):
    """The settings of a method that is not imported, as they are written."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _only_data(cls, values: Any) -> Any:
        _check_data(values)
        return values


def _check_data(value: Any) -> None:
    """Refuse anything but a tree of texts, numbers, lists and tables with plain keys, as a recipe is saved."""
    if isinstance(value, dict):
        for key, below in value.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
                raise ValueError(f"a key of its settings should be letters, digits and underscores, not {key!r}")
            _check_data(below)
    elif isinstance(value, list):
        for below in value:
            _check_data(below)
    elif not (isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))):
        raise ValueError(f"its settings should be texts, finite numbers, lists and tables, not {value!r}")


def method_class(name: str) -> type[Method[Any]]:
    """The method of that name. `Method` itself, with its defaults, stands for code that may not be imported."""
    try:
        found = find("method", name, mapl.methods)
    except Untrusted:
        return Method
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MaplError(f"method {name!r} is not a method: it should be a subclass of mapl.Method")
    if lacking := sorted(found.__abstractmethods__):
        raise MaplError(f"method {name!r} is not complete: its class has no {'(), no '.join(lacking)}()")
    return found


def settings_class(method: str) -> type[MethodSettings]:
    """The settings that belong to a method."""
    found = method_class(method)
    settings: type[MethodSettings] = UnreadSettings if found is Method else found.Settings
    return settings


class Recipe(Section):
    """Everything that describes a run."""

    name: Annotated[str, AfterValidator(check_name)] = Field(
        "", description="Name of the run and of its folder; empty: made from the settings."
    )
    seed: int = Field(0, ge=0, description="Seed of every random draw.")
    clients: int = Field(20, ge=1, description="Number of clients, M.")
    rounds: int = Field(400, ge=1, description="Number of rounds, T.")
    method: Annotated[SerializeAsAny[MethodSettings], BeforeValidator(_typed_method)] = Field(
        MaplSettings(), description="The method and its own settings."
    )
    data: DataSettings = Field(DataSettings(), description="The data set.")
    partition: PartitionSettings = Field(PartitionSettings(), description="Who has which images.")
    model: ModelSettings = Field(ModelSettings(), description="The clients' models.")
    augment: AugmentSection = Field(AugmentSection(), description="How training samples are augmented.")
    train: TrainSettings = Field(TrainSettings(), description="Local training.")
    engine: EngineSettings = Field(EngineSettings(), description="Where and how fast the clients train.")
    network: NetworkSection = Field(NetworkSection(), description="The network.")
    evaluate: EvaluateSection = Field(EvaluateSection(), description="Tests.")
    checkpoint: CheckpointSection = Field(CheckpointSection(), description="Checkpoints.")

    @model_validator(mode="after")
    def _joiners_can_join(self) -> Recipe:
        joiners = self.network.joiners
        if joiners.clients >= self.clients:
            raise ValueError(
                f"network.joiners.clients: got {joiners.clients}, but there are {self.clients} clients; at least one "
                "has to be there from the start"
            )
        if joiners.clients and joiners.round >= self.rounds:
            raise ValueError(
                f"network.joiners.round: got {joiners.round}, but the run has rounds 0 to {self.rounds - 1}, so they "
                "would never join; take an earlier round, or more rounds"
            )
        return self

    @staticmethod
    def of(**settings: Any) -> Recipe:
        """A recipe from Python: `Recipe.of(method="mapl", rounds=20, partition={"shots": 5})`.

        `data` is the name of a data set, a path, or data of your own as `mapl.run(data=…)` takes them: then defaults
        are made from them, and they are given again to `mapl.run`.
        """
        tree, data = _from_python(settings)
        return compose(("Python", tree), data=data)[0]

    @staticmethod
    def read(path: str | Path, **settings: Any) -> Recipe:
        """The recipe of a file, with settings from Python over it: `Recipe.read("my.toml", seed=1)`.

        Like `mapl run FILE`, it takes code that the file names as named by you: trust it as you would a script.
        """
        tree, data = _from_python(settings)
        return compose((str(path), read(Path(path))), ("Python", tree), data=data)[0]

    def title(self) -> str:
        """The name of the run, or one made from its settings."""
        alike = list(self.model.backbones) if len(set(self.model.backbones)) == 1 else []
        parts = (self.data.name, self.partition.short(), self.method.name, *alike, self.network.topology.name)
        return self.name or f"{folder_name('-'.join(parts))}-m{self.clients}-seed{self.seed}"

    def settings(self) -> Tree:
        """All settings that make this the run that it is. Equal settings on equal data are the same run.

        This is the one definition of "the same run". It leaves out the name, the device, checkpoints, how often and
        on which further images clients are tested, and the length: a longer run begins with the rounds of a shorter
        one. Results are equal over any transport, and without letters all networks are the same, but for who takes
        part. A recipe says where its data are, but not what they are: `Record.identity` adds that.
        """
        tree = self.model_dump(
            mode="json",
            exclude={
                "name": True,
                "rounds": True,
                "checkpoint": True,
                "engine": True,
                "data": {"folder"},
                "network": {"transport"},
                "evaluate": {"every", "all_images"},
            },
        )
        # What a method from elsewhere does is not asked: that would import it, and a fingerprint needs only the recipe.
        if self.network.topology.name == "none" or (":" not in self.method.name and is_silent(self)):
            tree["network"] = without_letters(self.network).model_dump(mode="json", exclude={"transport"})
        if tree["network"]["topology"]["name"] != "explore":
            tree["network"]["topology"].pop("explore")
        if ":" in self.method.name:
            tree["method"] = _as_written(tree["method"])
        return tree

    def fingerprint(self) -> str:
        """16 hex digits, equal for recipes with the same `settings`."""
        tree = self.settings()
        tree["evaluate"]["every"] = 1  # as in fingerprints from when it was a part of them
        if tree["network"]["compress"]["kind"] == "none":
            tree["network"].pop("compress")
        if tree["network"]["mixing"]["kind"] == "mean":
            tree["network"].pop("mixing")
        if tree["network"]["topology"]["digest"] is None:
            tree["network"]["topology"].pop("digest")
        # As in runs from before there was a choice.
        for section, keys in LATER.items():
            defaults = type(getattr(self, section))().model_dump(mode="json")
            tree[section] = {k: v for k, v in tree[section].items() if k not in keys or v != defaults[k]}
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def code_of(recipe: Recipe) -> list[str]:
    """The import paths of code from outside the package that it names."""
    values = flat(recipe.model_dump(mode="json")).values()
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return [text for text in texts if isinstance(text, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text)]


def names_code(recipe: Recipe) -> bool:
    """Whether it names code from outside the package, as an import path."""
    return bool(code_of(recipe))


NOBODY = NetworkSection.model_validate({"topology": {"name": "none"}})
"""The empty network, without any limit on letters."""


def without_letters(network: NetworkSection) -> NetworkSection:
    """The empty network in which the same clients take part in each round."""
    return NOBODY.model_copy(update={"participation": network.participation, "joiners": network.joiners})


def has_letters(recipe: Recipe) -> bool:
    """Whether letters are written."""
    return recipe.network.topology.name != "none" and not is_silent(recipe)


@looking()
def is_silent(recipe: Recipe) -> bool:
    """Whether the method writes no letters on any network."""
    return method_class(recipe.method.name).silent


def _from_python(settings: Tree) -> tuple[Tree, Data | None]:
    """Settings from Python, and the data that were given among them as objects."""
    given = settings.get("data")
    table = isinstance(given, dict) and given.keys() <= DataSettings.model_fields.keys()
    if given is None or table or isinstance(given, str | DataSettings):
        return settings, None
    if isinstance(given, Path):
        return {**settings, "data": str(given.expanduser().absolute())}, None
    return {**settings, "data": GIVEN_IN_PYTHON}, as_data(given)


def compose(*layers: tuple[str, Tree], data: Data | None = None) -> tuple[Recipe, Provenance]:
    """A recipe from named layers, each overriding the one before, the data set's suggestions and the defaults.

    `data` are those that were given in Python.
    """
    if not is_looking():
        take_as_named([layer for _, layer in layers])
    given: Tree = {}
    for _, layer in layers:
        over = _expand_names(layer)
        given = merge(_ready_for(over, given), over)
    named = given.get("data", {})
    name = named.get("name", "digits") if isinstance(named, dict) else getattr(named, "name", "digits")
    defaults = [(f"data set {name}", suggestions(name, given.get("method", {})))]
    if fitting := _fitting(given) if data is None else suited_to(data, given):
        defaults.append(("your data", _for_method(fitting, given.get("method", {}))))
    if given.get("clients") == 1:
        defaults.append(("a single client", {"partition": {"clusters": 1}}))
    stack = defaults + [(origin, _expand_names(layer)) for origin, layer in layers]
    tree = merge(reduce(merge, (layer for _, layer in defaults)), given)
    source = " and ".join(origin for origin, _ in layers) or "defaults"
    recipe = validated(tree, source)
    origins = {key: origin for origin, layer in stack for key in flat(layer)}
    # A list or a table that is given as a whole is the origin of everything below its key.
    return recipe, {key: _origin(key, origins) for key in flat(recipe.model_dump(mode="json"))}


def _ready_for(over: Tree, given: Tree) -> Tree:
    """What was given so far. If `over` names another method, settings that this method does not have are left out.

    So `--method fedproto` can override a recipe whose method has a graph.
    """
    before, after = given.get("method"), over.get("method")
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return given
    name = after.get("name")
    if not isinstance(name, str) or name == _method_name(before):
        return given
    known = settings_class(name).model_fields
    return {**given, "method": {key: value for key, value in before.items() if key in known}}


def suggestions(data: Any, method: Any) -> Tree:
    """The defaults for this data set; of those for methods, only the ones that this method has."""
    if not isinstance(data, str):
        return {}
    try:
        source = None if data == GIVEN_IN_PYTHON else find("data set", data, mapl.data.sources)
    except Untrusted:
        source = None
    suggested: Tree = getattr(source, "suggests", {})
    name = _method_name(method)
    if name is None:
        return suggested
    if method_class(name).homogeneous:
        alike = getattr(source, "alike", "cnn" if data == GIVEN_IN_PYTHON else "resnet18")
        suggested = merge(suggested, {"model": {"backbones": [alike]}})
    return _for_method(suggested, method)


def _fitting(given: Tree) -> Tree:
    """Defaults made from the data, if they are the user's own, and there."""
    try:
        settings = DataSettings.model_validate(given.get("data", {}))
        source = find("data set", settings.name, mapl.data.sources) if ":" not in settings.name else None
    except (ValidationError, MaplError):  # said when the recipe is checked
        return {}
    if not getattr(source, "own", False) or settings.folder is None or not settings.own().exists():
        return {}
    return suited(load(settings), given)


def _for_method(suggested: Tree, method: Any) -> Tree:
    """The suggestions; of those for methods, only the ones that this method has."""
    name = _method_name(method)
    if name is None:
        return suggested
    known = settings_class(name).model_fields
    taken = {k: v for k, v in suggested.get("method", {}).items() if k in known}
    # An empty table would count as the origin of all defaults of the method.
    rest = {k: v for k, v in suggested.items() if k != "method"}
    return {**rest, "method": taken} if taken else rest


def read(path: Path) -> Tree:
    """The tree of a TOML recipe file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MaplError(f"there is no recipe {str(path)!r}") from None
    except IsADirectoryError:
        raise MaplError(f"recipe {str(path)!r} is a folder, but a recipe is a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MaplError(f"recipe {str(path)!r} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise MaplError(f"recipe {str(path)!r} is not TOML: {error}") from error


def validated(tree: Tree, source: str) -> Recipe:
    """The recipe of a tree, or one error that says which key, what it got, and what it takes."""
    tree = dict(tree)
    _check_version(tree.pop("version", VERSION), source)
    try:
        return Recipe.model_validate(_with_none(tree, Recipe))
    except ValidationError as error:
        name = _method_name(tree.get("method"))
        chosen = {"method": None if name is None else settings_class(name)}
        raise MaplError(f"recipe ({source}): {complaint(error.errors(), Recipe, chosen)}") from None
    except MaplError as error:  # about a name that it finds nothing for
        raise MaplError(f"recipe ({source}): {error}", shell=f"recipe ({source}): {error.shell}") from error


def _check_version(version: Any, source: str) -> None:
    if type(version) is not int or version < 1:
        raise MaplError(f"recipe ({source}): version: got {version!r}, but it should be a whole number from 1 on")
    if version > VERSION:
        raise MaplError(
            f"recipe ({source}) was written by a newer mapl: it has version {version}, and this mapl reads up to "
            f"version {VERSION}"
        )


def assignment(text: str) -> Tree:
    """The tree of one `key.path=value` from the command line; the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise MaplError(f"--set {text!r}: write it as key=value, for example method.graph.beta=0.2")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return _expand_names(parsed)


def to_toml(recipe: Recipe, provenance: Provenance | None = None) -> str:
    """The whole recipe as TOML; with provenance, each line says where its value came from."""
    tree = {"version": VERSION, **recipe.model_dump(mode="json")}
    return "\n".join(toml_lines(tree, provenance or {})) + "\n"


def _expand_names(layer: Tree) -> Tree:
    """`method = "local"` is short for `[method] name = "local"`; the same for `data`, and for kinds in `network`.

    The name of a data set can be a path to data of your own.
    """
    tree = {k: {"name": v} if k in ("method", "data") and isinstance(v, str) else v for k, v in layer.items()}
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(data.get("name"), str) and "folder" not in data:
        tree["data"] = {**data, **located(data["name"])}
    network = tree.get("network")
    if isinstance(network, dict):
        kinds = ("compress", "mixing")
        tree["network"] = {k: {"kind": v} if k in kinds and isinstance(v, str) else v for k, v in network.items()}
    return tree


def _origin(key: str, origins: Provenance) -> str:
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in origins:
            return origins[prefix]
    return "default"


def _as_written(tree: Tree) -> Tree:
    """The tree with "none" for None, as a file has it: without the method's code nobody can tell one from the other."""
    return {
        key: UNSET if value is None else _as_written(value) if isinstance(value, dict) else value
        for key, value in tree.items()
    }


def _with_none(tree: Tree, section: type[BaseModel]) -> Tree:
    """The tree with None instead of "none" for settings that may have no value."""
    result = dict(tree)
    for key, value in tree.items():
        takes = section.model_fields[key].annotation if key in section.model_fields else None
        if value == UNSET and type(None) in get_args(takes):
            result[key] = None
        elif isinstance(value, dict) and isinstance(takes, type) and issubclass(takes, BaseModel):
            result[key] = _with_none(value, takes)
    return result
