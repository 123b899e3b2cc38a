"""`lifelabel verify`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import progress_bar, stream_settings
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import FinishedRunArgument, Inference, Json, Plugins, load_plugins

if TYPE_CHECKING:
    from lifelabel.engine.verification import Check


@command(
    "verify",
    """
lifelabel verify runs/mine
lifelabel verify runs/mine --root /data/photos  # the images have moved
lifelabel verify runs/mine --no-score --json
""",
)
def _verify(
    run: FinishedRunArgument,
    inference: Inference,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the images, if they have moved.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="stream.NAME=PATH", help="Another path of the stream, such as stream.file."),
    ] = None,
    no_score: Annotated[bool, typer.Option("--no-score", help="Do not score the test images again.")] = False,
    as_json: Json = False,
    plugin: Plugins = None,
) -> None:
    """Verify a finished run: digests, configuration, stream and history, and its test images scored again.

    It prints one line per check. The exit code is 1 if a check fails, otherwise 0. Nothing is changed.
    """
    load_plugins(plugin)
    from lifelabel.engine.verification import verify
    from lifelabel.utils.memory import keep_freed_memory

    keep_freed_memory()
    with progress_bar("scoring images") as progress:
        found = verify(
            run, stream_settings(set_), root=root, score=not no_score, **inference.arguments(),
            progress=progress, on_check=None if as_json else _print,
        )  # fmt: skip
    if as_json:
        print(json.dumps({"ok": found.ok, "checks": list(map(dataclasses.asdict, found.checks))}, indent=1))
    if not found.ok:
        raise typer.Exit(1)


def _print(check: Check) -> None:
    print_line(f"{check.state:<11} {check.name}: {check.found}", "red" if check.state == "FAILED" else None)
