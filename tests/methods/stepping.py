"""What the tests of methods share: a run that stops and goes on, and steps that must not wait for the GPU."""

import functools
import io
import math

import torch
from waiting import no_waiting

from lifelabel.methods import Batch


def calls_of(method, tasks, batches):
    """All that happens to a method in two tasks, one call at a time."""
    calls = []
    for task in range(2):
        learned = [functools.partial(method.observe, batch) for batch in batches(task)]
        calls += [functools.partial(method.begin_task, tasks[task]), *learned, method.end_task]
    return calls


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def assert_goes_on_to_the_bit(make, tasks, batches, stop):
    """A run that stops after `stop` calls, saved and loaded, ends as one that does not stop."""
    straight, fresh = make(), make()
    calls, calls_again, saved = calls_of(straight, tasks, batches), calls_of(fresh, tasks, batches), io.BytesIO()
    for call in calls[:stop]:
        call()
    torch.save((straight.state_dict(), torch.get_rng_state()), saved)
    for call in calls[stop:]:
        call()
    saved.seek(0)
    state, random_state = torch.load(saved, weights_only=True)
    fresh.load_state_dict(state)
    torch.set_rng_state(random_state)
    for call in calls_again[stop:]:
        call()
    assert same(fresh.state_dict(), straight.state_dict())


def assert_never_waits_for_the_gpu(method, tasks, batches):
    """The second step of every task, with a method on the GPU."""
    for task, classes in enumerate(tasks):
        method.begin_task(classes)
        moved = [Batch(b.images.cuda(), b.labels.cuda(), b.known.cuda(), classes) for b in batches(task)]
        method.observe(moved[0])
        with no_waiting():
            parts = method.observe(moved[1])
        assert all(math.isfinite(part.item()) for part in parts.values())
        method.end_task()
