"""Letters, topologies, the ledger of what was sent, and the transports that carry letters."""

from mapl.network.compress import CompressSettings, find_compressor
from mapl.network.compressor import Compressor, float_names
from mapl.network.encoded import EncodedPost
from mapl.network.inbox import Inbox
from mapl.network.ledger import Ledger
from mapl.network.letter import VERSION, Letter, Schema, Spec, decode, encode, fingerprint, header_bytes, nbytes, specs
from mapl.network.memory import MemoryPost
from mapl.network.topology import TOPOLOGIES, Topology, TopologySettings
from mapl.network.transport import Mail, Transport

__all__ = [
    "TOPOLOGIES",
    "VERSION",
    "CompressSettings",
    "Compressor",
    "EncodedPost",
    "Inbox",
    "Ledger",
    "Letter",
    "Mail",
    "MemoryPost",
    "Schema",
    "Spec",
    "Topology",
    "TopologySettings",
    "Transport",
    "decode",
    "encode",
    "find_compressor",
    "fingerprint",
    "float_names",
    "header_bytes",
    "nbytes",
    "specs",
]
