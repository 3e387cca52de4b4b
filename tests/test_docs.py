"""The documents point to files and names that exist, and their code runs."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from torch import nn

import mapl
from mapl import Recipe
from mapl.analysis.control import control_of
from mapl.methods.courier import Courier
from mapl.peer.settings import PeerSettings

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "benchmarks/README.md", "benchmarks/NOTES.md", "results/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    here = [link for link in links if not link.startswith("http")]
    assert not [link for link in here if not (page.parent / link).exists()]


def test_the_architecture_fits_on_two_screens() -> None:
    assert len((ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines()) <= 150


def named_in(text: str) -> list[tuple[str, str]]:
    """Every `file.py`: `Name`, `Name` of a table, as (module, name)."""
    found = []
    for file, names in re.findall(r"`([\w/]+)\.py`: ((?:`[\w.]+`(?:, )?)+)", text):
        found += [("mapl." + file.replace("/", "."), name) for name in re.findall(r"`([\w.]+)`", names)]
    return found


def test_the_paper_points_to_names_that_exist() -> None:
    found = named_in((ROOT / "docs/paper.md").read_text(encoding="utf-8"))
    assert len(found) > 20
    for module, name in found:
        thing = importlib.import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """A row of a table for every setting."""
    for name, field in model.model_fields.items():
        default = field.default
        if isinstance(default, BaseModel):
            yield from keys(type(default), f"{prefix}{name}.")
            continue
        text = json.dumps(str(default) if isinstance(default, Path) else default, default=str)
        shown = "needed" if field.is_required() else "not set" if default is None else f"`{text}`"
        yield f"| `{prefix}{name}` | {shown} | {field.description} |"


def test_every_key_of_peer_toml_is_explained_with_its_default() -> None:
    lines = (ROOT / "docs/peers.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")][-len(list(keys(PeerSettings))) :] == [*keys(PeerSettings)]


def test_the_backbone_and_the_results_of_the_guide(tmp_path: Path) -> None:
    text = (ROOT / "docs/new-method.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    backbone = next(block for block in blocks if block.startswith("# my_nets.py"))
    reading = next(block for block in blocks if "mapl.load(" in block)
    names: dict[str, type[nn.Module]] = {}
    exec(backbone, names)
    recipe = Recipe.of(clients=4, rounds=8, method={"name": "mapl", "warmup": 2}, partition={"shots": 4})
    record = mapl.run(recipe, tmp_path / "run", backbones={"tiny": names["Tiny"]})
    found: dict[str, object] = {}
    exec(reading.replace("runs/mine", str(tmp_path / "run")), found)
    row = record.weights(7)[0]
    assert found["ids"].tolist() == row.nonzero().flatten().tolist()  # type: ignore[attr-defined]
    assert found["weights"].tolist() == row[row != 0].tolist()  # type: ignore[attr-defined]


def test_the_variant_of_the_guide_mixes_with_its_own_weight_and_shares_the_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/new-method.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "# stubborn.py" in block)
    (tmp_path / "stubborn.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # type: ignore[no-untyped-call]
    recipe = Recipe.of(clients=4, rounds=1, method="stubborn:Stubborn", partition={"shots": 2})
    assert control_of(recipe).method.name == "courier"
    given = []
    monkeypatch.setattr(Courier, "mix", lambda self, circles, weights, round: given.append((circles, weights)))
    mapl.run(recipe, tmp_path / "run")
    ((circles, weights),) = given
    rows = [(client.id, circles.ids[start:end], weights[start:end]) for client, start, end in circles.spans()]
    kin = [(row[ids == mine], row[ids != mine].sum()) for mine, ids, row in rows if row[ids != mine].any()]
    assert kin
    assert kin == [(pytest.approx([0.5]), pytest.approx(0.5))] * len(kin)


def test_every_claim_about_security_has_a_command_that_runs_a_test() -> None:
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    claims = [line for line in text.splitlines() if line.startswith("| ") and "try it" not in line]
    assert len(claims) > 15
    assert all(re.search(r"`(pytest|python) [^`]+` \|$", claim) for claim in claims)
    commands = re.findall(r"`pytest ([^`]+)`", text)
    assert len(commands) >= len(claims)
    for command in commands:
        files, _, words = command.replace('"', "").partition(" -k ")
        tests = [
            re.findall(r"^def (test_\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE) for file in files.split()
        ]
        assert all(tests), command
        for word in words.split(" or ") if words else ():
            assert any(word in name for names in tests for name in names), f"{word!r} of {command!r} selects no test"
    for script in re.findall(r"`python ([\w/]+\.py)", text):
        assert (ROOT / script).exists()
