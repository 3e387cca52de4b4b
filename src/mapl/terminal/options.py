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
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Import and run the code from outside mapl that a recipe in a file names."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
