"""`lifelabel serve`: a web page and a JSON API for a trained model."""

from __future__ import annotations

from typing import Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import err, print_line
from lifelabel.cli.flags import Device, Plugins, RunArgument, load_plugins
from lifelabel.errors import UserError
from lifelabel.serve.limits import Limits
from lifelabel.utils.memory import keep_freed_memory


@command(
    "serve",
    """
lifelabel serve runs/a
lifelabel serve runs/a --port 0 --device cpu
curl -F files=@photo.jpg http://127.0.0.1:8000/predict
""",
)
def _serve(
    run: RunArgument,
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="The address to listen on. With another one than this, other machines can connect.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of this server, such as that of a proxy. Repeatable."),
    ] = None,
    device: Device = "auto",
    *,
    limits: Limits,
    plugin: Plugins = None,
) -> None:
    """Serve a finished model: a web page to label images in the browser, and a JSON API. Ctrl-C ends it."""
    load_plugins(plugin)
    try:
        from lifelabel.serve.server import is_loopback, serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'lifelabel[serve]'") from None
    keep_freed_memory()
    if not is_loopback(host):
        print_line(f"warning: {host} can be reached from other machines, and there is no authentication", "yellow", err)
    serve(run, host, port, device, limits, allow_host or (), lambda at: print_line(f"serving {run} at {at}"))
    print_line("stopped")
