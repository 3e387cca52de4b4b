"""A transport that treats every letter as a real network would: encoded, checked by its reader, decoded."""

from __future__ import annotations

from dataclasses import replace

import torch

from mapl.network.inbox import Inbox
from mapl.network.letter import Letter, decode, encode
from mapl.network.memory import MemoryPost
from mapl.network.transport import Mail


class EncodedPost:
    """A transport within one process that passes only bytes (`network.transport = "bytes"`).

    A letter that does not fit its reader's schema raises an error. Writer and reader run the same method, so its
    `letter` and `schema` disagree, which is a bug in the method.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """An inbox for every reader; see `Transport.exchange`."""
        sent = {sender: encode(letter) for sender, letter in mail.letters.items()}
        read: dict[int, Letter] = {}
        personal: dict[int, Letter] = {}
        checked: set[tuple[int, object]] = set()
        for reader, asked in mail.requests.items():
            if not len(asked):
                continue
            schema = mail.expects(reader)
            if reader in mail.personal:
                personal[reader] = self._on_device(decode(encode(mail.personal[reader]), schema))
            for sender in asked.tolist():
                # Readers with the same schema share the decoded letter.
                if sender in sent and (sender, schema.key) not in checked:
                    checked.add((sender, schema.key))
                    read[sender] = self._on_device(decode(sent[sender], replace(schema, sender=sender)))
        return MemoryPost().exchange(replace(mail, letters=read, personal=personal))

    def _on_device(self, letter: Letter) -> Letter:
        return replace(letter, tensors={name: tensor.to(self.device) for name, tensor in letter.tensors.items()})
