"""The images that a buffer stores, against a list of all images that were offered."""

import io
import multiprocessing
import time

import numpy as np
import pytest
import torch
from PIL import Image
from support.methods import NORMALIZE

from lifelabel import streams
from lifelabel.methods import HostBatch, buffer
from lifelabel.methods.buffer import Buffer, BufferOptions, Reservoir, make_item


class Plain(Buffer):
    """A buffer that is filled by hand."""

    def offer(self, batch, offset, logits=None):
        pytest.fail("images are added by hand")


def make_batch(pixels, labels, known=None):
    """A batch in host memory, as the engine makes it."""
    labels = np.asarray(labels, bool)
    return HostBatch(
        torch.as_tensor(pixels), labels, np.ones_like(labels) if known is None else np.asarray(known, bool)
    )


def codes(numbers, bits=10):
    """Numbers as labels, which identify an image."""
    return np.array([[number >> bit & 1 for bit in range(bits)] for number in numbers], bool)


def numbers(filled):
    return [int(sum(int(bit) << k for k, bit in enumerate(item.labels))) for item in filled.items]


def noise(rng, size, grain):
    """An image whose JPEG is larger for a finer grain."""
    small = rng.integers(0, 256, (grain, grain, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((size, size), Image.Resampling.BILINEAR))


def pillow_jpeg(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


def pillow_pixels(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def test_a_reservoir_stores_every_offered_image_with_the_same_probability():
    torch.manual_seed(0)
    offered, stored, trials = 48, 12, 300
    pixels = np.zeros((offered, 8, 8, 3), np.uint8)
    counts = np.zeros(offered)
    together = 0
    for _ in range(trials):
        reservoir = Reservoir(BufferOptions(buffer_images=stored), NORMALIZE)
        for rows in np.array_split(np.arange(offered), 7):
            reservoir.offer(make_batch(pixels[rows], codes(rows)), 0)
        counts[found := numbers(reservoir)] += 1
        together += {0, 1} <= set(found)
        assert len(set(found)) == stored
    p = stored / offered
    deviations = (counts - trials * p) / np.sqrt(trials * p * (1 - p))
    assert np.abs(deviations).max() < 4
    assert np.sum(deviations**2) < offered + 4 * np.sqrt(2 * offered)  # chi squared
    both = p * (stored - 1) / (offered - 1)  # neighbours in the stream are stored independently
    assert abs(together - trials * both) < 4 * np.sqrt(trials * both)


@pytest.mark.parametrize(("images", "bytes"), [(20, None), (1000, 30_000), (25, 30_000), (3, 6_000), (10, 1_000)])
def test_the_budgets_hold_after_every_offer(images, bytes):
    """The stored images are those with the smallest keys, as many as fit, of all images that are not too large."""
    rng = np.random.default_rng(images)
    torch.manual_seed(7)
    reservoir = Reservoir(BufferOptions(buffer_images=images, buffer_bytes=bytes), NORMALIZE)
    offered = []
    for step in range(40):
        grains = rng.choice([2, 8, 24] if step < 20 else [2, 3], 6)
        pixels = np.stack([noise(rng, 24, grain) for grain in grains])
        rows = range(6 * step, 6 * step + 6)
        with torch.random.fork_rng([]):
            keys = torch.rand(6, dtype=torch.float64).tolist()
        reservoir.offer(make_batch(pixels, codes(rows)), 0)
        sizes = [len(pillow_jpeg(image)) + 2 * 10 for image in pixels]
        offered += zip(keys, rows, sizes, strict=True)
        fits = [image for image in offered if bytes is None or image[2] <= bytes]
        expected, total = [], 0
        for _, number, size in sorted(fits):
            if len(expected) == images or (bytes is not None and total + size > bytes):
                break
            expected, total = [*expected, number], total + size
        assert sorted(numbers(reservoir)) == sorted(expected)
        assert reservoir.bytes == total == sum(item.bytes for item in reservoir.items)
        assert len(reservoir) <= images and (bytes is None or total <= bytes)
    if images == 1000:
        assert total > 0.9 * bytes  # the bytes of large images that were removed are used again
    if bytes == 1_000:
        assert expected and len(fits) < len(offered)  # some images are larger than the budget


def test_a_budget_that_is_too_small_for_any_image_stores_nothing():
    reservoir = Reservoir(BufferOptions(buffer_bytes=100), NORMALIZE)
    reservoir.offer(make_batch(np.zeros((4, 16, 16, 3), np.uint8), codes(range(4))), 0)
    assert (len(reservoir), reservoir.bytes, reservoir.sample(8)) == (0, 0, [])


def make_filled(count, offset=0, mirror=False, size=16):
    rng = np.random.default_rng(0)
    filled = Plain(BufferOptions(), NORMALIZE, mirror=mirror)
    batch = make_batch(rng.integers(0, 256, (count, size, size, 3), np.uint8), codes(range(count)))
    for row in range(count):
        filled.add(make_item(batch, row, offset))
    return filled


def test_images_are_removed_in_any_order():
    filled, left = make_filled(20), list(range(20))
    rng = np.random.default_rng(1)
    while left:
        position = int(rng.integers(len(left)))
        removed = numbers(filled)[position]
        assert codes([removed])[0].tolist() == filled.remove(position).labels.tolist()
        left.remove(removed)
        assert sorted(numbers(filled)) == left
        assert filled.bytes == sum(item.bytes for item in filled.items)


@pytest.mark.parametrize(("count", "of"), [(3, 30), (10, 18)])  # by rejection; by a permutation
def test_samples_are_uniform_and_without_repeats(count, of):
    torch.manual_seed(0)
    filled = Plain(BufferOptions(), NORMALIZE)
    filled.items = make_filled(1).items * of
    trials = 3000
    single, pairs = np.zeros(of), np.zeros((of, of))
    for _ in range(trials):
        sampled = filled.sample(count)
        assert len(set(sampled)) == count
        single[sampled] += 1
        pairs[np.ix_(sampled, sampled)] += 1
    p = count / of
    assert np.abs(single - trials * p).max() < 4.5 * np.sqrt(trials * p * (1 - p))
    both = p * (count - 1) / (of - 1)
    assert np.abs(pairs[~np.eye(of, dtype=bool)] - trials * both).max() < 5 * np.sqrt(trials * both)
    assert filled.sample(of) == filled.sample(of + 5) == list(range(of))


def test_the_time_to_sample_add_and_remove_does_not_grow_with_the_buffer():
    def seconds(size):
        filled = Plain(BufferOptions(), NORMALIZE)
        filled.items = make_filled(1).items * size
        times = []
        for _ in range(20):
            start = time.perf_counter()
            filled.sample(32)
            filled.add(filled.remove(size // 2))
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(1_000_000) < 10 * seconds(1_000)  # a pass over all images would take a thousand times as long


def test_labels_that_were_hidden_when_an_image_was_stored_stay_unknown():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, 16, 16, 3), np.uint8)
    reservoir = Reservoir(BufferOptions(), NORMALIZE)
    reservoir.offer(make_batch(pixels, [[1, 0], [1, 1]], [[1, 1], [0, 1]]), 0)  # the first label of one is unknown
    reservoir.offer(make_batch(pixels[:1], [[0, 1, 1]]), 2)
    positions = sorted(range(3), key=lambda k: (reservoir.items[k].offset, reservoir.items[k].known.sum() == 1))
    replayed = reservoir.replay(positions, 7)  # there are two more classes since then
    expected = [[1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0]]
    known = [[1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0]]
    assert replayed.labels.tolist() == expected and replayed.labels.dtype == torch.float32
    assert replayed.known.int().tolist() == known and replayed.known.dtype == torch.bool
    assert (replayed.logits, replayed.stored) == (None, None)
    assert [reservoir.items[k].positives.tolist() for k in positions] == [[0], [1], [3, 4]]


def test_logits_are_restored_for_the_classes_that_were_seen_when_the_image_was_stored():
    reservoir = Reservoir(BufferOptions(), NORMALIZE)
    pixels = np.zeros((2, 16, 16, 3), np.uint8)
    reservoir.offer(make_batch(pixels, codes([0, 1], 2)), 0, torch.tensor([[0.5, -2.0], [1.5, 70.0]]))
    reservoir.offer(make_batch(pixels[:1], [[1]]), 2)
    positions = sorted(range(3), key=lambda k: reservoir.items[k].offset)
    positions[:2] = sorted(positions[:2], key=lambda k: reservoir.items[k].labels[0])
    replayed = reservoir.replay(positions, 3)
    assert replayed.logits.tolist() == [[0.5, -2, 0], [1.5, 70, 0], [0, 0, 0]]
    assert replayed.stored.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert reservoir.items[positions[0]].bytes == len(pillow_jpeg(pixels[0])) + 2 + 2 + 2 * 2
    last = replayed[2:]
    assert last.labels.tolist() == [[0, 0, 1]] and len(last.images) == len(last.logits) == len(last.stored) == 1


def test_a_stored_image_is_much_smaller_and_almost_unchanged():
    images = streams.build("scenes", {"train_images": 8, "test_images": 8, "size": 160}).train.images
    for row in range(4):
        pixels = np.asarray(images.read(row).resize((224, 224)))
        jpeg = buffer.encode(pixels)
        assert len(jpeg) < pixels.nbytes / 4
        buffer.decode(jpeg, decoded := np.empty_like(pixels))
        np.testing.assert_array_equal(decoded, pillow_pixels(jpeg))  # the pixels of another decoder
        error = np.mean((decoded.astype(float) - pixels) ** 2)
        assert 10 * np.log10(255**2 / error) > 38


@pytest.mark.parametrize("size", [16, 128])  # decoded in this thread, and in several threads
def test_replayed_images_are_mirrored_at_random(size):
    torch.manual_seed(0)
    for mirror in (False, True):
        filled = make_filled(12, mirror=mirror, size=size)
        assert (sum(len(item.jpeg) for item in filled.items) >= buffer._SMALL_BATCH_BYTES) == (size == 128)
        images = filled.replay(range(12), 10).images
        mirrored = 0
        for image, item in zip(images, filled.items, strict=True):
            plain = (pillow_pixels(item.jpeg).transpose(2, 0, 1) / 255.0 - 0.5) / 0.25
            same, flipped = np.abs(image.numpy() - plain).max(), np.abs(image.numpy() - plain[:, :, ::-1]).max()
            assert min(same, flipped) < 1e-5
            mirrored += flipped < same
        assert (0 < mirrored < 12) if mirror else mirrored == 0


def _replay_in_child(filled, queue):
    torch.set_num_threads(1)
    queue.put(filled.replay(range(len(filled)), 10).images.sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_process_that_is_forked_after_the_threads_started_can_decode():
    filled = make_filled(12, size=128)
    expected = filled.replay(range(12), 10).images.sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_replay_in_child, args=(filled, queue))
    child.start()
    try:
        assert queue.get(timeout=30) == pytest.approx(expected)
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_an_item_shares_no_memory_with_its_batch():
    """The loader uses the memory of a batch again."""
    batch = make_batch(np.full((1, 16, 16, 3), 200, np.uint8), [[1, 0]])
    item = make_item(batch, 0, 0)
    batch.pixels.zero_()
    batch.labels[:], batch.known[:] = False, False
    assert pillow_pixels(item.jpeg).min() > 190
    assert item.labels.tolist() == [True, False] and item.known.all()
