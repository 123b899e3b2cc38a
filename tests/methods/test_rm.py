"""RM: its uncertainty against a loop over copies, its choice by hand, and its perturbations by their properties."""

import numpy as np
import torch
from support.methods import TASKS, Float64Network, batch, images_of, make

from lifelabel.methods.rm import perturb, spread_evenly


def test_indices_are_spread_evenly():
    assert spread_evenly(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert spread_evenly(10, 4).tolist() == [0, 3, 6, 9]
    assert spread_evenly(7, 2).tolist() == [0, 6] and spread_evenly(4, 1).tolist() == [0]
    for size in range(1, 30):
        for count in range(1, size + 1):
            chosen = spread_evenly(size, count)
            assert chosen[0] == 0 and (count == 1 or chosen[-1] == size - 1)
            assert count < 3 or (np.ptp(np.diff(chosen)) <= 1 and np.diff(chosen).min() >= 1)


def learned(**options):
    """A method that has learned the images of one task, before the task ends."""
    method = make("rm", **options)
    method.begin_task(TASKS[0])
    for step in range(5):
        method.observe(batch(method, 0, step))
    return method


def test_a_task_ends_with_an_order_by_uncertainty():
    """u is 1 minus the mean probability of the class that an image serves, over perturbed copies of it."""
    method = learned(augment="flip", buffer_images=12, perturbations=3)
    items, serves, size = method.buffer.items, method.buffer.serves.tolist(), method.setting.batch_size
    network = Float64Network(method, frozen=True)
    changed, uncertainty = np.concatenate(method.buffer.changed()).tolist(), {}
    state = torch.get_rng_state()
    for start in range(0, len(changed), size):
        part = changed[start : start + size]
        for _ in range(3):
            copies = perturb(images_of([items[p] for p in part]).float())
            with torch.no_grad():
                probabilities = network.logits(copies).sigmoid()
            for row, position in enumerate(part):
                p = probabilities[row, serves[position]].item()
                uncertainty[position] = uncertainty.get(position, 1.0) - p / 3
    torch.set_rng_state(state)
    method.end_task()
    found = np.concatenate([method.buffer.members(served) for served in (0, 1)]).tolist()
    assert found == sorted(changed, key=lambda p: (serves[p], uncertainty[p])) and len(found) == 12 > size
    assert (method.buffer.keys < 0).all()


def test_a_new_task_keeps_images_from_the_most_certain_to_the_most_uncertain():
    method = learned(buffer_images=15)
    method.end_task()
    buffer = method.buffer
    assert buffer.counts.tolist() == [10, 5]
    kept = [buffer.items[p] for p in [*buffer.members(0)[[0, 4, 9]], *buffer.members(1)[[0, 2, 4]]]]
    method.begin_task(TASKS[1])
    assert buffer.counts.tolist() == [3, 3, 0, 0, 0]
    assert [buffer.items[p] for served in (0, 1) for p in buffer.members(served)] == kept
    method.observe(batch(method, 1, 0))
    method.end_task()  # the order of the old classes stays
    assert [buffer.items[p] for served in (0, 1) for p in buffer.members(served)] == kept


def test_perturbations_are_drawn_for_each_image_from_the_cpu_generator():
    torch.manual_seed(0)
    images = torch.randn(1, 3, 20, 24).repeat(5, 1, 1, 1)
    state = torch.get_rng_state()
    one = perturb(images)
    assert one.shape == images.shape and torch.unique(one.flatten(1), dim=0).shape[0] == 5
    torch.set_rng_state(state)
    assert torch.equal(perturb(images), one)


def test_perturbations_crop_mirror_shift_and_cut_out():
    """Images whose columns, or rows, rise from -1 to 1. Without the cut-out they stay straight lines."""
    torch.manual_seed(0)
    ramp = (torch.arange(50) + 0.5) / 25 - 1
    images = torch.cat(
        [ramp.expand(400, 1, 50, 50), ramp[:, None].expand(400, 1, 50, 50), torch.ones(400, 1, 50, 50)], 1
    )
    perturbed = perturb(images)
    cut = (perturbed == 0).all(1)
    sides = cut.any(1).sum(1), cut.any(2).sum(1)
    for side in sides:
        assert side.max() == 20 and side.min() >= 10  # its centre is in the image
    uncut = perturbed.masked_fill(cut[:, None], torch.nan)
    across, down = uncut[:, 0].nanmean(1), uncut[:, 1].nanmean(2)
    slopes = [(line[:, -3] - line[:, 2]) / (ramp[-3] - ramp[2]) for line in (across, down)]
    contrast = slopes[1] / slopes[0].abs()  # a square crop: the same scale in both directions
    torch.testing.assert_close(contrast, torch.ones(400), rtol=0.05, atol=0)
    assert 150 < (slopes[0] < 0).sum() < 250 and (slopes[1] > 0).all()
    assert 0.6 * 0.6 - 0.01 < slopes[1].min() < 0.45 and 1.2 < slopes[1].max() < 1.4 + 0.01
    white = uncut[:, 2].flatten(1).nanmean(1)  # brightness moves all values
    assert white.min() < 0.5 and white.max() > 1.5
