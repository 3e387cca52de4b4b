"""The in-memory post hands every client what it asked for and somebody wrote, in the order of the senders."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import conftest
from conftest import line_with
from mapl.errors import MaplError
from mapl.network import Inbox, Ledger, Letter, Mail, MemoryPost, Topology, TopologySettings, nbytes

RUN = "0123456789abcdef"
BIG, SMALL = "a" * 16, "b" * 16


def letter(sender: int, **tensors: Tensor) -> Letter:
    """A letter whose head tells its sender. Odd senders have a larger backbone."""
    backbone = torch.full((3 + 2 * (sender % 2),), float(sender))
    contents = {"head": torch.full((2, 3), float(sender)), "backbone": backbone, **tensors}
    return Letter(RUN, sender, 0, 10 * sender, BIG if sender % 2 else SMALL, contents)


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def deliver(letters: list[Letter], requests: dict[int, Tensor]) -> dict[int, Inbox]:
    return conftest.deliver({one.sender: one for one in letters}, requests)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[int], dict[int, list[int]]]:
    writers = draw(st.lists(st.integers(0, 9), unique=True))
    readers = draw(st.lists(st.integers(0, 9), unique=True))
    # Some of those who are asked have written nothing.
    return writers, {reader: [w for w in range(12) if w != reader and draw(st.booleans())] for reader in readers}


@settings(deadline=None)
@given(exchanges(), st.randoms(use_true_random=False))
def test_everyone_gets_what_it_asked_for_whatever_the_order(
    exchange: tuple[list[int], dict[int, list[int]]], chance: random.Random
) -> None:
    writers, wanted = exchange
    for _ in range(2):
        chance.shuffle(writers)
        requests = list(wanted.items())
        chance.shuffle(requests)
        for _, senders in requests:
            chance.shuffle(senders)
        inboxes = deliver([letter(w) for w in writers], {r: ids(*s) for r, s in requests})
        assert inboxes.keys() == wanted.keys()
        for reader, senders in wanted.items():
            inbox, expected = inboxes[reader], sorted(set(senders) & set(writers))
            assert len(inbox) == len(expected)
            assert inbox.senders.tolist() == expected
            assert inbox.samples.tolist() == [10 * s for s in expected]
            assert inbox.architectures == [BIG if s % 2 else SMALL for s in expected]
            assert inbox.bytes == sum(nbytes(letter(s)) for s in expected)
            if expected:
                assert torch.equal(inbox.tensor("head"), torch.stack([letter(s).tensors["head"] for s in expected]))


def test_a_full_mesh_is_counted_as_m_times_m_minus_1_letters_a_round() -> None:
    clients, rounds = 6, 4
    topology = Topology(TopologySettings(), clients, seed=0)
    ledger = Ledger()
    for round in range(rounds):
        requests = {client: topology.neighbours(round, client) for client in range(clients)}
        ledger.record(deliver([letter(client) for client in range(clients)], requests).values())
    assert ledger.messages == clients * (clients - 1) * rounds
    assert ledger.bytes == rounds * (clients - 1) * sum(nbytes(letter(client)) for client in range(clients))


def test_letters_are_copied_once_and_not_for_each_receiver() -> None:
    letters = [letter(sender) for sender in range(5)]
    inboxes = deliver(letters, {9: ids(0, 1, 2), 8: ids(1, 2, 3), 7: ids(0, 3)})
    letters[1].tensors["head"].fill_(-1)  # the sender learns on
    assert inboxes[9].tensor("head")[:, 0, 0].tolist() == [0, 1, 2]
    stacks = {inbox.rows("head")[0].data_ptr() for inbox in inboxes.values()}
    assert len(stacks) == 1
    assert inboxes[9].tensor("head").data_ptr() in stacks  # neighbouring rows are a view
    assert inboxes[7].rows("head")[1].tolist() == [0, 3]
    assert inboxes[7].tensor("head")[:, 0, 0].tolist() == [0, 3]


def test_letters_carry_no_gradient() -> None:
    weight = torch.zeros(2, requires_grad=True)
    assert not deliver([letter(0, weight=weight)], {1: ids(0)})[1].tensor("weight").requires_grad


def test_a_selection_is_an_inbox() -> None:
    inbox = deliver([letter(sender) for sender in range(6)], {6: ids(0, 1, 3, 4, 5)})[6]
    odd = inbox.select(torch.tensor([a == BIG for a in inbox.architectures]))
    assert odd.senders.tolist() == [1, 3, 5]
    assert torch.equal(odd.tensor("backbone"), ids(1, 3, 5)[:, None].expand(3, 5).float())
    assert odd.tensor("head")[:, 0, 0].tolist() == [1, 3, 5]
    assert odd.select(ids(2, 0)).senders.tolist() == [1, 5]
    assert odd.select(torch.zeros(3, dtype=torch.bool)).senders.tolist() == []
    with pytest.raises(MaplError, match=line_with("mask", "(2,)", "3 letters")):
        odd.select(torch.tensor([True, False]))


def test_different_shapes_of_one_name_are_selected_first() -> None:
    inbox = deliver([letter(0), letter(1)], {2: ids(0, 1)})[2]
    with pytest.raises(MaplError, match=r"'backbone'.*\[3\] float32, \[5\] float32.*select"):
        inbox.tensor("backbone")
    mixed = deliver([letter(0, x=torch.zeros(1)), letter(1, x=torch.zeros(1).double())], {2: ids(0, 1)})[2]
    with pytest.raises(MaplError, match=r"float32, \[1\] float64.*select"):
        mixed.tensor("x")


def test_a_tensor_that_a_letter_does_not_have() -> None:
    inbox = deliver([letter(0, extra=torch.ones(1)), letter(1)], {2: ids(0, 1)})[2]
    with pytest.raises(MaplError, match="letter of client 1 has no tensor 'extra'; it has head, backbone"):
        inbox.tensor("extra")
    assert inbox.select(ids(0)).tensor("extra").tolist() == [[1]]
    with pytest.raises(MaplError, match="letter of client 0 has no tensor 'nothing'"):
        inbox.tensor("nothing")


def test_an_empty_inbox() -> None:
    for letters in ([], [letter(0)]):
        inbox = deliver(letters, {1: ids()})[1]
        assert len(inbox) == 0
        assert inbox.senders.tolist() == inbox.samples.tolist() == inbox.architectures == []
        assert inbox.tensor("head").shape == (0,)
        with pytest.raises(MaplError, match="empty inbox"):
            inbox.rows("head")
    assert deliver([letter(0)], {}) == {}


def test_a_letter_that_nobody_wrote_is_left_out() -> None:
    inboxes = deliver([letter(sender) for sender in range(3)], {5: ids(0, 3), 6: ids(9), 7: ids(1, 2)})
    assert [inboxes[reader].senders.tolist() for reader in (5, 6, 7)] == [[0], [], [1, 2]]
    assert deliver([], {0: ids(1)})[0].senders.tolist() == []


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ({1: ids(0, 1)}, "client 1 asks for its own letter"),
        ({5: ids(1, 0, 1)}, "client 5 asks twice for the letter of client 1"),
    ],
)
def test_requests_that_are_mistakes(requests: dict[int, Tensor], words: str) -> None:
    with pytest.raises(MaplError, match=words):
        deliver([letter(sender) for sender in range(3)], requests)


def test_nobody_posts_in_the_name_of_another() -> None:
    mail = Mail(0, "letters", {1: letter(2), 3: letter(3)}, {5: ids(1, 3), 6: ids(3)}, pytest.fail)
    with pytest.warns(UserWarning, match=line_with("client 1", "sender", "2")):
        inboxes = MemoryPost().exchange(mail)
    assert [inboxes[reader].senders.tolist() for reader in (5, 6)] == [[3], [3]]
    assert mail.refused.by_sender == {1: {"sender": 1}}


def test_a_personal_letter_goes_to_its_reader_and_the_common_one_to_the_others() -> None:
    """Client 9 has something to say to 0 alone; 2 asks for nobody who wrote."""
    personal = {0: letter(9, head=torch.full((2, 3), -1.0))}
    requests = {0: ids(1, 9), 1: ids(9), 2: ids(8)}
    post = MemoryPost()
    inboxes = post.exchange(Mail(0, "replies", {1: letter(1), 9: letter(9)}, requests, pytest.fail, personal))
    assert [inboxes[reader].senders.tolist() for reader in (0, 1, 2)] == [[1, 9], [9], []]
    assert [inboxes[reader].tensor("head")[:, 0, 0].tolist() for reader in (0, 1)] == [[1, -1], [9]]
    assert inboxes[0].delivered_with(inboxes[1])
    alone = post.exchange(Mail(0, "replies", {}, requests, pytest.fail, personal))
    assert [alone[reader].senders.tolist() for reader in (0, 1, 2)] == [[9], [], []]


def test_inboxes_of_one_delivery_are_read_end_to_end() -> None:
    letters = [letter(sender) for sender in (0, 2, 4, 6)]
    inboxes = deliver(letters, {0: ids(2, 4), 2: ids(0), 6: ids(0, 2, 4), 9: ids(6)})
    joined = Inbox.join([inboxes[0], inboxes[6], inboxes[9]])
    assert joined.senders.tolist() == [2, 4, 0, 2, 4, 6]
    assert joined.samples.tolist() == [20, 40, 0, 20, 40, 60]
    stack, rows = joined.rows("head")
    assert stack[rows][:, 0, 0].tolist() == [2, 4, 0, 2, 4, 6]
    heads = [letters[0].tensors["head"], letters[3].tensors["head"], torch.zeros(2, 3), torch.zeros(2, 3)]
    own = joined.own_rows("head", ids(0, 6, 9, 1), heads)
    assert own[2:].tolist() == [-1, -1]
    assert stack[own[:2]][:, 0, 0].tolist() == [0, 6]
    assert inboxes[0].delivered_with(inboxes[2])
    elsewhere = deliver(letters, {0: ids(2)})[0]
    assert not inboxes[0].delivered_with(elsewhere)
    with pytest.raises(MaplError, match="one delivery"):
        Inbox.join([inboxes[0], elsewhere])


def test_a_client_whose_tensor_has_another_shape_has_no_row_in_the_stack() -> None:
    letters = [letter(sender) for sender in (0, 1, 2)]
    inboxes = deliver(letters, {1: ids(0, 2), 2: ids(0)})
    backbones = [one.tensors["backbone"] for one in letters]
    assert inboxes[1].own_rows("backbone", ids(0, 1, 2), backbones).tolist() == [0, -1, 1]
    copies = [backbone.clone() for backbone in backbones]
    assert inboxes[1].own_rows("backbone", ids(0, 1, 2), copies).tolist() == [-1, -1, -1]


def test_no_tensor_gets_the_address_of_a_letters_while_somebody_reads_it():
    """A client finds its own tensors by address. A new tensor at an old address would be taken for one of them."""
    written = letter(3)
    head = weakref.ref(written.tensors["head"])
    inbox = Inbox.of([written])
    del written
    gc.collect()
    assert head() is not None
    del inbox
    gc.collect()
    assert head() is None
