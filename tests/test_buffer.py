"""What a buffer keeps, against what a list of everything that passed says it should."""

import io
import multiprocessing
import time

import numpy as np
import pytest
import torch
from PIL import Image

from lifelabel import buffer, streams
from lifelabel.buffer import Buffer, BufferOptions, Reservoir, capture
from lifelabel.config import Config
from lifelabel.learner import Setting
from lifelabel.methods.base import Batch, Host


class Plain(Buffer):
    """One that is filled by hand."""

    def offer(self, batch, first, logits=None):
        pytest.fail("nobody chooses here")


def make_setting(augment="none"):
    config = Config.make({"augment": augment})
    return Setting.of(config, lambda labels: torch.zeros(len(labels), 4), torch.device("cpu"))


SETTING = make_setting()


def make_batch(pixels, labels, known=None):
    """A batch as the engine makes it."""
    pixels, labels = torch.as_tensor(pixels), np.asarray(labels, bool)
    known = np.ones_like(labels) if known is None else np.asarray(known, bool)
    classes = tuple(map(str, range(labels.shape[1])))
    labels_known = torch.from_numpy(labels).float(), torch.from_numpy(known)
    return Batch(SETTING.backbone.to_input(pixels), *labels_known, classes, Host(pixels, labels, known))


def codes(numbers, bits=10):
    """Numbers as labels, by which an image is known again."""
    return np.array([[number >> bit & 1 for bit in range(bits)] for number in numbers], bool)


def numbers(kept):
    return [int(sum(int(bit) << place for place, bit in enumerate(item.labels))) for item in kept.items]


def noise(rng, size, grain):
    """A picture whose JPEG is the larger the finer its grain."""
    small = rng.integers(0, 256, (grain, grain, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((size, size), Image.Resampling.BILINEAR))


def pillow_jpeg(pixels):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


def pillow_pixels(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def assert_same(one, two):
    assert len(one) == len(two) and one.bytes == two.bytes
    for a, b in zip(one.items, two.items, strict=True):
        assert (a.jpeg, a.first, a.lot, a.bytes) == (b.jpeg, b.first, b.lot, b.bytes)
        for name in ("labels", "known", "logits"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            if x is not None:
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)


def test_a_reservoir_keeps_every_offered_image_with_the_same_probability():
    torch.manual_seed(0)
    offered, kept, trials = 48, 12, 300
    pixels = np.zeros((offered, 8, 8, 3), np.uint8)
    counts = np.zeros(offered)
    together = 0
    for _ in range(trials):
        reservoir = Reservoir(BufferOptions(buffer_images=kept), SETTING)
        for rows in np.array_split(np.arange(offered), 7):
            reservoir.offer(make_batch(pixels[rows], codes(rows)), 0)
        counts[found := numbers(reservoir)] += 1
        together += {0, 1} <= set(found)
        assert len(set(found)) == kept
    p = kept / offered
    deviations = (counts - trials * p) / np.sqrt(trials * p * (1 - p))
    assert np.abs(deviations).max() < 4
    assert np.sum(deviations**2) < offered + 4 * np.sqrt(2 * offered)  # chi squared
    both = p * (kept - 1) / (offered - 1)  # neighbours in the stream come and go independently
    assert abs(together - trials * both) < 4 * np.sqrt(trials * both)


@pytest.mark.parametrize(("images", "bytes"), [(20, None), (1000, 30_000), (25, 30_000), (3, 6_000), (10, 1_000)])
def test_the_budgets_hold_after_every_offer(images, bytes):
    """The kept images are those with the smallest lots, as many as fit, of everything that was small enough."""
    rng = np.random.default_rng(images)
    torch.manual_seed(7)
    reservoir = Reservoir(BufferOptions(buffer_images=images, buffer_bytes=bytes), SETTING)
    passed = []
    for step in range(40):
        grains = rng.choice([2, 8, 24] if step < 20 else [2, 3], 6)
        pixels = np.stack([noise(rng, 24, grain) for grain in grains])
        rows = range(6 * step, 6 * step + 6)
        with torch.random.fork_rng([]):
            drawn = torch.rand(6, dtype=torch.float64).tolist()
        reservoir.offer(make_batch(pixels, codes(rows)), 0)
        sizes = [len(pillow_jpeg(picture)) + 2 * 10 for picture in pixels]
        passed += zip(drawn, rows, sizes, strict=True)
        fits = [one for one in passed if bytes is None or one[2] <= bytes]
        expected, total = [], 0
        for _, number, size in sorted(fits):
            if len(expected) == images or (bytes is not None and total + size > bytes):
                break
            expected, total = [*expected, number], total + size
        assert sorted(numbers(reservoir)) == sorted(expected)
        assert reservoir.bytes == total == sum(item.bytes for item in reservoir.items)
        assert len(reservoir) <= images and (bytes is None or total <= bytes)
    if images == 1000:
        assert total > 0.9 * bytes  # no room is lost for good, however large the images were that left
    if bytes == 1_000:
        assert expected and len(fits) < len(passed)  # some were larger than the whole budget


def test_a_budget_that_nothing_fits_keeps_nothing():
    reservoir = Reservoir(BufferOptions(buffer_bytes=100), SETTING)
    reservoir.offer(make_batch(np.zeros((4, 16, 16, 3), np.uint8), codes(range(4))), 0)
    assert (len(reservoir), reservoir.bytes, reservoir.draw(8)) == (0, 0, [])


def filled(count, first=0, augment="none", size=16):
    rng = np.random.default_rng(0)
    kept = Plain(BufferOptions(), make_setting(augment))
    host = make_batch(rng.integers(0, 256, (count, size, size, 3), np.uint8), codes(range(count))).host
    for row in range(count):
        kept.add(capture(host, row, first))
    return kept


def test_images_are_removed_in_any_order():
    kept, left = filled(20), list(range(20))
    rng = np.random.default_rng(1)
    while left:
        place = int(rng.integers(len(left)))
        gone = numbers(kept)[place]
        assert codes([gone])[0].tolist() == kept.remove(place).labels.tolist()
        left.remove(gone)
        assert sorted(numbers(kept)) == left
        assert kept.bytes == sum(item.bytes for item in kept.items)


@pytest.mark.parametrize(("count", "of"), [(3, 30), (10, 18)])  # by chance until enough differ; a permutation
def test_draws_are_uniform_and_without_repeats(count, of):
    torch.manual_seed(0)
    kept = Plain(BufferOptions(), SETTING)
    kept.items = filled(1).items * of
    trials = 3000
    single, pairs = np.zeros(of), np.zeros((of, of))
    for _ in range(trials):
        drawn = kept.draw(count)
        assert len(set(drawn)) == count
        single[drawn] += 1
        pairs[np.ix_(drawn, drawn)] += 1
    p = count / of
    assert np.abs(single - trials * p).max() < 4.5 * np.sqrt(trials * p * (1 - p))
    both = p * (count - 1) / (of - 1)
    assert np.abs(pairs[~np.eye(of, dtype=bool)] - trials * both).max() < 5 * np.sqrt(trials * both)
    assert kept.draw(of) == kept.draw(of + 5) == list(range(of))


def test_the_time_to_draw_add_and_remove_does_not_grow_with_the_buffer():
    def seconds(size):
        kept = Plain(BufferOptions(), SETTING)
        kept.items = filled(1).items * size
        times = []
        for _ in range(20):
            start = time.perf_counter()
            kept.draw(32)
            kept.add(kept.remove(size // 2))
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(1_000_000) < 10 * seconds(1_000)  # were all places touched, a thousand times


def test_labels_that_were_hidden_when_an_image_came_are_unknown_ever_after():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, 16, 16, 3), np.uint8)
    reservoir = Reservoir(BufferOptions(), SETTING)
    reservoir.offer(make_batch(pixels, [[1, 0], [1, 1]], [[1, 1], [0, 1]]), 0)  # the first label of one is unknown
    reservoir.offer(make_batch(pixels[:1], [[0, 1, 1]]), 2)
    places = sorted(range(3), key=lambda place: (reservoir.items[place].first, reservoir.items[place].known.sum() == 1))
    replayed = reservoir.replay(places, 7)  # two more classes have come since
    expected = [[1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0]]
    known = [[1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0]]
    assert replayed.labels.tolist() == expected and replayed.labels.dtype == torch.float32
    assert replayed.known.int().tolist() == known and replayed.known.dtype == torch.bool
    assert (replayed.logits, replayed.stored) == (None, None)
    assert [reservoir.items[place].positives.tolist() for place in places] == [[0], [1], [3, 4]]


def test_logits_come_back_for_the_classes_that_were_known_then():
    reservoir = Reservoir(BufferOptions(), SETTING)
    pixels = np.zeros((2, 16, 16, 3), np.uint8)
    reservoir.offer(make_batch(pixels, codes([0, 1], 2)), 0, torch.tensor([[0.5, -2.0], [1.5, 70.0]]))
    reservoir.offer(make_batch(pixels[:1], [[1]]), 2)
    places = sorted(range(3), key=lambda place: reservoir.items[place].first)
    places[:2] = sorted(places[:2], key=lambda place: reservoir.items[place].labels[0])
    replayed = reservoir.replay(places, 3)
    assert replayed.logits.tolist() == [[0.5, -2, 0], [1.5, 70, 0], [0, 0, 0]]
    assert replayed.stored.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert reservoir.items[places[0]].bytes == len(pillow_jpeg(pixels[0])) + 2 + 2 + 2 * 2
    last = replayed[2:]
    assert last.labels.tolist() == [[0, 0, 1]] and len(last.images) == len(last.logits) == len(last.stored) == 1


def mixed():
    """Images of two tasks, some with logits, some that had to leave."""
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    reservoir = Reservoir(BufferOptions(buffer_images=9), SETTING)
    for step, classes in enumerate((2, 2, 3, 3)):
        batch = make_batch(rng.integers(0, 256, (5, 16, 16, 3), np.uint8), rng.random((5, classes)) < 0.5)
        reservoir.offer(batch, 2 * (step // 2), torch.randn(5, 2 + step) if step % 2 else None)
    assert {item.logits is None for item in reservoir.items} == {True, False}
    return reservoir


@pytest.mark.parametrize("make", [mixed, lambda: Reservoir(BufferOptions(), SETTING)], ids=["mixed", "empty"])
def test_a_saved_buffer_goes_on_as_the_one_that_was_not(make, tmp_path):
    one = make()
    torch.save(one.state_dict(), tmp_path / "b.pt")
    two = Reservoir(one.options, SETTING)
    two.load_state_dict(torch.load(tmp_path / "b.pt", weights_only=True))
    assert_same(one, two)
    random_state = torch.get_rng_state()
    for reservoir in (one, two):
        torch.set_rng_state(random_state)
        for step in range(6):
            pixels = np.random.default_rng(step).integers(0, 256, (5, 16, 16, 3), np.uint8)
            reservoir.offer(make_batch(pixels, codes(range(5), 4)), 5, torch.full((5, 9), step))
    assert_same(one, two)
    assert one.below == two.below


def test_a_kept_picture_is_far_smaller_and_hardly_changed():
    drawn = streams.build("scenes", {"train_images": 8, "test_images": 8, "size": 160}).train.images
    for row in range(4):
        pixels = np.asarray(drawn.picture(row).resize((224, 224)))
        jpeg = buffer.encode(pixels)
        assert len(jpeg) < pixels.nbytes / 4
        buffer.decode(jpeg, again := np.empty_like(pixels))
        np.testing.assert_array_equal(again, pillow_pixels(jpeg))  # another decoder's pixels
        error = np.mean((again.astype(float) - pixels) ** 2)
        assert 10 * np.log10(255**2 / error) > 38


@pytest.mark.parametrize("size", [16, 128])  # decoded at once, and by threads
def test_replayed_images_are_mirrored_as_training_images_are(size):
    torch.manual_seed(0)
    for augment, mirrored in (("none", False), ("flip", True), ("crop-flip", True)):
        kept = filled(12, augment=augment, size=size)
        assert (sum(len(item.jpeg) for item in kept.items) >= buffer.FEW_BYTES) == (size == 128)
        images = kept.replay(range(12), 10).images
        turned = 0
        for image, item in zip(images, kept.items, strict=True):
            plain = (pillow_pixels(item.jpeg).transpose(2, 0, 1) / 255.0 - 0.5) / 0.25
            same, flipped = np.abs(image.numpy() - plain).max(), np.abs(image.numpy() - plain[:, :, ::-1]).max()
            assert min(same, flipped) < 1e-5
            turned += flipped < same
        assert (0 < turned < 12) == mirrored


def _replay_in_child(kept, queue):
    torch.set_num_threads(1)
    queue.put(kept.replay(range(len(kept)), 10).images.sum().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_a_process_that_was_forked_after_the_threads_began_can_decode():
    kept = filled(12, size=128)
    here = kept.replay(range(12), 10).images.sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_replay_in_child, args=(kept, queue))
    child.start()
    try:
        assert queue.get(timeout=30) == pytest.approx(here)
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_an_item_belongs_to_no_batch():
    """The loader uses the memory of a batch again."""
    batch = make_batch(np.full((1, 16, 16, 3), 200, np.uint8), [[1, 0]])
    item = capture(batch.host, 0, 0)
    batch.host.pixels.zero_()
    batch.host.labels[:], batch.host.known[:] = False, False
    assert pillow_pixels(item.jpeg).min() > 190
    assert item.labels.tolist() == [True, False] and item.known.all()
