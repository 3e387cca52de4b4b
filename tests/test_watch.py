"""What `mapl watch` tells its page, and whom it answers."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mapl
from conftest import SMALL, stop_after
from mapl import MaplError, Recipe
from mapl.cli.app import app
from mapl.cli.watch import _watch
from mapl.live.follow import Follower
from mapl.live.server import Server
from mapl.live.watch import Gone, Watch
from mapl.peer.seen import STATUS
from mapl.report import write_report
from mapl.runs.folder import HISTORY, RECIPE, load
from mapl.runs.graph import Row
from mapl.runs.run import resume
from mapl.trees import merge
from shown_runs import ShownRun
from test_peer_commands import TREE, written

ALONE = {"network": {"topology": {"name": "none"}}}


def weights_of(rows: dict[str, Any], clients: int) -> torch.Tensor:
    """W as the page has it."""
    matrix = torch.eye(clients, dtype=torch.float64)
    for client, (ids, weights) in rows.items():
        matrix[int(client)] = 0
        matrix[int(client), ids] = torch.tensor(weights, dtype=torch.float64)
    return matrix


def test_what_is_told_of_a_run_is_what_the_run_says(tmp_path: Path) -> None:
    record = mapl.run(Recipe.of(**SMALL), tmp_path / "ours")
    mapl.run(Recipe.of(**merge(SMALL, ALONE)), tmp_path / "alone")
    watch = Watch(tmp_path)
    table = {row["id"]: row for row in watch.runs()["runs"]}
    assert table["ours"]["accuracy"] == pytest.approx(record.mean)
    assert [table[name]["role"] for name in ("ours", "alone")] == ["", "control"]
    told = json.loads(json.dumps(watch.run("ours", 0, 0, "")))
    assert [line["a"] for line in told["lines"]] == [line.accuracy for line in record.rounds]
    assert [line["m"] for line in told["lines"]] == [line.messages for line in record.rounds]
    assert told["state"] == "finished"
    assert told["left"] is None
    assert told["control"]["name"] == "alone"
    assert told["control"]["lines"] == [line.accuracy for line in load(tmp_path / "alone").rounds]
    assert told["run"]["settings"]["learning rate"] == record.recipe.train.learning_rate
    for round in range(len(record.rounds)):
        rows = json.loads(json.dumps(watch.graph("ours", round)))["rows"]
        assert torch.equal(weights_of(rows, 4), record.weights(round))
    assert "control" not in watch.run("alone", 0, 0, "")


def test_only_what_is_new_is_told_again(tmp_path: Path) -> None:
    run = ShownRun(tmp_path / "run")
    run.play(2)
    watch = Watch(tmp_path)
    first = watch.run("run", 0, 0, "")
    assert (len(first["lines"]), first["state"], first["left"]) == (2, "under way", pytest.approx(1.5))
    run.play()
    more = watch.run("run", 2, 0, first["stamp"])
    assert (more["start"], len(more["lines"]), "run" in more) == (2, 1, False)
    assert watch.graph("run", 2)["rows"]
    run.age(3600)
    assert watch.run("run", 3, 0, more["stamp"])["state"] == "stopped"
    with pytest.raises(Gone, match="no round 9"):
        watch.graph("run", 8)


def test_a_run_that_is_followed_reads_as_one_that_is_loaded(tmp_path: Path) -> None:
    run = ShownRun(tmp_path / "run", clients=4)
    follower = Follower(run.folder)
    assert follower.look().rounds == []
    for _ in range(3):
        run.play()
        assert follower.look() == load(run.folder)
    assert follower.generation == 2, "once without a history, and once from its first line on"
    with (run.folder / HISTORY).open("ab") as file:
        file.write(b'{"round":3,')
    assert len(follower.look().rounds) == 3


def test_a_run_that_goes_back_or_begins_anew_is_told_anew(tmp_path: Path) -> None:
    recipe = Recipe.of(**{**SMALL, "rounds": 4, "checkpoint": {"every": 2}})
    mapl.run(recipe, tmp_path / "run", stop=stop_after(3))
    watch = Watch(tmp_path)
    before = watch.run("run", 0, 0, "")
    resume(tmp_path / "run")
    after = watch.run("run", 3, 0, before["stamp"])
    mapl.run(recipe, tmp_path / "run", overwrite=True, stop=stop_after(1))
    anew = watch.run("run", 4, 0, after["stamp"])
    assert (anew["start"], len(anew["lines"])) == (0, 1)


def test_a_run_that_disappears_or_is_damaged_is_one_sentence(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ShownRun(tmp_path / name).play(2)
    watch = Watch(tmp_path)
    watch.run("one", 0, 0, "")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(Gone, match="not any more"):
        watch.run("one", 2, 0, "")
    assert [row["id"] for row in watch.runs()["runs"]] == ["two"]
    path = tmp_path / "two" / HISTORY
    path.write_bytes(path.read_bytes().replace(b"cross", b"cruss", 1))
    with pytest.raises(MaplError, match="line 1, was changed"):
        watch.run("two", 0, 0, "")
    (tmp_path / "two" / RECIPE).write_text("version = 1\nrounds = 'many'\n")
    (row,) = watch.runs()["runs"]
    assert "rounds" in row["problem"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row(np.array([0, 6]), np.array([0.5, 0.5])), "clients that the run does not have"),
        (Row(np.array([-1]), np.array([1.0])), "clients that the run does not have"),
        (Row(np.array([0, 1]), np.array([0.5, np.nan])), "not a finite number"),
    ],
)
def test_what_a_stranger_wrote_into_a_graph_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row, words: str
) -> None:
    monkeypatch.setattr(ShownRun, "_rows", lambda run, round: {2: row})
    ShownRun(tmp_path / "run").play(2)
    with pytest.raises(MaplError, match=words):
        Watch(tmp_path).graph("run", 0)
    with pytest.raises(MaplError, match=words):
        write_report([load(tmp_path / "run")], tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 10**400])
def test_times_that_are_none_do_not_keep_a_run_from_being_shown(tmp_path: Path, seconds: float) -> None:
    run = ShownRun(tmp_path / "run")
    run.play(2)
    run.play(1, seconds)
    told = Watch(tmp_path).run("run", 0, 0, "")
    assert json.loads(json.dumps(told, allow_nan=False))["left"] == pytest.approx(1.0)
    assert len(load(run.folder).times) == 2


def test_a_peer_is_seen_with_the_names_of_the_others(tmp_path: Path) -> None:
    file = written(tmp_path, numbers={"ann": 0, "bob": 1, "cat": 2})
    run = ShownRun(tmp_path / "state" / "run", clients=3, held=[1])
    run.play(2)
    ShownRun(tmp_path / "state" / "alone", clients=3, held=[1], **ALONE).play(2)
    watch = _watch(file, trust=False)
    assert watch.chosen == "run"
    told = watch.run("run", 0, 0, "")
    assert told["run"]["name"] == "bob in clinics"
    assert [client["name"] for client in told["run"]["clients"]] == ["ann", "bob", "cat"]
    assert [client["kind"] for client in told["run"]["clients"]] == [None, 0, None]
    assert (told["run"]["held"], told["alive"]) == ([1], [1, 0])
    assert ["Connected", "1 of 2", "other members"] in told["facts"]
    assert told["control"]["name"] == "alone"
    (row,) = watch.graph("run", 1)["rows"].items()
    assert row[0] == "1"
    for broken in ("", "[]", '{"version": 1}', json.dumps({**TREE, "numbers": 3})):
        (tmp_path / "state" / STATUS).write_text(broken)
        assert watch.run("run", 0, 0, "")["run"]["name"] == "run"


# The server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    ShownRun(tmp_path / "run").play(2)
    with Server(Watch(tmp_path, "run")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Server, path: str, host: str = "", method: str = "GET") -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    response = connection.getresponse()
    return response.status, response.read().decode(), response.headers


def test_the_page_is_for_who_knows_its_token(server: Server) -> None:
    status, page, headers = ask(server, f"/{server.token}/")
    assert status == 200
    assert 'data-run="run"' in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for path in ("/", "/runs.json", "/wrong/runs.json", f"/{server.token[:-1]}/", "//", "/%C3%A9/"):
        status, words, _ = ask(server, path)
        assert status == 403
        assert "token" in words
    assert ask(server, f"/{server.token}/", method="POST")[0] == 501


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "localhost:1", "127.0.0.1.example.org:{port}"])
def test_a_page_of_another_host_gets_nothing(server: Server, host: str) -> None:
    status, words, _ = ask(server, f"/{server.token}/runs.json", host.format(port=server.port))
    assert status == 403
    assert "run" not in words.replace("mapl watch printed", "")


def test_questions_lead_nowhere_but_to_the_runs(server: Server, tmp_path: Path) -> None:
    def question(name: str, **query: object) -> tuple[int, dict[str, Any]]:
        status, text, _ = ask(server, f"/{server.token}/{name}?{urlencode(query)}")
        return status, json.loads(text)

    assert question("run.json", run="run", start=0, control=0)[1]["rounds"] == 2
    for run in ("..", "../run", str(tmp_path / "run"), "other", ""):
        status, answer = question("run.json", run=run, start=0, control=0)
        assert (status, list(answer)) in ((404, ["problem"]), (400, ["problem"]))
    assert question("run.json", run="run")[0] == 400
    assert question("graph.json", run="run", round="x")[0] == 400
    assert question("graph.json", run="run", round=-1)[0] == 404
    for path in ("page/view.js", "../server.py", "%2e%2e/server.py", "live.html"):
        assert ask(server, f"/{server.token}/{path}")[0] == 404
    assert "class View" in ask(server, f"/{server.token}/view.js")[1]


def test_many_pages_may_ask_at_once(server: Server) -> None:
    path = f"/{server.token}/run.json?run=run&start=0&control=0"
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server, path)[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1


def test_the_command_says_what_it_cannot_watch(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "nothing", "there is no"), (Path(__file__), "is not TOML")):
        result = CliRunner().invoke(app, ["watch", str(path)])
        assert isinstance(result.exception, MaplError)
        assert words in str(result.exception)


def test_a_port_that_is_taken_is_one_sentence(server: Server, tmp_path: Path) -> None:
    with pytest.raises(MaplError, match="choose another with --port"):
        Server(Watch(tmp_path), server.port)
