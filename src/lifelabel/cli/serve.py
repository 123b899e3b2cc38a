"""`lifelabel serve`: a web page and a JSON API for a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import err, print_line
from lifelabel.cli.flags import Plugins, load_plugins
from lifelabel.errors import UserError
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.processes import num_cores


@command(
    "serve",
    """
lifelabel serve runs/a
lifelabel serve runs/a --port 0 --device cpu
curl -F files=@photo.jpg http://127.0.0.1:8000/predict
""",
)
def _serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of a model.")],
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="The address to listen on. With another one than this, other machines can connect.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name of this server, such as that of a proxy. Repeatable."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    max_bytes: Annotated[int, typer.Option(help="Bytes of a request.")] = 64 << 20,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 50_000_000,
    max_images: Annotated[int, typer.Option(help="Images of a request.")] = 32,
    max_requests: Annotated[int, typer.Option(help="Requests with images at a time.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds of a request, with its upload.")] = 30,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images [default: the number of cores, 2 to 8].")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Serve a finished model: a web page to label images in the browser, and a JSON API. Ctrl-C ends it."""
    load_plugins(plugin)
    try:
        from lifelabel.serve.requests import Limits
        from lifelabel.serve.server import is_loopback, serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'lifelabel[serve]'") from None
    decoders = min(8, max(2, num_cores())) if workers is None else workers
    limits = Limits(max_bytes, max_pixels, max_images, max_requests, timeout, decoders)
    keep_freed_memory()
    if not is_loopback(host):
        print_line(f"warning: {host} can be reached from other machines, and there is no authentication", "yellow", err)
    serve(run, host, port, device, limits, allow_host or (), lambda at: print_line(f"serving {run} at {at}"))
    print_line("stopped")
