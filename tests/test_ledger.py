"""The ledger counts the letters that were read and what they weigh, whatever the order, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import deliver
from mapl.network import Inbox, Ledger, Letter, encode

exchanges = st.lists(st.dictionaries(st.integers(0, 4), st.sets(st.integers(5, 9))), max_size=6)
"""Of several exchanges, who reads whom."""


def letter(sender: int) -> Letter:
    """No two senders write letters of one size."""
    return Letter("0" * 16, sender, 0, 1, "", {"head": torch.zeros(sender)})


@given(exchanges, st.sets(st.integers(5, 9)))
def test_counts_are_exact(history: list[dict[int, set[int]]], writers: set[int]) -> None:
    """Against the letters themselves, encoded one by one; a letter that nobody wrote is not counted."""
    letters = {sender: letter(sender) for sender in writers}
    ledger, messages, size = Ledger(), 0, 0
    for wanted in history:
        requests = {reader: torch.tensor(sorted(senders), dtype=torch.long) for reader, senders in wanted.items()}
        ledger.record(deliver(letters, requests).values())
        read = [encode(letters[sender]) for senders in wanted.values() for sender in senders & writers]
        messages, size = messages + len(read), size + sum(map(len, read))
        assert ledger == Ledger(messages, size)


def test_a_selection_counts_what_it_selects() -> None:
    inbox = deliver({sender: letter(sender) for sender in (1, 2, 3)}, {0: torch.tensor([1, 2, 3])})[0]
    ledger = Ledger()
    ledger.record([inbox.select(torch.tensor([0, 2])), Inbox.of([])])
    assert ledger == Ledger(2, len(encode(letter(1))) + len(encode(letter(3))))


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_a_full_mesh_sends_m_times_m_minus_1_letters(clients: int) -> None:
    everybody = torch.arange(clients)
    ledger = Ledger()
    ledger.record(
        deliver({i: letter(i) for i in range(clients)}, {i: everybody[everybody != i] for i in range(clients)}).values()
    )
    assert ledger.messages == clients * (clients - 1)
    assert ledger.bytes == (clients - 1) * sum(len(encode(letter(i))) for i in range(clients))
