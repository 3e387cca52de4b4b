"""PEER.toml: where a peer's identity and data are, how others reach it, and how long it waits for them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mapl.errors import MaplError

VERSION = 1


def _check_address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"it should be HOST:PORT, such as 192.168.1.10:7447, not {text!r}")
    return text


Address = Annotated[str, AfterValidator(_check_address)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSection(Section):
    """The peer's own data. Without it, the peer takes its share of the data that the network's recipe names."""

    name: str = Field("", description="'npz' or 'folder'; empty: your share of the recipe's data.")
    path: Path | None = Field(None, description="The file or folder with your data.")
    backbone: str = Field("", description="Your architecture; empty: the one that the recipe deals to you.")


class NetSection(Section):
    """How this peer and others reach each other."""

    listen: Address = Field("0.0.0.0:7447", description="Where this peer listens for others (UDP).")
    connect: tuple[Address, ...] = Field((), description="Peers to connect to. One that runs is enough with gossip.")
    discover: Literal["addresses", "gossip", "lan"] = Field(
        "gossip",
        description="How further peers are found: 'addresses': not at all; 'gossip': through the peers that this one "
        "is connected to; 'lan': also by multicast on the local network.",
    )
    lease: float = Field(3.0, gt=0.2, description="Seconds until a silent connection counts as broken.")
    silent_rounds: int = Field(
        3, ge=1, description="After this many rounds without any letter, the connection is opened anew."
    )


class WaitSection(Section):
    """How long a round waits for letters."""

    mode: Literal["sync", "async"] = Field(
        "sync", description="'sync': wait for letters until the deadline; 'async': never wait, read what has arrived."
    )
    patience: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto",
        description="Seconds that a round waits for letters; 'auto': several times as long as recent rounds needed.",
    )
    first: float = Field(60.0, gt=0, description="Seconds that the first exchange waits for the network to assemble.")
    linger: float = Field(60.0, ge=0, description="Seconds that a peer that is done goes on answering others, at most.")
    staleness: int = Field(
        1, ge=0, description="A letter of up to this many rounds ago stands in for one that did not arrive."
    )


class PeerSettings(Section):
    """One peer."""

    version: int = Field(VERSION, description="Version of this file.")
    identity: Path = Field(description="The identity folder (mapl identity join).")
    folder: Path = Field(Path("state"), description="Where the peer keeps its run, its letters and its status.")
    data: DataSection = Field(DataSection(), description="Your data.")
    net: NetSection = Field(NetSection(), description="Addresses.")
    wait: WaitSection = Field(WaitSection(), description="Waiting.")
    metrics: int | None = Field(
        None, ge=1, le=65535, description="Port on 127.0.0.1 for Prometheus metrics; leave out: none."
    )
    threads: int | None = Field(None, ge=1, description="Threads for training; leave out: the recipe's.")

    @property
    def run(self) -> Path:
        """The run folder of the client that the peer trains."""
        return self.folder / "run"


def read_settings(path: Path) -> PeerSettings:
    """The settings in a PEER.toml. Relative paths in it are relative to the file."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MaplError(f"there is no file {str(path)!r}; mapl peer init writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MaplError(f"{str(path)!r} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise MaplError(f"{str(path)!r} is not TOML: {error}") from error
    version = tree.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise MaplError(f"{str(path)!r} was written by a newer mapl: version {version}; this one reads up to {VERSION}")
    return settings_of(tree, path)


def settings_of(tree: Mapping[str, Any], path: Path) -> PeerSettings:
    """The settings in the tree of a PEER.toml that stands, or will stand, at `path`."""
    try:
        settings = PeerSettings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise MaplError(f"{str(path)!r}: {key}: {first['msg'].removeprefix('Value error, ')}") from None
    return _anchored(settings, path.parent)


def to_toml(tree: Mapping[str, Any]) -> str:
    """The text of a PEER.toml."""
    plain = [f"{key} = {_toml_text(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    tables = [(key, value) for key, value in tree.items() if isinstance(value, dict)]
    for key, table in tables:
        plain += ["", f"[{key}]", *(f"{name} = {_toml_text(value)}" for name, value in table.items())]
    return "\n".join(plain) + "\n"


def _toml_text(value: Any) -> str:
    """A text, number or list as TOML. JSON's are TOML's too, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _anchored(settings: PeerSettings, base: Path) -> PeerSettings:
    """The settings with paths that do not depend on the current folder."""
    data = settings.data
    if data.path is not None:
        data = data.model_copy(update={"path": base / data.path.expanduser()})
    update: dict[str, Any] = {
        "identity": base / settings.identity.expanduser(),
        "folder": base / settings.folder.expanduser(),
        "data": data,
    }
    return settings.model_copy(update=update)
