"""The ledger is exact, whatever the order and the number of its entries, and survives a checkpoint."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.network import Ledger, ledger

Round = list[tuple[int, int, int]]

rounds = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2**40)), max_size=8))


def record(book: Ledger, letters: Round) -> None:
    columns = np.array(letters, dtype=np.int64).reshape(-1, 3).T
    book.record(columns[0], columns[1], columns[2])


def table(book: Ledger) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in book.edges()), strict=True))


def counted(history: list[Round]) -> list[tuple[int, ...]]:
    messages: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for sender, receiver, size in (letter for letters in history for letter in letters):
        messages[sender, receiver] += 1
        sizes[sender, receiver] += size
    return [(*edge, messages[edge], sizes[edge]) for edge in sorted(messages)]


def check(book: Ledger, history: list[Round]) -> None:
    assert book.by_round == [(len(letters), sum(size for *_, size in letters)) for letters in history]
    assert book.messages == sum(map(len, history))
    assert book.bytes == sum(size for letters in history for *_, size in letters)
    assert table(book) == counted(history)


@settings(deadline=None)
@given(rounds, st.integers(1, 3))
def test_counts_are_exact(history: list[Round], repeats: int) -> None:
    book = Ledger()
    repeated = [letters for letters in history for _ in range(repeats)]
    for letters in repeated:
        record(book, letters)
    check(book, repeated)


def test_counts_are_exact_while_pages_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_ENTRIES", 20)
    generator = np.random.default_rng(0)
    history: list[Round] = [
        [(int(a), int(b), int(size)) for a, b, size in generator.integers(0, 12, (9, 3))] for _ in range(100)
    ]
    book = Ledger()
    for letters in history:
        record(book, letters)
    assert len(book._pages) < 30
    check(book, history)


def test_many_small_rounds_do_not_pile_up() -> None:
    book = Ledger()
    for round in range(1000):
        book.record([round % 2], [2], 5)
    assert len(book._pages) <= ledger._PAGES
    assert table(book) == [(0, 2, 500, 2500), (1, 2, 500, 2500)]


@settings(deadline=None)
@given(rounds, rounds)
def test_a_checkpoint_changes_nothing(before: list[Round], after: list[Round]) -> None:
    book = Ledger()
    for letters in before:
        record(book, letters)
    state = book.state()
    restored = Ledger.from_state({name: tensor.clone() for name, tensor in state.items()})
    assert restored.state().keys() == state.keys()
    for name, tensor in restored.state().items():
        assert tensor.dtype == torch.int64
        assert torch.equal(tensor, state[name])
    for letters in after:
        record(restored, letters)
    check(restored, before + after)


def test_a_state_does_not_change_with_the_ledger() -> None:
    book = Ledger()
    book.record([0, 1], [1, 0], [10, 20])
    state = book.state()
    restored = Ledger.from_state(state)
    book.record([0, 1], [1, 0], [10, 20])
    restored.record([0, 1], [1, 0], [10, 20])
    assert state["messages"].tolist() == [1, 1]
    assert state["rounds"].tolist() == [[2, 30]]
    assert table(book) == table(restored) == [(0, 1, 2, 20), (1, 0, 2, 40)]


@pytest.mark.parametrize(("clients", "rounds"), [(1, 3), (2, 1), (7, 4)])
def test_a_full_mesh_sends_m_times_m_minus_1_letters_a_round(clients: int, rounds: int) -> None:
    pairs = torch.tensor([(a, b) for a in range(clients) for b in range(clients) if a != b]).reshape(-1, 2).long()
    book = Ledger()
    for _ in range(rounds):
        book.record(pairs[:, 0], pairs[:, 1], 100)
    assert book.messages == clients * (clients - 1) * rounds
    assert book.bytes == 100 * book.messages
    assert all(messages == rounds for *_, messages, _ in table(book))


def test_the_caller_may_reuse_its_arrays() -> None:
    book = Ledger()
    senders, receivers, sizes = np.array([0, 1]), np.array([1, 0]), np.array([5, 5])
    book.record(senders, receivers, sizes)
    senders[:], receivers[:], sizes[:] = 3, 4, 1
    book.record(senders, receivers, sizes)
    assert table(book) == [(0, 1, 1, 5), (1, 0, 1, 5), (3, 4, 2, 2)]


def test_an_answer_belongs_to_the_round_that_it_answers() -> None:
    book = Ledger()
    book.record([0, 1], [2, 2], 10)
    book.record([2, 2], [0, 1], 30, same_round=True)
    book.record([0], [2], 10)
    assert book.by_round == [(4, 80), (1, 10)]


def test_columns_of_different_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="one list of letters"):
        Ledger().record([0, 1], [1], 5)
