"""In a notebook: progress, an interrupt that saves, a kernel that is restarted, and the notebook among the examples."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

import mapl
from conftest import in_child, line_with, small, written
from mapl.runs.interrupt import Stopped, interruptible
from mapl.runs.notebook import Bar, in_notebook

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_notebook.ipynb"


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """As a person starts Python. What a shell begins in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# An interrupt


def interrupted(folder: Path, said: Path) -> None:
    """A script in which somebody presses Ctrl-C in the third round. It writes down what it is told."""

    def press(recipe: object, line: mapl.runs.chain.Round, seconds: object) -> None:
        if line.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        mapl.run(small("mapl", rounds=8), folder, observers=[press])
    except KeyboardInterrupt as stop:
        said.write_text(f"{type(stop).__name__}: {stop}")


def test_an_interrupt_saves_says_how_to_go_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    in_child(interrupted, folder, tmp_path / "said").join()
    told = (tmp_path / "said").read_text()
    assert re.fullmatch(line_with("Stopped: ", "round 4 of 8", "saved", f"mapl.resume({str(folder)!r})"), told)
    assert max(path.name[:6] for path in (folder / "checkpoints").iterdir()) == "000004"
    mapl.resume(folder)
    mapl.run(small("mapl", rounds=8), tmp_path / "whole")
    assert written(folder) == written(tmp_path / "whole")


def test_the_second_interrupt_does_not_wait_and_the_usual_way_comes_back() -> None:
    usual = signal.getsignal(signal.SIGINT)
    with interruptible() as came:
        assert not came()
        os.kill(os.getpid(), signal.SIGINT)
        assert came()
        with pytest.raises(KeyboardInterrupt) as raised:
            os.kill(os.getpid(), signal.SIGINT)
    assert not isinstance(raised.value, Stopped)
    assert signal.getsignal(signal.SIGINT) is usual


def test_who_handles_signals_goes_on_doing_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGINT, mine)
    try:
        with interruptible() as came:
            assert signal.getsignal(signal.SIGINT) is mine
            assert not came()
    finally:
        signal.signal(signal.SIGINT, before)


# Progress


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a notebook would show, one picture after another."""
    pictures: list[Any] = []

    def display(picture: object, display_id: bool) -> SimpleNamespace:
        pictures.append(picture)
        return SimpleNamespace(update=pictures.append)

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(package, "get_ipython", lambda: SimpleNamespace(kernel=object()), raising=False)
    monkeypatch.setattr(module, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("mapl.runs.notebook.EVERY", 0.0)
    return pictures


def test_a_notebook_sees_every_round(shown: list[Any], tmp_path: Path) -> None:
    record = mapl.run(small("local", rounds=3), tmp_path / "run")
    assert [repr(picture).split(",")[0] for picture in shown] == [f"round {done} of 3" for done in range(4)]
    assert f"accuracy {100 * record.mean:.1f} %" in repr(shown[-1])
    bar = fromstring(f"<div>{shown[-1]._repr_html_()}</div>").find("progress")
    assert bar is not None
    assert (bar.attrib["value"], bar.attrib["max"]) == ("3", "3")


def test_what_was_resumed_begins_where_it_was_and_what_is_finished_shows_nothing(
    shown: list[Any], tmp_path: Path
) -> None:
    mapl.run(small("local", rounds=2), tmp_path / "run")
    shown.clear()
    mapl.resume(tmp_path / "run")
    assert shown == []
    mapl.resume(tmp_path / "run", rounds=3)
    assert [repr(picture).split(",")[0] for picture in shown] == ["round 2 of 3", "round 3 of 3"]


def test_nothing_is_shown_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert in_notebook(3, 0) == []
    shell = ModuleType("IPython")
    monkeypatch.setattr(shell, "get_ipython", lambda: None, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert in_notebook(3, 0) == []


def test_fast_rounds_are_not_all_drawn(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapl.runs.notebook.EVERY", 1000.0)
    bar = Bar(50, 0)
    for number in range(50):
        bar(small(), mapl.runs.chain.Round(number, {}, [0.5], 0, 0), {})
    assert [repr(picture)[:14] for picture in shown] == ["round 0 of 50,", "round 50 of 50"]


# A real kernel


class Kernel:
    """A kernel as a notebook has it."""

    def __init__(self, folder: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager")
        self.manager, self.client = manager.start_new_kernel(kernel_name="python3", cwd=str(folder))

    def run(self, code: str, once: Callable[[], None] = lambda: None) -> tuple[str, str]:
        """Run a cell. Returns its status, or the text of its error, and what it said. `once`: when the bar moves."""
        outputs: list[str] = []
        moved: list[bool] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            outputs.append(content.get("text") or "\n".join(content.get("traceback", [])))
            if message["msg_type"] == "update_display_data" and not moved:
                moved.append(True)
                once()

        reply = self.client.execute_interactive(code, timeout=120, output_hook=hook)["content"]
        return reply.get("evalue", reply["status"]), "".join(outputs)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Gone(Exception):
    """The page was closed."""


@pytest.mark.slow
def test_the_stop_button_and_a_kernel_that_is_restarted(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    recipe = "mapl.Recipe.of(method='local', clients=2, rounds=4000, partition={'shots': 2}, checkpoint={'every': 3})"
    kernel = Kernel(tmp_path)

    def leave() -> None:
        raise Gone

    try:
        sentence, output = kernel.run(f"import mapl\nmapl.run({recipe}, 'run')", kernel.manager.interrupt_kernel)
        played = re.fullmatch(
            r"stopped after round (\d+) of 4000, and saved; continue with: mapl\.resume\('run'\)", sentence
        )
        assert played
        assert "finishing this round" in output
        assert "runs/run.py" not in output, "no traceback"
        with pytest.raises(Gone):
            kernel.run("mapl.resume('run')", leave)
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=60)
        assert kernel.run(f"import mapl\nassert int({played[1]}) < len(mapl.load('run').rounds) < 4000")[0] == "ok"
        sentence, _ = kernel.run(f"mapl.run({recipe}, 'run')")
        assert sentence.startswith("'run' exists already; continue it with mapl.resume('run')")
        sentence, _ = kernel.run("mapl.resume('run')", kernel.manager.interrupt_kernel)
        assert sentence.startswith("stopped after round ")
    finally:
        kernel.close()


# The example

PATHS = re.compile(r"/(home|root|work|tmp|Users|usr|mnt)/|[A-Z]:\\\\")


def cells(path: Path = NOTEBOOK) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What a cell has put out, apart from its contents."""
    return [(output["output_type"], sorted(output.get("data", {}))) for output in cell["outputs"]]


def printed(path: Path) -> list[float]:
    """The accuracies with and without letters."""
    texts = ["".join(out["text"]) for cell in cells(path) for out in cell["outputs"] if out["output_type"] == "stream"]
    return [float(number) for number in re.findall(r"([\d.]+) %", "".join(texts))]


def test_the_notebook_was_executed_from_its_first_cell_to_its_last() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, 1 + len(cells())))
    outputs = [output for cell in cells() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"display_data", "execute_result", "stream"}, "no error"
    assert not PATHS.search(json.dumps(outputs)), "no path of a machine"
    assert NOTEBOOK.stat().st_size < 60_000


@pytest.mark.slow
def test_the_notebook_runs_and_puts_out_what_is_in_it(tmp_path: Path) -> None:
    """Numbers differ by up to a few points from one kind of CPU to another."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(notebook, tmp_path / "again.ipynb")
    again = cells(tmp_path / "again.ipynb")
    assert [kinds(cell) for cell in again] == [kinds(cell) for cell in cells()]
    assert printed(tmp_path / "again.ipynb") == pytest.approx(printed(NOTEBOOK), abs=5)
    assert mapl.load(tmp_path / "runs" / "courier").recipe.rounds == 30
