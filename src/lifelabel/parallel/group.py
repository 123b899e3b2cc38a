"""The processes of one run, started by torchrun, and what they send each other."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lifelabel.errors import OtherProcess, UserError
from lifelabel.parallel.torchrun import processes_here, restarted, under_torchrun

_T = TypeVar("_T")
_KEYS = "lifelabel"
"""The first part of the names of keys in the store of torchrun."""
_POLL_SECONDS = 0.02
_TIMEOUT = datetime.timedelta(hours=2)
"""The first process may build a large stream, or judge many scores, while the others wait."""


class Group:
    """The processes of a run. With one process nothing is divided and nothing is sent.

    >>> ALONE.rows(5), ALONE.share(lambda: 3)
    (slice(0, 5, None), 3)
    """

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.divides = size > 1
        """Whether the passes of the network are divided among the processes now: see `lifelabel.parallel.passes`."""

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return not self.rank

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which this process computes all rows itself, and the others need not take part."""
        before, self.divides = self.divides, False
        try:
            yield
        finally:
            self.divides = before

    def rows(self, count: int, rank: int | None = None) -> slice:
        """The rows of a process, of this one by default: consecutive, and the same number for all, or one more."""
        rank = self.rank if rank is None else rank
        return slice(count * rank // self.size, count * (rank + 1) // self.size)

    def gather_rows(self, own: Tensor, count: int) -> Tensor:
        """The rows of all processes (`count` in all), each divided by `rows`."""
        largest = math.ceil(count / self.size)
        padded = own.new_zeros(largest, *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        sizes = [len(range(count)[self.rows(count, rank)]) for rank in range(self.size)]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @torch.no_grad()
    def average(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The means of gradients over the processes."""
        if self.size == 1:
            return list(gradients)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    def share(self, make: Callable[[], _T]) -> _T:
        """The result of `make` in the first process, which calls it alone.

        Its error is raised there. The others raise `OtherProcess` then.
        """
        if not self.divides:
            return make()
        answer: list[Any] = [False, None]
        failure: BaseException | None = None
        if self.first:
            try:
                with self.alone():
                    answer = [True, make()]
            except BaseException as error:
                failure = error
        dist.broadcast_object_list(answer)
        if failure:
            raise failure
        if not answer[0]:
            raise OtherProcess("the first process of the run has failed, and reports why")
        return answer[1]

    def collect(self, value: _T) -> list[_T]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def to_first(self, value: _T) -> list[_T] | None:
        """The values of all processes in the first one, None in the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(value, values)
        return values

    def gather_bytes(self, own: np.ndarray) -> np.ndarray:
        """The bytes (n, uint8, in host memory) of each process (processes x n)."""
        parts = torch.empty(self.size, len(own), dtype=torch.uint8)
        dist.all_gather(list(parts.unbind()), torch.from_numpy(own))
        return parts.numpy()


ALONE = Group()
"""The group of a run that is not started by torchrun."""


@contextlib.contextmanager
def join_group() -> Iterator[Group]:
    """The group of this process: one that exists, that of torchrun, or `ALONE`."""
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size())
        return
    if not under_torchrun():
        yield ALONE
        return
    # NCCL refuses two processes on one GPU
    nccl = dist.is_nccl_available() and processes_here() <= torch.cuda.device_count()
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=_TIMEOUT, **_meeting_point())
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"the processes of torchrun cannot reach each other: {reason}") from None
    group = Group(dist.get_rank(), dist.get_world_size())
    try:
        yield group
    except UserError as error:
        if not group.first:
            error.args = (f"process {group.rank}: {error}",)
        raise
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise OtherProcess(f"another process of the run has ended ({str(error).splitlines()[0]})") from None
        raise
    finally:
        dist.destroy_process_group()


def _meeting_point() -> dict[str, Any]:
    """Where the processes find each other. By default this is what the variables of torchrun name.

    torchrun keeps one store for all its attempts, and processes that are started again would find the addresses of the
    attempt before in it. The machines do not count the attempts alike. So the first process chooses new keys for each
    attempt, and tells them to every process that asks for them now.
    """
    store = _agent_store()
    if store is None:
        return {}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = uuid.uuid4().hex
    if rank:
        store.set(f"{_KEYS}/asks/{rank}", own)
        attempt = store.get(f"{_KEYS}/answer/{own}").decode()  # waits for it
        store.add(f"{_KEYS}/{attempt}/here", 1)
    else:
        attempt = own
        while store.add(f"{_KEYS}/{attempt}/here", 0) < size - 1:
            for other in range(1, size):
                if store.check([f"{_KEYS}/asks/{other}"]):  # an answer to a process that has ended does no harm
                    store.set(f"{_KEYS}/answer/{store.get(f'{_KEYS}/asks/{other}').decode()}", attempt)
            time.sleep(_POLL_SECONDS)
    return {"store": dist.PrefixStore(f"{_KEYS}/{attempt}", store), "rank": rank, "world_size": size}


def _agent_store() -> dist.Store | None:
    """The store of torchrun, which lasts for all its attempts; None if the processes have another one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, timeout=_TIMEOUT)


def note_begin(folder: Path) -> None:
    """Note for later attempts of torchrun that this command has begun the run in `folder`."""
    if under_torchrun() and (store := _agent_store()):
        store.set(f"{_KEYS}/begun", str(folder.resolve()))


def has_begun(folder: Path) -> bool:
    """Whether this command has begun the run in `folder` in an earlier attempt of torchrun."""
    if not under_torchrun():
        return False
    store = _agent_store()
    if store is None:
        return restarted()
    return store.check([f"{_KEYS}/begun"]) and store.get(f"{_KEYS}/begun").decode() == str(folder.resolve())
