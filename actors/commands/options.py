"""Options that several verbs share. None = not given: then the variable, the settings file or the default decides."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL = "ws://127.0.0.1:8787"

Url = Annotated[str, typer.Option("--url", envvar="PERDURE_URL", help="The server to speak to.", show_envvar=False)]
Token = Annotated[
    str | None, typer.Option("--token", envvar="PERDURE_TOKEN", help="Credential for that server.", show_envvar=False)
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The server's data folder.  [default: ./perdure-data]"),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR|URL",
        help="The checkpoint store, where conversations survive.  [default: DATA/store]",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file (TOML); flags and PERDURE_* variables win over it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
