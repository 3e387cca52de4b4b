"""`mapl export`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mapl.cli.runs import JsonOption
from mapl.runs.export import export_run


class Format(StrEnum):
    """What a client's model is written as."""

    SAFETENSORS = "safetensors"
    TORCH_EXPORT = "torch-export"


class PixelType(StrEnum):
    """What an exported program takes."""

    UINT8 = "uint8"
    FLOAT32 = "float32"


def export_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.", metavar="RUN")],
    to: Annotated[Path, typer.Option(help="Folder that the models are written to.")],
    client: Annotated[list[int] | None, typer.Option(help="This client alone; may be repeated. Default: all.")] = None,
    format: Annotated[
        Format, typer.Option(help="Weights with their metadata, or a program that needs neither mapl nor your code.")
    ] = Format.SAFETENSORS,
    pixels: Annotated[PixelType, typer.Option(help="What a program takes: bytes, or floats in [0, 1].")] = (
        PixelType.UINT8
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace models that are there already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the clients' models to files, to use them elsewhere.

    Examples: [bold]mapl export runs/mine --to models[/bold] writes everybody's weights;
    [bold]mapl export runs/mine --to models --client 3 --format torch-export[/bold] writes a program that maps pixels to
    logits, for torch.export.load.
    """
    paths = export_run(folder, to, client, format.value, pixels=pixels.value, overwrite=overwrite, warn=_warn)
    if as_json:
        print(json.dumps([str(path) for path in paths]))
    else:
        for path in paths:
            print(f"exported: {path}")


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
