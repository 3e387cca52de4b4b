"""Letters, who can reach whom, what was sent, and the post that carries letters within one process."""

from mapl.network.ledger import Ledger
from mapl.network.letter import VERSION, Letter, Schema, decode, encode, fingerprint, header_bytes, nbytes
from mapl.network.post import Inbox, Post
from mapl.network.topology import TOPOLOGIES, Topology, TopologySettings

__all__ = [
    "TOPOLOGIES",
    "VERSION",
    "Inbox",
    "Ledger",
    "Letter",
    "Post",
    "Schema",
    "Topology",
    "TopologySettings",
    "decode",
    "encode",
    "fingerprint",
    "header_bytes",
    "nbytes",
]
