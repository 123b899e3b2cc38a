"""What torchrun tells the processes that it starts. Torch is not imported here."""

from __future__ import annotations

import os


def under_torchrun() -> bool:
    """Whether torchrun has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and _number("WORLD_SIZE", 1) > 1


def restarted() -> bool:
    """Whether torchrun has started the processes again because one of them ended."""
    return under_torchrun() and _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def is_first_process() -> bool:
    """Whether this process writes the files and prints."""
    return not under_torchrun() or _number("RANK", 0) == 0


def processes_here() -> int:
    """The number of processes of the run on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1) if under_torchrun() else 1


def local_rank() -> int:
    """The number of this process on this machine, from 0 on."""
    return _number("LOCAL_RANK", 0) if under_torchrun() else 0


def torchrun_command() -> list[str]:
    """The words that start as many processes again. With several machines, the address of one of them is left open."""
    if not under_torchrun():
        return ["lifelabel"]
    nodes = _number("GROUP_WORLD_SIZE", 1)
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:PORT"]
    machines = ["--nnodes", str(nodes), *meeting] if nodes > 1 else []
    return ["torchrun", "--nproc-per-node", str(processes_here()), *machines, "-m", "lifelabel"]


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default
