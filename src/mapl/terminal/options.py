"""Options that commands of more than one room take."""

from __future__ import annotations

from typing import Annotated

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change any setting, e.g. --set method.graph.beta=0.2. Repeatable.", metavar="KEY=VALUE"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
