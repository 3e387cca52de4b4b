"""A checkpoint is whole or it is not used; a full disk costs rounds, never a run."""

from __future__ import annotations

import errno
import hashlib
import resource
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import mapl
import mapl.runs.checkpoint
import mapl.runs.files
from conftest import command, in_child, in_silence, line_with, small, stop_after, told, written
from mapl import MaplError, Recipe
from mapl.recipe import to_toml
from mapl.runs.checkpoint import Checkpoint, Writer, latest, load, save


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("0*"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def strangers(folder: Path) -> list[str]:
    """Files of a run's folder that no finished write leaves behind."""
    names = {"recipe.toml", "clients.json", "history.jsonl", "times.jsonl", "graph.rows", "graph.index"}
    return [p.name for p in folder.rglob("*") if p.is_file() and p.name not in names and p.suffix != ".safetensors"]


# One file


def test_what_is_saved_is_loaded(tmp_path):
    shared = torch.rand(3, 3)
    tensors = {
        "client.1.model.a": shared,
        "client.1.model.transposed": shared.T,
        "client.11.model.a": torch.tensor(3),
        "ledger.empty": torch.empty(0, dtype=torch.int64),
    }
    path = save(tmp_path, 7, tensors, keep=2)
    loaded = load(path)
    assert loaded.rounds == 7
    assert loaded.tensors.keys() == tensors.keys()
    assert all(torch.equal(loaded.tensors[k], v) and loaded.tensors[k].dtype == v.dtype for k, v in tensors.items())
    assert loaded.section("client.1.model").keys() == {"a", "transposed"}


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
            st.sampled_from(list(mapl.runs.checkpoint._DTYPES)),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        unique_by=lambda entry: entry[0],
    )
)
def test_a_checkpoint_has_the_bytes_that_safetensors_would_write(tmp_path_factory, entries):
    tensors = {name: (100 * torch.rand(shape)).to(dtype) for name, dtype, shape in entries}
    path = save(tmp_path_factory.mktemp("run"), 1, tensors, keep=1)
    assert path.read_bytes() == safetensors.torch.save(tensors)


def test_a_tensor_that_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(MaplError, match=line_with("'server.x'", "cannot be saved", "torch.complex128")):
        save(tmp_path, 1, {"server.x": torch.zeros(1, dtype=torch.complex128)}, keep=1)


def test_sections_of_many_clients_are_those_whose_names_begin_so():
    kinds = ("model.head.weight", "model.prototypes", "state.weights", "states.x")
    names = [f"client.{i}.{kind}" for i in range(300) for kind in kinds]
    names += ["client", "client.", "client.1", "client.10-model.x", "client.1.model", "client.1.model/x", "server.x.y"]
    whole = Checkpoint(1, {name: torch.tensor(i) for i, name in enumerate(names)})
    asked = [f"client.{i}.{kind}" for i in range(300) for kind in ("model", "state")]
    for name in [*asked, "client", "client.1", "server", "server.x", "ledger", ""]:
        theirs = {k.removeprefix(f"{name}."): v for k, v in whole.tensors.items() if k.startswith(f"{name}.")}
        assert whole.section(name) == theirs


def test_only_the_newest_are_kept_and_rounds_count_as_numbers(tmp_path):
    for rounds in (999_998, 999_999, 1_000_000, 2):
        save(tmp_path, rounds, {"x": torch.tensor(rounds)}, keep=2)
    with in_silence():
        found = latest(tmp_path)
    assert found is not None
    assert found.rounds == 1_000_000
    assert sorted(int(p.name.partition("-")[0]) for p in (tmp_path / "checkpoints").iterdir()) == [999_999, 1_000_000]


def test_a_folder_without_checkpoints_has_no_latest(tmp_path):
    assert latest(tmp_path) is None


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_flipped_byte_is_noticed(tmp_path_factory, place, mask):
    path = save(tmp_path_factory.mktemp("run"), 1, {"x": torch.arange(20)}, keep=1)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= mask
    path.write_bytes(data)
    with pytest.raises(MaplError, match=line_with("checkpoint", "damaged", "contents", "name")):
        load(path)


def test_a_checkpoint_that_is_whole_but_no_safetensors_is_damaged_too(tmp_path):
    data = b"not safetensors at all"
    path = tmp_path / f"000001-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    path.write_bytes(data)
    with pytest.raises(MaplError, match="is damaged"):
        load(path)


def test_names_that_are_no_checkpoints_are_left_alone(tmp_path):
    save(tmp_path, 3, {"x": torch.tensor(1)}, keep=1)
    for name in (".000009-0123456789abcdef.safetensors.77", "notes.txt", "000009.safetensors"):
        (tmp_path / "checkpoints" / name).write_text("half")
    with in_silence():
        found = latest(tmp_path)
    assert found is not None
    assert found.rounds == 3


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path):
    path = save(tmp_path, 3, {"x": torch.tensor(1)}, keep=1)
    path.unlink()
    path.mkdir()
    with pytest.raises(MaplError, match=r"checkpoint '.*000003.*' cannot be read"):
        load(path)


# Written by another thread


@pytest.fixture
def disk(monkeypatch):
    """A disk that begins to write when it is told to."""
    ready = threading.Event()
    write_parts = mapl.runs.files.write_parts

    def write(*arguments, **more) -> Path:
        assert ready.wait(60)
        return write_parts(*arguments, **more)

    monkeypatch.setattr("mapl.runs.checkpoint.write_parts", write)
    return ready


def test_a_checkpoint_is_written_meanwhile_and_has_the_tensors_as_they_were(disk, tmp_path):
    tensor = torch.zeros(5)
    with Writer(tmp_path, keep=9) as writer:
        writer.save(1, {"x": tensor})
        tensor += 1
        assert checkpoints(tmp_path) == []
        disk.set()
        writer.save(2, {"x": tensor})
        assert checkpoints(tmp_path)[0].name.startswith("000001-"), "one at a time"
        tensor += 1
    assert [load(path).tensors["x"].tolist() for path in checkpoints(tmp_path)] == [[0] * 5, [1] * 5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_are_saved_as_those_of_the_host_are(tmp_path):
    host = {f"{dtype}": (100 * torch.rand(7, 5)).to(dtype) for dtype in mapl.runs.checkpoint._DTYPES}
    host |= {"transposed": torch.rand(2000, 1000).T, "here": torch.rand(3)}
    for rounds in (1, 2):
        with Writer(tmp_path, keep=9) as writer:
            theirs = {name: tensor if name == "here" else tensor.cuda() for name, tensor in host.items()}
            writer.save(rounds, theirs)
            for tensor in theirs.values():
                if tensor.is_cuda:
                    tensor.zero_()
    assert all(torch.equal(load(path).tensors[k], v) for path in checkpoints(tmp_path) for k, v in host.items())
    assert not any(tensor.is_cuda for tensor in load(checkpoints(tmp_path)[0]).tensors.values())


@pytest.mark.parametrize("part", [1, 100, 10**9])
def test_a_file_that_is_written_in_parts_has_the_same_bytes(part, monkeypatch, tmp_path):
    """Whatever the tensors are views of: another order, a part of something, nothing, two dtypes of one storage."""
    numbers = torch.rand(6, 4)
    tensors = {
        "a": numbers.T, "b": numbers[2:4, 1:3], "c": torch.rand(0, 3), "d": torch.tensor(5.0), "e": torch.arange(7),
        "f": numbers.view(torch.uint8)[0, :3], "g": torch.rand(50), "h": numbers[0, 0].expand(3),
    }  # fmt: skip
    monkeypatch.setattr(mapl.runs.checkpoint, "PART", part)
    data = save(tmp_path, 1, tensors, keep=9).read_bytes()
    assert data == safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def test_storages_that_begin_at_one_address_are_not_one(tmp_path):
    whole = np.arange(8.0)
    path = save(tmp_path, 1, {"a": torch.from_numpy(whole[:2]), "b": torch.from_numpy(whole)}, keep=9)
    assert load(path).tensors["b"].tolist() == whole.tolist()


def test_a_tensor_that_points_elsewhere_meanwhile_is_saved_as_it_was(disk, tmp_path):
    tensor, other = torch.zeros(3), torch.randn(2, dtype=torch.complex64)
    with Writer(tmp_path, keep=9) as writer:
        writer.save(1, {"x": tensor, "y": other.conj()})
        tensor.data = torch.ones(5)
        disk.set()
        path = writer.wait()
    assert load(path).tensors["x"].tolist() == [0] * 3
    assert torch.equal(load(path).tensors["y"], other.conj().resolve_conj())


def test_a_gpu_without_room_for_copies_has_them_made_on_the_host(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (2000, 10_000))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 5500)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 5000)
    assert mapl.runs.checkpoint._room_for(1500)
    assert not mapl.runs.checkpoint._room_for(1501)


def test_what_the_thread_meets_is_raised_once_at_the_next_checkpoint_or_the_end(monkeypatch, tmp_path):
    def full(*_, **__) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Writer(tmp_path, keep=1) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("mapl.runs.checkpoint.write_parts", full)
            writer.save(1, {"x": torch.zeros(1)})
            with pytest.raises(OSError, match="No space left"):
                writer.wait()
            writer.save(2, {"x": torch.zeros(1)})
            with pytest.raises(OSError, match="No space left"):
                writer.save(3, {"x": torch.zeros(1)})
        writer.save(4, {"x": torch.zeros(1)})
        assert writer.wait() == checkpoints(tmp_path)[0]


def test_an_error_that_ends_a_run_finds_its_checkpoint_on_the_disk(disk, recipe, tmp_path):
    def broken(recipe, line, seconds):
        if line.round == 2:
            threading.Timer(0.2, disk.set).start()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        mapl.run(recipe, tmp_path / "run", observers=[broken])
    assert [path.name[:6] for path in checkpoints(tmp_path / "run")] == ["000002"]
    assert strangers(tmp_path / "run") == []


# A run with damaged ones


@pytest.fixture
def recipe() -> Recipe:
    return small(
        "mapl+", rounds=6, checkpoint={"every": 2}, train={"reset": False}, model={"backbones": ["mlp", "cnn"]}
    )


@pytest.mark.parametrize("damage", [flip, truncate, empty])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(damage, recipe, tmp_path):
    mapl.run(recipe, tmp_path / "whole")
    mapl.run(recipe, tmp_path / "run", stop=stop_after(5))
    newest = checkpoints(tmp_path / "run")[-1]
    assert newest.name.startswith("000005-")
    damage(newest)
    with told() as said:
        mapl.resume(tmp_path / "run")
    assert len(said) == 2
    assert newest.name in said[0]
    assert "damaged" in said[0]
    assert "after round 4" in said[1]
    assert written(tmp_path / "run") == written(tmp_path / "whole")
    assert newest not in checkpoints(tmp_path / "run")


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(recipe, tmp_path):
    mapl.run(recipe, tmp_path / "run", stop=stop_after(5))
    flip(checkpoints(tmp_path / "run")[-1])
    mapl.resume(tmp_path / "run", stop=stop_after(1))  # the fifth round again, as a GPU would: in other bits
    assert [path.name[:6] for path in checkpoints(tmp_path / "run")] == ["000004", "000005"]
    for path in checkpoints(tmp_path / "run"):
        load(path)


def test_when_all_are_damaged_the_run_says_so_and_nothing_is_changed(recipe, tmp_path):
    mapl.run(recipe, tmp_path / "run")
    for path in checkpoints(tmp_path / "run"):
        flip(path)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    whole = pytest.raises(MaplError, match=r"no checkpoint in '.*checkpoints' is whole .*overwrite=True")
    with told() as said, whole:
        mapl.resume(tmp_path / "run")
    assert len(said) == 2
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


# A full disk


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    mapl.runs.files.write_aside(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        mapl.runs.files.write_aside(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("round", [2, 4])
def test_a_full_disk_is_a_sentence_and_costs_no_more_than_the_rounds_since_the_last_checkpoint(
    round, recipe, tmp_path, monkeypatch
):
    mapl.run(recipe, tmp_path / "whole")
    write_parts = mapl.runs.files.write_parts

    def full(aside: Path, *others, **more) -> Path:
        if aside.name.startswith(f".{round:06d}."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_parts(aside, *others, **more)

    with monkeypatch.context() as patch:
        patch.setattr("mapl.runs.checkpoint.write_parts", full)
        with pytest.raises(MaplError, match=line_with("could not be written", "No space left", "last checkpoint")):
            mapl.run(recipe, tmp_path / "run")
    assert strangers(tmp_path / "run") == []
    assert [int(p.name[:6]) for p in checkpoints(tmp_path / "run")] == list(range(2, round, 2))
    mapl.resume(tmp_path / "run")
    assert written(tmp_path / "run") == written(tmp_path / "whole")


def limited(largest: int, arguments: list[str], output: Path) -> None:
    """The command line where no file can be larger than that."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    try:
        command(arguments, output)
    finally:  # what measures coverage also writes a file, at the end
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("every", [2, 20], ids=["checkpoint", "history"])
def test_files_that_really_cannot_be_written(every, tmp_path):
    """First a run whose checkpoint (or a line of whose history) does not fit, then a resumed one; then there is room."""
    recipe = small("mapl", rounds=8, name="run", checkpoint={"every": every})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    mapl.run(recipe, tmp_path / "whole")
    sizes = {file: (tmp_path / "whole" / file).stat().st_size for file in ("recipe.toml", "history.jsonl")}
    largest = 200_000 if every == 2 else sizes["recipe.toml"] + 100
    assert every == 2 or largest < sizes["history.jsonl"] - 100
    run, out = tmp_path / "run", tmp_path / "out.txt"
    start = ["run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)]
    for arguments in (start, ["resume", str(run)]):
        child = in_child(limited, largest, arguments, out)
        child.join()
        assert child.exitcode == 2
        assert "error: run" in out.read_text()
        assert f"make room, then mapl resume {run}" in out.read_text().replace("\n", " ")
        assert "Traceback" not in out.read_text()
        assert strangers(run) == []
        assert checkpoints(run) == []
    if every == 20:
        assert not (run / "history.jsonl").read_bytes().endswith(b"\n")
    mapl.resume(run)
    assert written(run) == written(tmp_path / "whole")


# A whole file with contents that are not those of its run


def crafted(folder: Path, change) -> Path:
    """The newest checkpoint with changed tensors, under the name that its new digest gives it."""
    path = checkpoints(folder)[-1]
    tensors = safetensors.torch.load(path.read_bytes())
    change(tensors)
    path.unlink()
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    path = path.with_name(f"{path.name.split('-')[0]}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors")
    path.write_bytes(data)
    return path


def set_to(name, value):
    return lambda tensors: tensors.update({name: value})


HEAD, MOMENT = "client.1.model.head.weight", "optimizer.0.0.exp_avg"
CRAFTED = {
    "missing head": (lambda tensors: tensors.pop(HEAD), "head.weight"),
    "missing state": (lambda tensors: tensors.pop("peers.weights"), "peers"),
    "missing ledger": (lambda tensors: tensors.pop("ledger"), "ledger"),
    "missing recipe": (lambda tensors: tensors.pop("recipe"), "recipe"),
    "missing moment": (lambda tensors: tensors.pop(MOMENT), "exp_avg"),
    "shape": (lambda tensors: tensors.update({HEAD: tensors[HEAD][:1]}), "head.weight"),
    "dtype": (lambda tensors: tensors.update({HEAD: tensors[HEAD].double()}), "head.weight"),
    "shape of a moment": (set_to(MOMENT, torch.zeros(1)), "exp_avg"),
    "NaN": (lambda tensors: tensors[HEAD].view(-1)[0:1].fill_(torch.nan), "finite"),
    "infinity": (lambda tensors: tensors[MOMENT].view(-1)[0:1].fill_(torch.inf), "finite"),
    "NaN weight": (lambda tensors: tensors["peers.weights"][0:1].fill_(torch.nan), "finite"),
    "negative ledger": (set_to("ledger", torch.tensor([-1, 0])), "ledger"),
    "peer out of range": (lambda tensors: tensors["peers.ids"][-1:].fill_(99), "peers"),
    "too few peers": (lambda tensors: tensors.update({"peers.ids": tensors["peers.ids"][1:]}), "peers"),
    "another round": (set_to("rounds", torch.tensor([1])), "round"),
    "stranger": (set_to("client.9.model.head.weight", torch.zeros(1)), "client.9"),
    "stranger's parameter": (set_to("optimizer.0.999.exp_avg", torch.zeros(1)), "999"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    mapl.run(small(rounds=3, train={"reset": False}), folder, stop=stop_after(2))
    return folder


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_whole_checkpoint_that_does_not_fit_its_run_is_refused(kind, kept, tmp_path):
    change, word = CRAFTED[kind]
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    crafted(folder, change)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(MaplError, match=word):
        mapl.resume(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_checkpoint_under_the_name_of_another_round_is_refused(kept, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    path = checkpoints(folder)[-1]
    path.rename(path.with_name(path.name.replace("000002", "000003")))
    with told() as said:
        assert mapl.resume(folder).finished
    assert "000003" in " ".join(said)


def test_a_checkpoint_that_the_history_does_not_reach_is_refused(kept, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    lines = (folder / "history.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "history.jsonl").write_bytes(lines[0] * 2)
    with told() as said:
        assert mapl.resume(folder).finished
    assert "line 2" in " ".join(said)


def test_what_top_k_letters_keep_is_checked(tmp_path):
    compressed = small("fedavg", rounds=3, network={"compress": {"kind": "top-k"}}, model={"backbones": ["mlp"]})
    mapl.run(compressed, tmp_path / "run", stop=stop_after(2))
    crafted(tmp_path / "run", set_to("compress.held.letters.of", torch.zeros(1, dtype=torch.int64)))
    with pytest.raises(MaplError, match=r"held\.letters\.of"):
        mapl.resume(tmp_path / "run")
