"""A check that code does not wait for the GPU."""

import contextlib

import torch


@contextlib.contextmanager
def no_waiting():
    """A context in which every operation that waits for the GPU is an error. Earlier work is finished before it."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
