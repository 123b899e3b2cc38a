"""The command `lifelabel`, and `python -m lifelabel`."""

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run the command. While modules are imported, and when Python exits, Ctrl-C ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from lifelabel.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
