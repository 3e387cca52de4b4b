"""What peers show: status files, metrics, cards that do not fit, and the commands around them."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

import mapl
from mapl.cli.app import app
from mapl.cli.peer import state_of
from mapl.errors import MaplError
from mapl.peer.local import name_of, to_toml
from mapl.peer.seen import STATUS, read_status
from mapl.peer.settings import PeerSettings, read_settings
from mapl.peer.status import _seen_before, differences, metrics, serving_metrics

TREE: dict[str, Any] = {
    "version": 1,
    "state": "training",
    "pid": 1,
    "updated": 0.0,
    "network": "clinics",
    "name": "bob",
    "number": 1,
    "method": "courier",
    "backbone": "cnn",
    "images": 100,
    "round": 7,
    "rounds": 40,
    "accuracy": 0.875,
    "seconds": {"train": 1.0},
    "members": 3,
    "alive": ["ann"],
    "neighbours": {"ann": 0.5, "bob": 0.5, "cat": 0.0},
    "last_exchange": {"asked": 2, "read": 1, "stale": 1, "missing": ["cat"], "waited": 2.5},
    "letters_in": 12,
    "bytes_in": 2**20,
    "letters_out": 13,
    "bytes_out": 2**21,
    "refused": {"cat": {"norm": 2}},
    "reopened": 0,
}


def written(folder: Path, **over: Any) -> Path:
    """A PEER.toml whose peer has this status."""
    (folder / "state").mkdir()
    (folder / "state" / STATUS).write_text(json.dumps({**TREE, "updated": time.time(), **over}))
    path = folder / "PEER.toml"
    path.write_text(to_toml({"identity": "identity"}))
    return path


def test_a_peer_that_starts_again_knows_its_rounds_and_accuracy(tmp_path: Path) -> None:
    state = written(tmp_path).parent / "state" / STATUS
    assert _seen_before(state) == (7, 0.875)
    state.write_text(json.dumps({**TREE, "accuracy": None}))
    assert _seen_before(state) == (7, None)
    state.write_text("[]")
    assert _seen_before(state) == _seen_before(tmp_path / "nowhere") == (0, None)


def test_status_shows_round_neighbours_letters_and_who_was_refused_and_why(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["peer", "status", str(written(tmp_path))], terminal_width=120)
    assert result.exit_code == 0, result.output
    for text in ("bob", "7 of 40", "87.5 %", "ann 0.50", "cat", "norm", "1.0 MiB", "2.5 s"):
        assert text in result.output, text


def test_status_as_json_is_what_the_peer_wrote(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["peer", "status", "--json", str(written(tmp_path, round=9))])
    assert json.loads(result.output)["round"] == 9


def test_a_peer_that_has_not_been_heard_of_for_long_is_called_silent() -> None:
    assert state_of({**TREE, "updated": time.time()}) == "training"
    assert state_of({**TREE, "updated": time.time() - 100}).startswith("silent")
    assert state_of({**TREE, "updated": time.time() - 100, "seconds": {"train": 60.0}}) == "training"
    assert state_of({**TREE, "updated": time.time() - 1000, "state": "finished"}) == "finished"


def test_watch_ends_when_all_are_done(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["peer", "watch", str(written(tmp_path, state="finished"))])
    assert result.exit_code == 0
    assert "bob" in result.output


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2}', "\x00"])
def test_a_status_that_is_damaged_is_a_sentence(tmp_path: Path, content: str) -> None:
    path = written(tmp_path)
    (tmp_path / "state" / STATUS).write_text(content)
    with pytest.raises(MaplError, match=re.escape(STATUS)):
        read_status(read_settings(path).folder)


def test_metrics_have_the_numbers_of_the_status() -> None:
    lines = dict(line.rsplit(" ", 1) for line in metrics(TREE).splitlines() if not line.startswith("#"))
    assert lines["mapl_round"] == "7"
    assert lines["mapl_accuracy"] == "0.875"
    assert lines["mapl_letters_in_total"] == "12"
    assert lines["mapl_bytes_out_total"] == str(2**21)
    assert lines['mapl_weight{peer="ann"}'] == "0.5"
    assert lines['mapl_refused_total{peer="cat",reason="norm"}'] == "2"
    assert "mapl_accuracy" not in metrics({**TREE, "accuracy": None})


def test_metrics_are_served_on_the_loopback_alone() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    status: Any = SimpleNamespace(tree=TREE)
    with serving_metrics(port, status):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert b"mapl_round 7" in answer.read()
        with pytest.raises(MaplError, match=str(port)), serving_metrics(port, status):
            pass


CARD = {
    "run": "a" * 16,
    "classes": 10,
    "image": [1, 8, 8],
    "settings": {"method.name": "courier", "method.distil": 1.0},
}


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (CARD, []),
        ({**CARD, "classes": 7}, ["classes", "7", "10"]),
        ({**CARD, "image": [3, 32, 32]}, ["image", "32"]),
        ({**CARD, "run": "b" * 16, "settings": {**CARD["settings"], "method.distil": 2.0}}, ["distil", "2.0", "1.0"]),  # type: ignore[dict-item]
        ({**CARD, "run": "b" * 16}, ["run", "bbbb"]),
        ({}, ["classes"]),
        ({"run": "\x1b[31m" * 9, "classes": [[]], "image": None, "settings": 3}, ["classes"]),
    ],
)
def test_cards_that_differ_name_the_field(theirs: dict[str, Any], words: list[str]) -> None:
    found = differences(CARD, theirs)
    assert bool(found) == bool(words)
    for word in words:
        assert any(word in sentence for sentence in found), (word, found)
    assert not any("\x1b" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ('identity = "x"\nwait = {mode = "never"}', "wait.mode"),
        ('identity = "x"\n[net]\nlisten = "nowhere"', "net.listen"),
        ('identity = "x"\n[net]\nlisten = "host:99999"', "net.listen"),
        ('identity = "x"\nspeed = 3', "speed"),
        ("identity", "TOML"),
        ("", "identity"),
        ('identity = "x"\nversion = 99', "newer"),
    ],
)
def test_a_wrong_setting_is_a_sentence_with_its_key(tmp_path: Path, lines: str, word: str) -> None:
    path = tmp_path / "PEER.toml"
    path.write_text(lines)
    with pytest.raises(MaplError, match=re.escape(word)):
        read_settings(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "PEER.toml"
    path.write_text(to_toml({"identity": "id", "data": {"name": "npz", "path": "mine.npz"}}))
    made = read_settings(path)
    assert isinstance(made, PeerSettings)
    assert (made.identity, made.data.path) == (tmp_path / "id", tmp_path / "mine.npz")
    assert made.run == tmp_path / "state" / "run"


@pytest.mark.slow
def test_a_network_on_this_machine_ends_with_the_run_of_the_simulation(tmp_path: Path) -> None:
    settings = ["--peers", "3", "--rounds", "3", "--set", "engine.device=cpu", "--set", "evaluate.moment=mixed"]
    result = CliRunner().invoke(app, ["network", "up", *settings, "--out", str(tmp_path / "net")])
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    joined = mapl.load(tmp_path / "net" / "run")
    recipe = joined.recipe
    simulated = mapl.run(recipe, tmp_path / "simulated")
    assert joined.rounds == simulated.rounds
    files = [str(tmp_path / "net" / name_of(n) / "PEER.toml") for n in range(3)]
    shown = CliRunner().invoke(app, ["peer", "status", "--json", *files])
    assert [tree["state"] for tree in json.loads(shown.output)] == ["finished"] * 3
    # Once more: nothing is trained, and the result is the same. With another recipe: a sentence.
    again = CliRunner().invoke(app, ["network", "up", *settings, "--out", str(tmp_path / "net")])
    assert again.exit_code == 0, again.output
    other = CliRunner().invoke(app, ["network", "up", *settings, "--seed", "4", "--out", str(tmp_path / "net")])
    assert isinstance(other.exception, MaplError)
