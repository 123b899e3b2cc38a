"""Memory that is returned to the system."""

import ctypes
import sys
from pathlib import Path

import pytest

from lifelabel.utils.memory import release_freed_memory

BLOCK, COUNT = 100_000, 400


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the resident memory here")
def test_freed_memory_below_a_block_in_use_is_released():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("the C library is not glibc")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(BLOCK) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking
        libc.free(block)
    before = resident()
    release_freed_memory()
    assert before - resident() > BLOCK * COUNT // 2
    libc.free(blocks[-1])
