"""A new peer: what is found in its data, what all members agree on, what leaves the machine, and its control arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import mapl
from identities import HERE, contents, invited, joined, new_network
from mapl import Recipe
from mapl.cli.app import app
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.sources.folder import Folder
from mapl.data.sources.npz import Npz
from mapl.errors import MaplError
from mapl.network import nbytes
from mapl.peer.agreement import AGREEMENT, Agreement
from mapl.peer.alone import Gain, gain, run_alone
from mapl.peer.identity import Identity, IdentityError
from mapl.peer.init import letter_of, own_networks_sent, prepare
from mapl.peer.invitations import Invitation
from mapl.peer.local import free_ports
from mapl.peer.own import fitted
from mapl.peer.process import own_data, run_peer
from mapl.peer.settings import PeerSettings, read_settings, to_toml
from mapl.recipe import to_toml as recipe_text
from mapl.runs.export import load_model
from mapl.runs.folder import load

ROUNDS = 2
RECIPE = Recipe.of(method="courier", clients=2, rounds=ROUNDS, evaluate={"every": 1}, train={"batch": 4})
SIDE = 8


def images(count: int, side: int = SIDE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side), np.uint8)


def npz(path: Path, labels: list[int], side: int = SIDE, seed: int = 0) -> Path:
    """Images with these labels, for training and again for tests."""
    found = images(len(labels), side, seed)
    arrays = {"images": found, "labels": np.array(labels)}
    np.savez(path, **{f"{split}_{name}": array for split in ("train", "test") for name, array in arrays.items()})
    return path


def picture(path: Path, grey: int, side: int = SIDE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), grey, np.uint8)).save(path)


def pictures(
    root: Path,
    classes: Mapping[str, int],
    count: int = 2,
    splits: tuple[str, ...] = ("train", "test"),
    side: int = SIDE,
) -> Path:
    """A folder of images. All images of a class have its grey level."""
    for split in splits:
        for name, grey in classes.items():
            for number in range(count):
                picture(root / split / name / f"{number}.png", grey, side)
    return root


def member(tmp_path: Path, name: str = "bob") -> Identity:
    """Somebody who joined alice's network over the loopback interface."""
    return joined(Identity.load(tmp_path / "alice"), name)


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return new_network(tmp_path / "alice", recipe=RECIPE)


def initialised(identity: Identity, data: Path | None, **more: Any) -> PeerSettings:
    """The settings of a new peer, read back from the file that was written."""
    out = identity.folder.parent / f"{identity.name}.toml"
    prepare(identity.folder, data, out=out, **more).write()
    return read_settings(out)


def found(settings: PeerSettings) -> Dataset:
    """What a peer with these settings would train on."""
    identity = Identity.load(settings.identity)
    own = own_data(settings, identity)
    assert own is not None
    assert list(own) == [identity.number]
    return own[identity.number]


# What is found and written


def test_an_npz_of_the_authority(alice, tmp_path):
    data = npz(tmp_path / "alice.npz", [0, 1, 2, 2])
    settings = initialised(alice, data)
    assert settings.data.name == "npz"
    assert settings.data.path == data
    assert settings.identity == alice.folder
    assert settings.folder == tmp_path / "state"
    assert settings.net.connect == ()
    mine, raw = found(settings), Npz().load(DataSettings(name="npz", folder=data))
    assert mine.digest() == raw.digest()
    agreed = Identity.load(alice.folder).agreement()
    assert agreed == Agreement(version=1, classes=3, names=(), image=(1, SIDE, SIDE), mean=raw.mean, std=raw.std)


def test_paths_are_relative_where_both_can_be_moved_together(alice, tmp_path, monkeypatch):
    npz(tmp_path / "alice.npz", [0, 1])
    monkeypatch.chdir(tmp_path)
    prepare(Path("alice"), Path("alice.npz"), out=Path("here.toml")).write()
    prepare(Path("alice"), Path("alice.npz"), out=Path("there/PEER.toml")).write()
    assert 'identity = "alice"' in Path("here.toml").read_text()
    assert 'path = "alice.npz"' in Path("here.toml").read_text()
    assert read_settings(Path("there/PEER.toml")).data.path == tmp_path / "alice.npz"
    assert read_settings(Path("there/PEER.toml")).folder == Path("there/state")


def test_a_member_connects_to_whoever_invited_it(alice, tmp_path):
    initialised(alice, npz(tmp_path / "a.npz", [0, 1]))
    bob = member(tmp_path)
    settings = initialised(bob, npz(tmp_path / "b.npz", [0, 1]))
    assert settings.net.connect == tuple(address.removeprefix("quic/") for address in bob.addresses)
    assert settings.net.listen == "0.0.0.0:7447"
    given = initialised(
        bob, tmp_path / "b.npz", overwrite=True, listen="0.0.0.0:9000", connect=["10.0.0.9:1"], backbone="cnn"
    )
    assert (given.net.listen, given.net.connect, given.data.backbone) == ("0.0.0.0:9000", ("10.0.0.9:1",), "cnn")


def test_without_data_a_peer_takes_its_share_of_the_recipes(alice):
    settings = initialised(alice, None)
    assert settings.data.name == ""
    assert own_data(settings, alice) is None
    assert alice.agreement() is None


def test_the_images_and_classes_that_are_shown_are_those_of_the_data(alice, tmp_path):
    peer = prepare(alice.folder, pictures(tmp_path / "photos", {"cat": 10, "dog": 20}), out=tmp_path / "x")
    assert peer.class_names == ("cat", "dog")
    assert peer.train.counts(2) == peer.test.counts(2) == [2, 2]
    assert peer.part.clients[0].backbone == RECIPE.model.backbones[0]
    assert peer.reached_at() == [f"{HERE}:7447"]
    share = prepare(alice.folder, None, out=tmp_path / "x")
    assert share.train.counts(10) == [5] * 5 + [0] * 5  # the recipe's, of the first of two clusters


# Data without test images


def test_a_folder_of_classes_alone_gives_a_fifth_of_each_class_to_tests(tmp_path):
    root = pictures(tmp_path / "photos", {"cat": 10, "dog": 20}, count=10, splits=("",))
    dataset = Folder().load(DataSettings(name="folder", folder=root))
    assert (dataset.train.counts(2), dataset.test.counts(2)) == ([8, 8], [2, 2])
    assert dataset.class_names == ("cat", "dog")
    again = Folder().load(DataSettings(name="folder", folder=root))
    assert again.digest() == dataset.digest()


def test_an_npz_of_images_and_labels_alone_gives_a_fifth_of_each_class_to_tests(tmp_path):
    pixels = images(25)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.arange(25) % 3)
    dataset = Npz().load(DataSettings(name="npz", folder=tmp_path / "x.npz"))
    assert sum(dataset.test.counts(3)) == 6
    assert dataset.test.counts(3) == [2, 2, 2]
    together = torch.cat([dataset.train.pixels, dataset.test.pixels]).flatten(1)
    assert len(torch.unique(together, dim=0)) == 25  # each image is in one of them
    by_pixels = {image.tobytes(): label for image, label in zip(pixels, np.arange(25) % 3, strict=True)}
    for part in (dataset.train, dataset.test):
        assert [by_pixels[image.numpy().tobytes()] for image in part.pixels] == part.labels.tolist()


def test_it_is_said_whether_test_images_were_drawn(alice, tmp_path):
    np.savez(tmp_path / "b.npz", images=images(8), labels=np.arange(8) % 2)
    for drawn, path in (
        (False, npz(tmp_path / "a.npz", [0, 1])),
        (True, tmp_path / "b.npz"),
        (False, pictures(tmp_path / "c", {"0": 10, "1": 20})),
        (True, pictures(tmp_path / "d", {"0": 10, "1": 20}, splits=("",))),
    ):
        found = prepare(alice.folder, path, out=tmp_path / "PEER.toml").data.found
        assert any("a fifth of each class was drawn" in line for line in found) == drawn


# What members agree on


def test_pictures_of_another_size_get_that_of_the_network(alice, tmp_path):
    initialised(alice, pictures(tmp_path / "hers", {"cat": 10, "dog": 20}))
    mine = found(initialised(member(tmp_path), pictures(tmp_path / "his", {"cat": 10, "dog": 20}, side=SIDE + 5)))
    assert mine.shape == (1, SIDE, SIDE)
    assert "converted: 8 to" in mine.found[0]


def test_the_agreement_travels_in_the_invitation_and_names_decide_numbers(alice, tmp_path):
    greys = {"cat": 10, "dog": 20, "owl": 30}
    initialised(alice, pictures(tmp_path / "hers", greys))
    agreed = alice.agreement()
    assert agreed is not None
    assert agreed.names == ("cat", "dog", "owl")
    bob = member(tmp_path)
    assert bob.agreement() == agreed
    his = pictures(tmp_path / "his", {"owl": 30, "dog": 20})  # 0 and 1 in the order of their names
    mine = found(initialised(bob, his))
    number = {10: 0, 20: 1, 30: 2}
    for part in (mine.train, mine.test):
        assert part.labels.tolist() == [number[int(grey)] for grey in part.pixels[:, 0, 0, 0]]
    assert (mine.classes, mine.class_names) == (3, ("cat", "dog", "owl"))
    assert (mine.mean, mine.std) == (agreed.mean, agreed.std)
    assert sorted(set(mine.train.labels.tolist())) == [1, 2]


def test_an_npz_may_lack_classes_and_takes_their_names(alice, tmp_path):
    initialised(alice, pictures(tmp_path / "hers", {"cat": 10, "dog": 20, "owl": 30}))
    mine = found(initialised(member(tmp_path), npz(tmp_path / "b.npz", [0, 1, 1])))
    assert (mine.classes, mine.class_names) == (3, ("cat", "dog", "owl"))
    assert mine.train.labels.tolist() == [0, 1, 1]


def test_folders_with_numbers_for_names_fit_classes_without_names(alice, tmp_path):
    initialised(alice, npz(tmp_path / "a.npz", list(range(11))))
    his = pictures(tmp_path / "his", {"10": 100, "2": 20, "1": 10})
    mine = found(initialised(member(tmp_path), his))
    assert mine.train.labels.tolist() == [int(grey) // 10 for grey in mine.train.pixels[:, 0, 0, 0]]


def test_accents_may_be_written_in_two_ways(alice, tmp_path):
    initialised(alice, pictures(tmp_path / "hers", {"caf\u00e9": 10, "bar": 20}))
    mine = found(initialised(member(tmp_path), pictures(tmp_path / "his", {"cafe\u0301": 10, "bar": 20})))
    assert mine.train.labels.tolist() == [0, 0, 1, 1]


def test_an_invitation_from_before_the_agreement_is_read_and_brings_none(alice, tmp_path):
    invited(alice, "bob")
    path = tmp_path / "bob.invitation"
    tree = json.loads(path.read_bytes())
    del tree["agreement"]
    path.write_text(json.dumps(tree))
    assert Invitation.load(path).agreement is None
    assert member(tmp_path).agreement() is None


GOOD: dict[str, Any] = {
    "version": 1, "classes": 2, "names": ["a", "b"], "image": [1, 8, 8], "mean": [0.5], "std": [0.5]
}  # fmt: skip


@pytest.mark.parametrize(
    "over",
    [
        {"classes": 1},
        {"classes": 10**9, "names": []},
        {"classes": "2"},
        {"names": ["a"]},
        {"names": ["a", "a"]},
        {"names": ["", "b"]},
        {"names": ["a" * 1000, "b"]},
        {"image": [1, 8]},
        {"image": [1, 8, 10**9]},
        {"image": [3, 8, 8]},
        {"mean": [float("nan")]},
        {"std": [float("inf")]},
        {"std": [0.0]},
        {"std": [1e-30]},
        {"version": 2},
        {"more": 1},
    ],
    ids=str,
)
def test_a_bad_agreement_is_refused_wherever_it_comes_from(alice, tmp_path, over):
    bad = {**GOOD, **over}
    path = alice.folder / AGREEMENT
    path.write_text(json.dumps(GOOD))
    assert alice.agreement() is not None
    invited(alice, "bob")
    path.write_text(json.dumps(bad))
    with pytest.raises(IdentityError) as error:
        alice.agreement()
    assert error.value.reason == "format"
    assert "\n" not in str(error.value)
    invitation = tmp_path / "bob.invitation"
    invitation.write_text(json.dumps({**json.loads(invitation.read_bytes()), "agreement": bad}))
    with pytest.raises(IdentityError) as error:
        Invitation.load(invitation)
    assert error.value.reason == "format"


def test_any_agreement_survives_being_written(tmp_path):
    data = Npz().load(DataSettings(name="npz", folder=npz(tmp_path / "x.npz", [0, 1, 2])))
    agreed = Agreement.of(data)
    (tmp_path / AGREEMENT).write_bytes(agreed.text())
    again = Agreement.model_validate_json((tmp_path / AGREEMENT).read_bytes())
    assert again == agreed
    assert fitted(data, again).digest() == data.digest()


# What is refused


def stranger(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04 nothing of ours")
    return path


def made(call: Callable[..., object], *arguments: Any) -> Path:
    call(*arguments)
    return Path(arguments[0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda at: at / "nowhere", "no file or folder"),
        (lambda at: made(Path.mkdir, at / "empty"), "is an empty folder"),
        (lambda at: made(Path.mkdir, at / "a/b", 0o777, True).parent, "has no images"),
        (lambda at: npz(at / "one.npz", [0, 0, 0]), "one class only"),
        (lambda at: pictures(at / "one", {"cat": 10}), "one class only"),
        (lambda at: stranger(at / "stranger.npz"), "not an .npz file"),
        (lambda at: stranger(at / "photo.png"), "neither a folder of images nor a file that ends in"),
        (lambda at: npz(at / "large.npz", [0, 1], side=12), "12×12 pixels and 1 channel, and those of the network images of 8×8"),
        (lambda at: npz(at / "many.npz", [0, 3]), "labels run to 3, but the network has 3 classes"),
        (lambda at: pictures(at / "other", {"cat": 1, "dig": 2}), "unknown class 'dig'.* Did you mean 'dog'"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used_are_refused_and_nothing_is_written(alice, tmp_path, data, said):
    initialised(alice, pictures(tmp_path / "hers", {"cat": 10, "dog": 20, "owl": 30}))
    bob = member(tmp_path)
    path = data(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(MaplError, match=said) as error:
        prepare(bob.folder, path, out=tmp_path / "bob" / "PEER.toml")
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"backbone": "resnet81"}, "unknown backbone"),
        ({"listen": "7447"}, "--listen"),
        ({"connect": ["nowhere"]}, "--connect"),
        ({"data": None}, "bring their own data"),
        ({"out": Path("alice.npz")}, "exists already"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_and_nothing_is_written(alice, tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    data = npz(tmp_path / "alice.npz", [0, 1])
    initialised(alice, data)
    before = contents(tmp_path)
    with pytest.raises(MaplError, match=said):
        prepare(alice.folder, more.pop("data", data), **more)
    assert contents(tmp_path) == before


def test_only_the_authority_says_which_classes_there_are(alice, tmp_path):
    bob = member(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(MaplError, match="nobody has said yet which classes"):
        prepare(bob.folder, npz(tmp_path.parent / f"{tmp_path.name}.npz", [0, 1]), out=tmp_path / "x")
    assert contents(tmp_path) == before


def test_a_file_that_cannot_be_written_leaves_no_agreement(alice, tmp_path):
    peer = prepare(alice.folder, npz(tmp_path / "a.npz", [0, 1]), out=tmp_path / "PEER.toml")
    (tmp_path / "PEER.toml").mkdir()
    with pytest.raises(MaplError, match="cannot be written"):
        peer.write()
    assert alice.agreement() is None


def test_what_init_refuses_ends_the_command_with_status_2(alice, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mapl", "peer", "init", "--identity", str(alice.folder), "--data", "nowhere"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        mapl.cli.main()
    assert exit.value.code == 2
    assert "nowhere" in capsys.readouterr().err
    assert not Path("PEER.toml").exists()


# What leaves the machine


@pytest.mark.parametrize(
    ("method", "tensors", "shown"),
    [
        ("courier", {"courier", "drift"}, []),
        ("proxyfl", {"courier", "mass"}, []),
        ("mapl", {"prototypes", "head"}, ["head", "prototypes"]),
        ("dfedavgm", {"model", "degree"}, ["backbone", "head"]),
        ("local", None, []),
    ],
)
def test_what_a_letter_shows_of_the_own_network(tmp_path, method, tensors, shown):
    recipe = Recipe.of(method=method, clients=2, rounds=30, partition={"shots": 2})
    peer = prepare(new_network(tmp_path / "alice", recipe=recipe).folder, out=tmp_path / "PEER.toml")
    letter = letter_of(peer.part)
    assert (letter and set(letter.tensors)) == tensors
    assert own_networks_sent(peer.part) == shown


def test_a_compressed_letter_is_shown_as_it_travels(tmp_path):
    recipe = RECIPE.model_copy(
        update={"network": RECIPE.network.model_copy(update={"compress": mapl.recipe.CompressSettings(kind="int8")})}
    )
    whole = prepare(new_network(tmp_path / "a" / "alice", recipe=RECIPE).folder, out=tmp_path / "PEER.toml")
    small = prepare(new_network(tmp_path / "b" / "alice", recipe=recipe).folder, out=tmp_path / "PEER.toml")
    sizes = [nbytes(letter) for peer in (whole, small) if (letter := letter_of(peer.part))]
    assert 3 < sizes[0] / sizes[1] < 4


def test_the_command_names_every_tensor_and_byte_of_a_letter(alice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = npz(tmp_path / "a.npz", [0, 1, 2, 2, 2])
    out = CliRunner().invoke(app, ["peer", "init", "--identity", "alice", "--data", str(data)], catch_exceptions=False)
    assert out.exit_code == 0
    letter = letter_of(prepare(alice.folder, data, overwrite=True).part)
    assert letter is not None
    for name, tensor in letter.tensors.items():
        assert f"{name}  {'×'.join(map(str, tensor.shape))} float32, {4 * tensor.numel():,} bytes" in out.stdout
    for part in (f"{nbytes(letter):,} bytes", "5 training images", letter.architecture, letter.run, AGREEMENT):
        assert part in out.stdout
    assert letter.samples == 5


# Code that the network's recipe names


@pytest.mark.parametrize("start", [run_peer, run_alone, lambda settings: prepare(settings.identity, overwrite=True)])
@pytest.mark.parametrize("key", ['name = "courier"', 'backbones = ["mlp", "cnn", "residual", "separable"]'])
def test_code_that_only_the_networks_recipe_names_is_not_imported(tmp_path, monkeypatch, start, key):
    monkeypatch.chdir(tmp_path)
    name = f"stranger_{abs(hash(str(tmp_path)))}"
    Path(f"{name}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    identity = new_network(tmp_path / "alice", recipe=RECIPE)
    Path("PEER.toml").write_text(to_toml({"identity": "alice"}))
    path = identity.folder / "recipe.toml"
    text = path.read_text()
    assert text.count(key) == 1
    value = f'["{name}:Thing"]' if key.startswith("backbones") else f'"{name}:Thing"'
    path.write_text(text.replace(key, f"{key.partition(' = ')[0]} = {value}"))
    with pytest.raises(MaplError, match="trust=True"):
        start(read_settings(Path("PEER.toml")))
    assert not Path("imported").exists()


# The control arm, and a peer that nobody has joined


def test_a_peer_without_others_equals_its_control_arm_and_that_of_a_simulation(alice, tmp_path):
    port = free_ports(1)[0]
    data = npz(tmp_path / "a.npz", [0, 1, 2, 3] * 3)
    settings = initialised(alice, data, listen=f"{HERE}:{port}")
    record = run_alone(settings)
    assert record.finished
    dataset = Npz().load(DataSettings(name="npz", folder=data))
    recipe = RECIPE.model_copy(update={"network": mapl.recipe.NOBODY})
    simulated = mapl.run(recipe, tmp_path / "simulated", data=dict.fromkeys(range(2), dataset))
    assert [r.accuracy[0] for r in simulated.rounds] == [r.accuracy[0] for r in record.rounds]
    assert [r.losses for r in record.rounds] == [
        {term: values[:1] for term, values in r.losses.items()} for r in simulated.rounds
    ]
    alone = gain(settings)
    assert alone == Gain(ROUNDS, 12, record.mean, None)
    run_peer(settings)
    assert gain(settings) == Gain(ROUNDS, 12, record.mean, record.mean)
    assert f"{100 * record.mean:.1f} %: +0.0 points, on 12 test images" in gain(settings).sentence()


def test_a_control_arm_goes_on_where_it_stopped(alice, tmp_path):
    settings = initialised(alice, npz(tmp_path / "a.npz", [0, 1, 2, 3] * 3))
    stopped = run_alone(settings, stop=lambda: True)
    assert len(stopped.rounds) == 1
    whole = run_alone(settings)
    other = settings.model_copy(update={"folder": tmp_path / "other"})
    assert run_alone(other).rounds == whole.rounds


def test_a_run_with_another_backbone_is_not_compared(alice, tmp_path):
    settings = initialised(alice, npz(tmp_path / "a.npz", [0, 1, 2, 3] * 3), listen=f"{HERE}:{free_ports(1)[0]}")
    run_peer(settings)
    other = initialised(alice, tmp_path / "a.npz", backbone="cnn", overwrite=True)
    run_alone(other)
    with pytest.raises(MaplError, match="differ in more than letters"):
        gain(other)


def test_a_peers_model_is_exported_with_its_own_data(alice, tmp_path):
    initialised(alice, pictures(tmp_path / "hers", {"cat": 10, "dog": 20, "owl": 200}))
    bob = member(tmp_path)
    settings = initialised(
        bob, pictures(tmp_path / "his", {"owl": 200, "dog": 20}), listen=f"{HERE}:{free_ports(1)[0]}"
    )
    settings = settings.model_copy(update={"wait": settings.wait.model_copy(update={"first": 0.1, "patience": 0.1})})
    record = run_peer(settings)
    file = tmp_path / f"{bob.name}.toml"
    out = CliRunner().invoke(
        app, ["peer", "export", str(file), "--to", str(tmp_path / "model")], catch_exceptions=False
    )
    assert out.exit_code == 0
    model = load_model(tmp_path / "model" / "client-001.safetensors")
    assert model(found(settings).test.pixels).shape == (4, 3)
    agreed = bob.agreement()
    assert agreed is not None
    assert model.mean.flatten().tolist() == pytest.approx(agreed.mean)
    assert load(record.folder).finished


# Small things


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(text=TEXTS, more=st.lists(TEXTS, max_size=3))
def test_any_text_survives_peer_toml(tmp_path_factory, text, more):
    import tomllib

    tree = {"identity": text, "folder": "x", "net": {"connect": more, "lease": 3.5, "silent_rounds": 2}}
    assert tomllib.loads(to_toml(tree)) == tree


def test_a_network_for_so_many_clients_and_rounds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "identity",
        "create-network",
        "two",
        "--me",
        "alice",
        "--host",
        HERE,
        "--clients",
        "2",
        "--rounds",
        "7",
    ]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    recipe = Identity.load("two").recipe()
    assert (recipe.clients, recipe.rounds, recipe.method.name) == (2, 7, "courier")
    assert recipe_text(recipe) == recipe_text(Recipe.of(method="courier", clients=2, rounds=7))
