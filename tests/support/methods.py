"""Shared by the tests of methods: runs that stop and resume, and steps that must not wait for the GPU."""

import functools
import io
import math

import torch

from lifelabel.methods import Batch
from support.no_waiting import no_waiting


def list_calls(method, tasks, batches):
    """All calls of a method in two tasks, in order."""
    calls = []
    for task in range(2):
        steps = [functools.partial(method.observe, batch) for batch in batches(task)]
        calls += [functools.partial(method.begin_task, tasks[task]), *steps, method.end_task]
    return calls


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def assert_resumes_exactly(make, tasks, batches, stop):
    """A run that is saved after `stop` calls and loaded again ends with the same bits as one that does not stop."""
    straight, resumed = make(), make()
    calls, calls_again = list_calls(straight, tasks, batches), list_calls(resumed, tasks, batches)
    saved = io.BytesIO()
    for call in calls[:stop]:
        call()
    torch.save((straight.state_dict(), torch.get_rng_state()), saved)
    for call in calls[stop:]:
        call()
    saved.seek(0)
    state, random_state = torch.load(saved, weights_only=True)
    resumed.load_state_dict(state)
    torch.set_rng_state(random_state)
    for call in calls_again[stop:]:
        call()
    assert same(resumed.state_dict(), straight.state_dict())


def assert_no_host_sync(method, tasks, batches):
    """The second step of every task does not wait for the GPU."""
    for task, classes in enumerate(tasks):
        method.begin_task(classes)
        moved = [Batch(b.images.cuda(), b.labels.cuda(), b.known.cuda(), classes) for b in batches(task)]
        method.observe(moved[0])
        with no_waiting():
            parts = method.observe(moved[1])
        assert all(math.isfinite(part.item()) for part in parts.values())
        method.end_task()
