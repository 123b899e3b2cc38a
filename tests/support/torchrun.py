"""Several processes of one run, as torchrun starts them, without torchrun itself."""

import os
import socket
import subprocess

from support import command_server


def start(processes, *args, **more):
    """`torchrun --nproc-per-node PROCESSES -m lifelabel ARGS`: the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        command_server.start(
            *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            env={
                **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none",
                "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "RANK": str(rank),
                "LOCAL_RANK": str(rank), **more,
            },
        )
        for rank in range(processes)
    ]  # fmt: skip


def run(processes, *args, **more):
    """Run them to their end: the exit codes, and the output and errors of the first one."""
    started = start(processes, *args, **more)
    outputs = [process.communicate(timeout=300) for process in started]
    return [process.returncode for process in started], outputs
