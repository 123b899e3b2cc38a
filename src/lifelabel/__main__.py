"""The command `lifelabel`, and `python -m lifelabel`."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command. Outside of it, while modules are imported and when Python exits, Ctrl-C prints no traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lifelabel.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
