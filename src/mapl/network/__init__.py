"""Letters, topologies, the ledger of what was sent, and the transports that carry letters."""

from mapl.network.accountant import check_accountant, epsilon
from mapl.network.compress import CompressSettings, find_compressor
from mapl.network.compressor import Compressor, float_names
from mapl.network.encoded import EncodedPost
from mapl.network.explore import Choice, ExploreSettings, explore
from mapl.network.inbox import Inbox
from mapl.network.inspection import inspect
from mapl.network.ledger import Ledger
from mapl.network.letter import (
    MOST,
    Letter,
    LetterError,
    Schema,
    Spec,
    encode,
    fingerprint,
    header_bytes,
    nbytes,
    specs,
)
from mapl.network.memory import MemoryPost
from mapl.network.noise import Noise, NoiseSettings, find_noise
from mapl.network.participation import JoinersSettings, same_since, taking_part
from mapl.network.reading import decode
from mapl.network.topology import TOPOLOGIES, Topology, TopologySettings
from mapl.network.transport import THIS_ROUND, Mail, Rounds, Transport

__all__ = [
    "MOST",
    "THIS_ROUND",
    "TOPOLOGIES",
    "Choice",
    "CompressSettings",
    "Compressor",
    "EncodedPost",
    "ExploreSettings",
    "Inbox",
    "JoinersSettings",
    "Ledger",
    "Letter",
    "LetterError",
    "Mail",
    "MemoryPost",
    "Noise",
    "NoiseSettings",
    "Rounds",
    "Schema",
    "Spec",
    "Topology",
    "TopologySettings",
    "Transport",
    "check_accountant",
    "decode",
    "encode",
    "epsilon",
    "explore",
    "find_compressor",
    "find_noise",
    "fingerprint",
    "float_names",
    "header_bytes",
    "inspect",
    "nbytes",
    "same_since",
    "specs",
    "taking_part",
]
