"""A transport that treats every letter as a real network would: encoded, checked by its reader, decoded."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mapl.network.inbox import Inbox
from mapl.network.letter import Letter, LetterError, Schema, encode
from mapl.network.memory import MemoryPost
from mapl.network.reading import decode
from mapl.network.transport import THIS_ROUND, Mail


class EncodedPost:
    """A transport within one process that passes only bytes (`network.transport = "bytes"`).

    A letter that cannot be encoded, or does not fit its reader's schema, is left out, counted, and explained once in a
    warning. Writer and reader run the same method, so this usually means that its `letter` and `schema` disagree.
    """

    rounds = THIS_ROUND

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """An inbox for every reader; see `Transport.exchange`."""
        sent = {sender: _encoded(letter) for sender, letter in mail.letters.items()}
        read: dict[int, Letter] = {}
        personal: dict[int, Letter] = {}
        requests: dict[int, Tensor] = {}
        decoded: dict[tuple[int, object], Letter | LetterError] = {}
        for reader, asked in mail.requests.items():
            requests[reader] = asked
            if not len(asked):
                continue
            schema, wrong = mail.expects(reader), []
            own = mail.personal.get(reader)
            for sender in asked.tolist():
                is_own = own is not None and own.sender == sender
                data = _encoded(own) if own is not None and is_own else sent.get(sender)
                if data is None:
                    continue
                # Readers with the same schema share the decoded letter.
                key = (sender, reader if is_own else schema.key)
                if key not in decoded:
                    decoded[key] = self._decoded(data, replace(schema, sender=sender))
                if isinstance(letter := decoded[key], LetterError):
                    wrong.append(sender)
                    mail.refused.add_error(sender, letter)
                    if isinstance(data, bytes):
                        mail.refused.unread.append(len(data))
                elif is_own:
                    personal[reader] = letter
                else:
                    read[sender] = letter
            if wrong:
                requests[reader] = asked[~torch.isin(asked, torch.tensor(wrong))]
        return MemoryPost().exchange(replace(mail, letters=read, personal=personal, requests=requests))

    def _decoded(self, data: bytes | LetterError, schema: Schema) -> Letter | LetterError:
        """The letter as its reader gets it, or what is wrong with it."""
        if isinstance(data, LetterError):
            return data
        try:
            letter = decode(data, schema)
        except LetterError as error:
            return error
        return replace(letter, tensors={name: tensor.to(self.device) for name, tensor in letter.tensors.items()})


def _encoded(letter: Letter) -> bytes | LetterError:
    try:
        return encode(letter)
    except LetterError as error:
        return error
