"""A model that leaves the run gives the logits that it gave inside."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import mapl
from conftest import line_with, small, told
from mapl import MaplError
from mapl.cli.export import export_command
from mapl.client import Client
from mapl.runs.export import export_run, load_model
from mapl.runs.part import Part
from mapl.runs.run import restored_part
from test_writers import examples

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


class Untraceable(nn.Module):
    """A backbone whose path depends on the pixels, which no exported program can follow."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__()
        self.line = nn.Linear(image[0] * image[1] * image[2], embedding)

    def forward(self, images: Tensor) -> Tensor:
        if images.sum() > 0:
            images = -images
        return self.line(images.flatten(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients, four backbones."""
    return mapl.run(small(rounds=2), tmp_path_factory.mktemp("export") / "run").folder


@pytest.fixture(scope="module")
def part(run: Path) -> Part:
    part = restored_part(run)
    assert part is not None
    return part


def logits(part: Part, client: Client, images: Tensor) -> Tensor:
    """What the client itself says."""
    client.model.eval()
    with torch.no_grad():
        return part.method.scores(client, {"backbone": client.model.embed(part.engine.augmentation.normalise(images))})


def test_weights_come_back_as_the_same_model(run: Path, part: Part, tmp_path: Path) -> None:
    paths = export_run(run, tmp_path)
    assert [path.name for path in paths] == [f"client-{i:03d}.safetensors" for i in range(4)]
    assert sorted(tmp_path.iterdir()) == paths
    for client, path in zip(part.clients, paths, strict=True):
        model, images = load_model(path), client.test.pixels
        with torch.no_grad():
            assert torch.equal(model(images), logits(part, client, images))
            torch.testing.assert_close(model(images / 255), model(images), **TOLERANCE)


def test_weights_carry_their_card_and_nothing_private(run: Path, part: Part, tmp_path: Path) -> None:
    (path,) = export_run(run, tmp_path, [3])
    with safe_open(path, "pt") as file:
        card, names = file.metadata(), list(file.keys())
    assert all(name.startswith(("backbone.", "head.")) for name in names)
    assert (card["client"], card["backbone"], card["image"], card["classes"]) == ("3", "separable", "[1, 8, 8]", "10")
    assert (card["mean"], card["std"], card["run"]) == ("[0.305]", "[0.376]", part.recipe.fingerprint())
    assert float(card["accuracy"]) == mapl.load(run).accuracy[3]
    assert (card["accuracy_round"], card["accuracy_moment"], card["mapl"]) == ("1", "trained", mapl_version())


def mapl_version() -> str:
    from importlib.metadata import version

    return version("mapl")


def test_programs_give_the_clients_own_logits_for_any_number_of_images(run: Path, part: Part, tmp_path: Path) -> None:
    paths = export_run(run, tmp_path, kind="torch-export")
    assert [path.name for path in paths[:2]] == ["client-000.pt2", "client-000.json"]
    for client, path in zip(part.clients, paths[::2], strict=True):
        program = torch.export.load(path).module()
        for count in (1, 2, 3, len(client.test)):
            images = client.test.pixels[:count]
            torch.testing.assert_close(program(images), logits(part, client, images), **TOLERANCE)
        with pytest.raises(RuntimeError, match="dtype"):  # rather than wrong logits
            program(images / 255)
    card = json.loads(paths[-1].read_text())
    assert card["input"] == {"pixels": "uint8", "shape": ["batch", 1, 8, 8]}
    assert card["accuracy"] == mapl.load(run).accuracy[3]


def test_a_program_can_take_floats(run: Path, part: Part, tmp_path: Path) -> None:
    path, _ = export_run(run, tmp_path, [1], "torch-export", pixels="float32")
    images = part.clients[1].test.pixels
    said = torch.export.load(path).module()(images / 255)
    torch.testing.assert_close(said, logits(part, part.clients[1], images), **TOLERANCE)


def test_a_method_that_does_not_classify_by_its_head_is_exported_as_it_was_tested(tmp_path: Path) -> None:
    recipe = small("fedproto", rounds=2, clients=2, model={"backbones": ["mlp"]})
    run = mapl.run(recipe, tmp_path / "run").folder
    path, _ = export_run(run, tmp_path / "to", [0], "torch-export")
    part = restored_part(run)
    assert part is not None
    client = part.clients[0]
    said = torch.export.load(path).module()(client.test.pixels)
    torch.testing.assert_close(said, logits(part, client, client.test.pixels), **TOLERANCE)
    right = (said.argmax(1) == client.test.labels).double().mean()
    assert float(right) == pytest.approx(float(part.engine.evaluate(client).double().mean()))
    with told() as warned:
        export_run(run, tmp_path / "to", [0])
    assert "fedproto" in warned[0]
    assert "torch-export" in warned[0]


def test_a_backbone_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    recipe = small(rounds=1, clients=2, model={"backbones": [f"{__name__}:Untraceable"]})
    run = mapl.run(recipe, tmp_path / "run").folder
    with pytest.raises(MaplError, match=r"client 0 \(backbone 'test_export:Untraceable'\) cannot be exported: \w+"):
        export_run(run, tmp_path / "to", kind="torch-export")
    assert not (tmp_path / "to").exists()
    (path,) = export_run(run, tmp_path / "to", [0])
    with pytest.raises(MaplError, match="import it yourself"):  # a file does not choose what is imported
        load_model(path)
    assert load_model(path, Untraceable)(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_what_exists_is_not_overwritten_unless_asked(run: Path, tmp_path: Path) -> None:
    (tmp_path / "client-001.safetensors").write_text("mine")
    with pytest.raises(MaplError, match=r"client-001\.safetensors' exists already"):
        export_run(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["client-001.safetensors"]
    assert len(export_run(run, tmp_path, overwrite=True)) == 4
    assert load_model(tmp_path / "client-001.safetensors")


def test_what_cannot_be_exported_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(MaplError, match=line_with("no client 4", "0 to 3")):
        export_run(run, tmp_path, [4])
    with pytest.raises(MaplError, match="unknown format 'onnx'"):
        export_run(run, tmp_path, kind="onnx")  # type: ignore[arg-type]
    with pytest.raises(MaplError, match="not the folder of a run"):
        export_run(tmp_path, tmp_path / "to")
    (tmp_path / "file").write_text("")
    with pytest.raises(MaplError, match="could not be written"):
        export_run(run, tmp_path / "file")


def test_a_file_that_is_no_model_is_one_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"no")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    for name in ("broken", "other", "missing"):
        with pytest.raises(MaplError, match="is not a model that mapl exported"):
            load_model(tmp_path / name)
    (path,) = export_run(run, tmp_path, [0])
    with pytest.raises(MaplError, match="do not fit the backbone 'mlp'"):
        load_model(path, Untraceable)


def command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(export_command)
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, MaplError):
        return 2, result.exception.shell
    return result.exit_code, result.output


def test_the_command(run: Path, tmp_path: Path) -> None:
    where = ("--to", str(tmp_path), "--client", "2", "--client", "0")
    assert command(str(run), *where) == (
        0,
        f"exported: {tmp_path}/client-002.safetensors\nexported: {tmp_path}/client-000.safetensors\n",
    )
    status, said = command(str(run), *where)
    assert status == 2
    assert "give --overwrite" in said
    status, said = command(str(run), *where, "--format", "safetensors", "--overwrite", "--json")
    assert [Path(path).name for path in json.loads(said)] == ["client-002.safetensors", "client-000.safetensors"]
    assert command(str(run), *where, "--format", "onnx")[0] == 2


def test_the_server_of_the_document(run: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = export_run(run, tmp_path, [1], "torch-export")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(HTTPServer, "serve_forever", HTTPServer.handle_request)  # one request, then it ends
    monkeypatch.setattr(sys, "argv", ["serve.py", str(path), str(port)])
    code = compile(examples()["serve.py"], "serve.py", "exec")
    server = threading.Thread(target=exec, args=(code, {}), daemon=True)
    server.start()
    client, body = part.clients[1], io.BytesIO()
    np.save(body, client.test.pixels.numpy())
    answer = post(f"http://127.0.0.1:{port}", body.getvalue())
    server.join(timeout=10)
    assert json.loads(answer) == logits(part, client, client.test.pixels).argmax(1).tolist()


def post(url: str, body: bytes) -> bytes:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, body, timeout=10) as answer:
                return bytes(answer.read())
        except urllib.error.URLError:  # it is still loading the program
            time.sleep(0.1)
    raise AssertionError("the server did not answer")


def test_the_documents_use_of_weights(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = export_run(run, tmp_path, [0])
    monkeypatch.setattr(sys, "argv", ["use_weights.py", str(path)])
    exec(compile(examples()["use_weights.py"], "use_weights.py", "exec"), {})
    assert len(json.loads(capsys.readouterr().out)) == 5
