"""The command `lifelabel`, and `python -m lifelabel`."""

import atexit
import gc
import os
import signal


def main() -> None:
    """Run the command. While modules are imported, and when Python exits, Ctrl-C ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    atexit.register(gc.freeze)  # else Python collects the objects of torch when it exits: a second or more
    from lifelabel.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
