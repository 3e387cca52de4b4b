"""Who does not take part in a round is left as it is; the others play as if it were not there, in any division."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import mapl
import mapl.methods
from conftest import assert_same, in_silence, line_with, parameters, play, skip_without_umap, small, stop_after, written
from mapl import MaplError, Recipe, Record
from mapl.analysis.catchup import CatchUp, catch_up, in_words
from mapl.analysis.compare import compare, notes
from mapl.analysis.files import rows_of
from mapl.cli.app import app
from mapl.client import Peers
from mapl.methods._base import Centralised
from mapl.network import JoinersSettings, same_since, taking_part
from mapl.peer.process import own_recipe
from mapl.peer.settings import PeerSettings
from mapl.plugins import known
from mapl.report import write_report
from mapl.runs.chain import Round
from mapl.runs.join import join
from mapl.runs.part import Part, build_part
from mapl.runs.record import ClientCard
from mapl.runs.round import play_round
from test_join import HALVES, PEERS, everything, in_folders

METHODS = known(mapl.methods)
HALF = {"participation": 0.5}
NOBODY_LATE = JoinersSettings()


def recipe(name: str = "mapl", /, **over: Any) -> Recipe:
    skip_without_umap(name)
    alike = {"model": {"backbones": ["mlp"]}} if METHODS[name].homogeneous or name == "flt" else {}
    return small(name, **{**alike, "network": HALF, "rounds": 4, **over})


def who(part: Part, t: int) -> set[int]:
    taking = part.taking_part(t)
    return {client.id for client in part.clients} if taking is None else set(taking.tolist())


def of_client(part: Part, client: int) -> dict[str, torch.Tensor]:
    """Everything that a client keeps."""
    one = part.clients[client]
    kept = {f"model.{k}": v.clone() for k, v in one.model.state_dict().items()}
    kept |= {f"state.{k}": v.clone() for k, v in one.state.items()}
    return kept | {f"peers.{k}": torch.from_numpy(getattr(one.peers, k).copy()) for k in Peers.__annotations__}


joiners = st.builds(JoinersSettings, clients=st.integers(0, 8), round=st.integers(0, 5))


@given(st.floats(0.01, 1), joiners, st.integers(0, 99), st.integers(9, 30), st.integers(0, 9))
def test_a_share_of_those_who_are_there_takes_part(share, late, seed, clients, round):
    found = taking_part(share, late, seed, clients, round)
    ids = list(range(clients)) if found is None else found.tolist()
    there = clients - late.clients if round < late.round else clients
    assert ids == sorted(set(ids))
    assert 1 <= len(ids) <= there
    assert set(ids) <= set(range(there))
    assert len(ids) == max(1, math.floor(share * there + 0.5))
    assert same_since(share, late, round) <= round


def test_everybody_takes_part_equally_often():
    counts = torch.zeros(10)
    for round in range(400):
        counts[taking_part(0.3, NOBODY_LATE, 5, 10, round)] += 1
    assert counts.sum() == 3 * 400
    assert 90 <= counts.min() <= counts.max() <= 150  # 120 ± 3.3 standard deviations
    pairs = {tuple(taking_part(0.2, NOBODY_LATE, 5, 10, round).tolist()) for round in range(400)}
    assert len(pairs) == 45  # all that there are


@pytest.mark.parametrize("name", METHODS)
def test_who_does_not_take_part_keeps_everything_and_is_tested(name):
    part = build_part(recipe(name, clients=5))
    others = 0
    for t in range(4):
        before = {client.id: of_client(part, client.id) for client in part.clients}
        line, _ = play_round(part, t)
        present = who(part, t)
        for client in part.clients:
            if client.id not in present:
                others += 1
                assert_same(before[client.id], of_client(part, client.id))
            elif not part.method.silent or name == "local":
                moved = of_client(part, client.id)
                assert any(not torch.equal(v, moved[k]) for k, v in before[client.id].items())
        for values in line.losses.values():
            assert [value is not None for value in values] == [client.id in present for client in part.clients]
        assert len(line.accuracy or ()) == 5
    # FLT's server sorts all clients in the first round.
    assert others == 2 * (3 if name == "flt" else 4)  # 3 of 5 take part


@pytest.mark.parametrize(("name", "letters"), [("dfedavgm", 3 * 2), ("fedavg", 2 * 3), ("mapl", 3 * 2), ("local", 0)])
def test_letters_go_between_those_who_take_part(name, letters):
    part = play(recipe(name, clients=5, method={"name": name}))
    assert [line.messages for line in part.lines] == [letters] * 4
    assert part.ledger.messages == 4 * letters
    if name == "mapl":
        for client in part.clients:
            met = {j for t in range(4) if client.id in who(part, t) for j in who(part, t)}
            assert set(client.peers.ids.tolist()) == met | {client.id}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.silent])
def test_one_client_alone_in_a_round_writes_nothing(name):
    if name == "flt":
        pytest.skip("all clients take part in its first round")
    part = play(recipe(name, network={"participation": 0.01}), rounds=3)
    assert [sum(v is not None for v in next(iter(line.losses.values()))) for line in part.lines] == [1] * 3
    assert part.ledger.messages == 0


@pytest.mark.parametrize("name", ["courier", "fedproto", "flt"])
def test_it_is_the_same_over_bytes(name):
    ours, theirs = (play(recipe(name, network={**HALF, "transport": t})) for t in ("memory", "bytes"))
    assert [line.line() for line in ours.lines] == [line.line() for line in theirs.lines]
    assert_same(parameters(ours), parameters(theirs))


@pytest.mark.parametrize("division", [HALVES, PEERS], ids=["halves", "peers"])
@pytest.mark.parametrize("name", ["courier", "mapl", "proxyfl", "fedavg"])
def test_it_is_the_same_in_any_division(name, division, tmp_path):
    """In most rounds a part has no client that takes part."""
    made = recipe(name)
    whole = mapl.run(made, tmp_path / "whole")
    with in_silence():
        joined = join(in_folders(made, division, tmp_path), tmp_path / "joined")
    assert everything(joined.folder) == everything(whole.folder)
    parts = (
        [Round.of_line(line) for line in (tmp_path / "part-0" / "history.jsonl").open()] if division == PEERS else []
    )
    assert not parts or any(not line.losses for line in parts)


@pytest.mark.parametrize("over", [{}, {"train": {"reset": False}}], ids=["", "lasting optimisers"])
@pytest.mark.parametrize("name", ["courier", "fedavg"])
def test_it_is_the_same_after_a_resume(name, over, tmp_path):
    made = recipe(name, **over)
    whole = mapl.run(made, tmp_path / "whole")
    mapl.run(made, tmp_path / "run", stop=stop_after(2))
    resumed = mapl.resume(tmp_path / "run")
    assert written(resumed.folder) == written(whole.folder)


@pytest.mark.parametrize("name", ["dfedavgm", "fedavg", "courier", "pfedsim"])
def test_no_letter_builds_on_one_that_its_reader_missed(name):
    part = play(recipe(name, rounds=6, network={**HALF, "compress": {"kind": "top-k"}}))
    assert part.ledger.messages
    assert not any(line.refused for line in part.lines)


def test_a_ring_is_cut_where_somebody_is_missing():
    part = play(recipe("dfedavgm", clients=6, network={"participation": 0.7, "topology": {"name": "ring"}}))
    for t, line in enumerate(part.lines):
        there = who(part, t)
        assert line.messages == sum((i + d) % 6 in there for i in there for d in (1, -1))


def test_clients_that_explore_ask_only_those_who_take_part():
    part = play(recipe("courier", clients=8, rounds=6, network={**HALF, "topology": {"name": "explore"}}))
    assert part.ledger.messages
    assert not any(line.refused for line in part.lines)


def test_the_control_arm_has_the_same_clients_in_each_round(tmp_path):
    nobody = {"topology": {"name": "none"}}
    arms = {
        "letters": recipe("mapl"),
        "control": recipe("mapl", network={**HALF, **nobody}),
        "everybody": recipe("mapl", network=nobody),
    }
    assert arms["control"].fingerprint() != arms["everybody"].fingerprint()
    records = {name: mapl.run(made, tmp_path / name) for name, made in arms.items()}
    for ours, theirs in zip(records["letters"].rounds, records["control"].rounds, strict=True):
        absent = [[value is None for value in line.losses["cross_entropy"]] for line in (ours, theirs)]
        assert absent[0] == absent[1]
        assert sum(absent[0]) == 2
    gains = {arm.label: arm.gain for arm in compare(list(records.values())) if not arm.is_control}
    assert [gain is not None for gain in gains.values()] == [True]
    assert compare([records["letters"], records["everybody"]])[0].gain is None
    labels = [arm.label for arm in compare([records["control"], records["everybody"]])]
    assert labels == ["mapl, 50 % take part, no letters", "mapl, 100 % take part, no letters"]


def test_a_recipe_that_says_nothing_of_it_is_the_run_that_it_was():
    made = small()
    assert made.fingerprint() == small(network={"participation": 1.0, "joiners": {"clients": 0}}).fingerprint()
    assert made.fingerprint() != small(network=HALF).fingerprint()


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ({"participation": 0}, "network.participation"),
        ({"participation": 1.2}, "network.participation"),
        ({"participation": "half"}, "network.participation"),
        ({"joiners": {"clients": 4, "round": 1}}, "at least one has to be there from the start"),
        ({"joiners": {"clients": 1, "round": 3}}, "rounds 0 to 2, so they would never join"),
        ({"joiners": {"clients": -1}}, "network.joiners.clients"),
    ],
)
def test_what_cannot_be_is_one_sentence(network, said):
    with pytest.raises(MaplError, match=said) as raised:
        small(network=network)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("network", [HALF, {"joiners": {"clients": 1, "round": 1}}], ids=["share", "joiners"])
def test_a_real_peer_is_told_that_only_a_simulation_has_it(network):
    with pytest.raises(MaplError, match="only a simulation has it"):
        own_recipe(small(network=network), PeerSettings(identity=Path("identity")))


@pytest.mark.parametrize("given", [["--set", "network.participation=0.5"], ["--method", "fedavg"]])
def test_a_network_of_peers_is_refused_before_anything_is_made(given, tmp_path):
    result = CliRunner().invoke(app, ["network", "up", "--peers", "3", "--out", str(tmp_path / "net"), *given])
    assert isinstance(result.exception, MaplError)
    assert not (tmp_path / "net").exists()


# Those who join late

LATE = {"joiners": {"clients": 2, "round": 2}}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "flt"])
def test_joiners_are_as_fresh_as_in_round_0_and_unheard_of_until_they_join(name):
    part = build_part(recipe(name, network=LATE))
    fresh = {i: of_client(part, i) for i in range(4)}
    for t in range(4):
        line, _ = play_round(part, t)
        for i in (2, 3):
            same = all(torch.equal(v, of_client(part, i)[k]) for k, v in fresh[i].items())
            assert same == (t < 2)
        if t < 2:
            assert all(set(client.peers.ids.tolist()) <= {0, 1} for client in part.clients[:2])
            assert all(values[2:] == [None, None] for values in line.losses.values())
    if not part.method.silent and not isinstance(part.method, Centralised):
        counts = [line.messages for line in play(recipe(name, network=LATE)).lines]
        assert counts[2] > counts[1]


def test_joiners_are_not_for_a_method_that_sorts_its_clients_once():
    with pytest.raises(MaplError, match="sorts all clients in its first round"):
        build_part(recipe("flt", network=LATE))


@pytest.mark.parametrize("name", ["courier", "fedavg"])
def test_joiners_are_the_same_in_parts_and_after_a_resume(name, tmp_path):
    made = recipe(name, network={**LATE, **HALF, "compress": {"kind": "top-k"}})
    whole = mapl.run(made, tmp_path / "whole")
    assert not any(line.refused for line in whole.rounds)
    mapl.run(made, tmp_path / "run", stop=stop_after(1))
    assert written(mapl.resume(tmp_path / "run").folder) == written(whole.folder)
    with in_silence():
        joined = join(in_folders(made, PEERS, tmp_path), tmp_path / "joined")
    names = ("history.jsonl", "graph.rows", "graph.index")
    assert [everything(joined.folder).get(n) for n in names] == [everything(whole.folder).get(n) for n in names]


def late_run(accuracies: list[list[float] | None], **over: Any) -> Record:
    """A run that nobody made, of which clients 2 and 3 join in round 2; its accuracies by round and client."""
    made = small("local", network=LATE, rounds=len(accuracies) + 1, **over)
    cards = [ClientCard(i, 0, [0], 4, 5, "mlp", 100, "data") for i in range(4)]
    rounds = [Round(t, {}, values, 0, 0) for t, values in enumerate(accuracies)]
    return Record(Path("late"), made, cards, rounds, [])


def test_a_joiner_has_caught_up_once_it_is_two_points_below_the_others():
    before = [[0.5, 0.7, 0.9, 0.1]] * 2  # nobody has joined
    record = late_run([*before, [0.6, 0.8, 0.2, 0.68], None, [0.6, 0.8, 0.67, 0.1], [0.7, 0.7, 0.3, 0.9]])
    assert catch_up(record) == [CatchUp(2, 2, None), CatchUp(3, 2, 1)]
    assert catch_up(record, within=0.03) == [CatchUp(2, 2, 3), CatchUp(3, 2, 1)]  # the round without a test counts
    assert [one.rounds for one in catch_up(record, within=1)] == [1, 1]
    assert catch_up(late_run(before)) == []
    part = Record(record.folder, record.recipe, record.clients[3:], record.rounds, [])
    assert catch_up(part) == []  # a part without the others
    with pytest.raises(MaplError, match="within: got 2"):
        catch_up(record, within=2)


@pytest.mark.parametrize(
    ("rounds", "words"),
    [([], ""), ([1], "1 round (1 of 1)"), ([2, 5], "3.5 rounds (2 of 2)"), ([1, None, 3], "3 rounds (2 of 3)"),
     ([1, None], "not yet (1 of 2)")],
)  # fmt: skip
def test_catching_up_in_words(rounds, words):
    assert in_words(rounds) == words


@pytest.mark.usefixtures("coarse")
def test_comparisons_and_reports_say_how_fast_joiners_caught_up(tmp_path):
    records = [mapl.run(recipe("local", seed=s, network={**LATE, **HALF}), tmp_path / str(s)) for s in (0, 1)]
    (arm,) = compare(records)
    assert arm.joiners == [one.rounds for record in records for one in catch_up(record)]
    assert len(arm.joiners) == 4
    assert f"{arm.label}: {in_words(arm.joiners)}" in " ".join(notes([arm]))
    (row,) = rows_of([arm])
    assert (row["joiners"], row["caught_up"]) == (4, sum(r is not None for r in arm.joiners))
    page = write_report(records, tmp_path / "report").read_text()
    assert re.search(line_with("50 % of the clients", "last 2 clients", "round 3", "fresh models"), page)
    assert "joiners" not in rows_of(compare([mapl.run(small("local"), tmp_path / "plain")]))[0]


def test_letters_build_on_each_other_again_after_somebody_joined():
    compress = {"compress": {"kind": "top-k"}}
    joined = play(recipe("dfedavgm", network={**LATE, **compress}))
    there = play(recipe("dfedavgm", network=compress))
    size = [[line.bytes // line.messages for line in part.lines] for part in (joined, there)]
    assert size[0][2] == size[0][0]  # in full
    assert size[0][3] == pytest.approx(size[1][3], rel=0.1)
    assert size[0][1] < size[0][0] > size[0][3]
    assert not any(line.refused for line in joined.lines)
