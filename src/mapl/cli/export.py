"""`mapl export`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mapl.terminal.messages import say
from mapl.terminal.options import JsonOption, TrustOption


class Format(StrEnum):
    """The file format of a client's model."""

    SAFETENSORS = "safetensors"
    TORCH_EXPORT = "torch-export"


class PixelType(StrEnum):
    """The input of an exported program."""

    UINT8 = "uint8"
    FLOAT32 = "float32"


def export_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.", metavar="RUN")],
    to: Annotated[Path, typer.Option(help="Folder to write the models to.")],
    client: Annotated[list[int] | None, typer.Option(help="Export only this client. Repeatable.")] = None,
    format: Annotated[
        Format, typer.Option(help="Weights with metadata, or a program that runs without mapl and without your code.")
    ] = Format.SAFETENSORS,
    pixels: Annotated[PixelType, typer.Option(help="The input of a program: bytes, or floats in 0 to 1.")] = (
        PixelType.UINT8
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the clients' trained models to files, to use them elsewhere.

    [bold]mapl export runs/mine --to models[/bold]
        the weights of all clients
    [bold]mapl export runs/mine --to models --client 3 --format torch-export[/bold]
        client 3 as a program from pixels to logits, for torch.export.load
    """
    from mapl.runs.export import export_run

    paths = export_run(folder, to, client, format.value, pixels=pixels.value, overwrite=overwrite, trust=trust)
    if as_json:
        print(json.dumps([str(path) for path in paths]))
    else:
        for path in paths:
            say(f"exported: {path}")
