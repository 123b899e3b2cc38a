"""What every method must do: the tests run over the registry, and over the method of the example plug-in.

A new method needs no edit here. It states by its class attributes what does not apply to it, such as `joint`. Its own
test file has its mathematics only, against a slow version.
"""

import copy
import dataclasses
import functools
import io
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import models
from support.extensions import assert_an_extension_equals_one_stream, write_tables
from support.group_tasks import in_processes
from support.methods import SMALL, TASKS, batch, begin, calls_of, make, same, small, with_old
from support.no_waiting import no_waiting

import lifelabel
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.methods.buffer import Buffer, BufferOptions, encode
from lifelabel.metrics import mean_average_precision
from lifelabel.model.exporter import ProbabilityNetwork, onnx_program, torch_program
from lifelabel.nn import backbones
from lifelabel.nn.heads import MapHead
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import open_session

NAMES = list(METHODS.registered())
PLUGIN, PLUGIN_METHOD = Path(__file__).parents[1] / "plugin_example" / "lifelabel_example.py", "anchor"
STOPS = (0, 1, 2, 6, 7, 9, 11)
"""Before and after the begin of the first task, in a warm-up, between two tasks, at the start and in the middle of a
task, and before its end. The calls are numbered from 0, with six in each task: `begin_task`, four batches, `end_task`.
"""
OLD = len(TASKS[0])


@pytest.fixture
def plugin(plugin_state, tmp_path):
    """The example plug-in is loaded."""
    lifelabel.load_plugin(shutil.copy(PLUGIN, tmp_path))


@pytest.fixture(params=[*NAMES, PLUGIN_METHOD])
def name(request):
    """The name of each method, in turn."""
    if request.param == PLUGIN_METHOD:
        request.getfixturevalue("plugin")
    return request.param


@pytest.fixture
def lifelong(name):
    """The name of each method that learns task by task."""
    if METHODS[name].joint:
        pytest.skip("it learns all tasks at once")
    return name


def stores_images(name):
    return issubclass(METHODS[name].Options, BufferOptions)


def in_second_task(name, steps=4):
    """A method that has learned the first task and begun the second."""
    method = small(name)
    for call in calls_of(method, 1, steps):
        call()
    begin(method, TASKS[1], [batch(method, 1, step) for step in range(3)])
    return method


@functools.cache
def trained(name):
    """A method that has learned three tasks. It must not be changed."""
    method = small(name)
    for call in calls_of(method):
        call()
    return method


def images_of(count=5, seed=99):
    return batch(make("fine-tuning"), 0, seed, count=count).images


def bytes_of(state):
    """The size of all tensors in a state."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return sum(map(bytes_of, state))
    return state.nbytes if isinstance(state, torch.Tensor) else 0


# Learning


def coloured(method, classes, seed, count=8):
    """Images whose labels are their colours: each class of the task brightens a channel."""
    rng = np.random.default_rng(seed)
    labels = rng.random((count, len(classes))) < 0.5
    pixels = rng.integers(0, 60, (count, 24, 24, 3))
    pixels[..., : len(classes)] += 150 * labels[:, None, None]
    pixels, known = torch.from_numpy(pixels.astype(np.uint8)), np.ones_like(labels)
    images = method.setting.backbone.normalize(pixels)
    return Batch(
        images, torch.from_numpy(labels).float(), torch.from_numpy(known), classes, HostBatch(pixels, labels, known)
    )


def test_it_learns(name):
    """Classes that are colours, in two tasks. Chance is 0.5."""
    method = small(name, lr=3e-3, backbone_lr=2e-3, later_backbone_lr=2e-3)
    for task, classes in enumerate(TASKS[:2]):
        given = [coloured(method, classes, 100 * task + step) for step in range(25)]
        begin(method, classes, given)
        for each in given:
            parts = method.observe(each)
            assert all(part.shape == () and not part.requires_grad and part.isfinite() for part in parts.values())
        method.end_task()
        test = coloured(method, classes, 999, count=200)
        with torch.no_grad():
            scores = method.scores(test.images)[:, -len(classes) :]
        ap = mean_average_precision(scores.numpy(), test.host.labels)
        assert ap > 0.6


def test_a_batch_may_have_one_image_and_no_known_label(name):
    """Also all batches of the first task: a buffer may be empty when it ends."""
    method = small(name)
    for task, counts in enumerate(((4, 4, 4), (1, 4))):
        given = [batch(method, task, step, count, hidden=1.0 - (count == 1)) for step, count in enumerate(counts)]
        begin(method, TASKS[task], given)
        assert all(part.isfinite() for each in given for part in method.observe(each).values())
        method.end_task()
        assert method.scores(images_of()).isfinite().all()


# Saving and restoring


def test_a_run_that_stops_after_any_call_resumes_to_the_bit(name):
    # not the defaults, which the test of extensions has, but the last values that a search tries
    tried = {option: values[-1] for option, values in METHODS[name].search_space.items() if option not in SMALL}
    straight, saved = small(name, **tried), {}
    for number, call in enumerate(calls_of(straight)):
        if number in STOPS:
            torch.save((straight.state_dict(), torch.get_rng_state()), file := io.BytesIO())
            saved[number] = file
        call()
    expected = straight.state_dict(), straight.footprint(), straight.scores(images_of())
    for number, file in saved.items():
        file.seek(0)
        state, random_state = torch.load(file, weights_only=True)
        resumed = small(name, **tried)
        if number:
            resumed.load_state_dict(state)
            assert same(resumed.state_dict(), state), number  # also what the remaining steps would hide
        torch.set_rng_state(random_state)
        for call in calls_of(resumed)[number:]:
            call()
        assert same((resumed.state_dict(), resumed.footprint(), resumed.scores(images_of())), expected), number


# Scores


def test_scores_are_in_eval_mode_and_change_nothing(name):
    """With gradients or without, during a task: no statistics are updated, and images do not affect each other."""
    method = small(name, batch_norm="running")
    begin(method, TASKS[0], [batch(method, 0, 0)])
    method.observe(batch(method, 0, 0))
    images = images_of()
    state, random_state = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    scores = method.scores(images)
    assert scores.shape == (len(images), OLD) and scores.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(method.scores(images), scores.detach())
        torch.testing.assert_close(torch.cat([method.scores(image[None]) for image in images]), scores.detach())
    assert same(method.state_dict(), state) and torch.equal(torch.get_rng_state(), random_state)


def test_the_network_for_use_gives_the_scores_of_the_method(name):
    """Also if it is restored from plain values and tensors. Then training can go on.

    Without a matrix, classes do not influence each other: the scores of earlier classes are the first columns.
    """
    method = copy.deepcopy(trained(name))
    images = images_of()
    with torch.no_grad():
        expected = method.scores(images)
        earlier = method.logits(method.features(images), OLD)
        assert earlier.shape == (len(images), OLD) and earlier.isfinite().all()
        assert method.matrix() is not None or torch.equal(earlier, expected[:, :OLD])
        network = method.network()
        torch.testing.assert_close(network.eval()(images), expected, rtol=1e-4, atol=1e-4)
        tensors = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        restored = InferenceNetwork.restore(backbones.build("tiny"), network.describe(), tensors)
        torch.testing.assert_close(restored(images), expected, rtol=1e-4, atol=1e-4)
    before = copy.deepcopy(method.state_dict())
    begin(method, TASKS[0], [batch(method, 0, 9)])
    method.observe(batch(method, 0, 9))
    assert not same(method.state_dict(), before)


def test_the_model_folder_gives_the_scores_of_the_method(name, tmp_path):
    method = models.write(tmp_path, name, models.learned(name))
    pixels = models.pixels(5)
    with torch.no_grad():
        expected = method.scores(method.setting.backbone.normalize(pixels))
    model = lifelabel.load(tmp_path, "cpu")
    torch.testing.assert_close(model.logits(pixels), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.probabilities(model.logits(pixels)), expected.sigmoid(), rtol=1e-4, atol=1e-4)


# Exports and extensions


def shape_of(network):
    """What an export must be able to do for a network: networks of one shape differ in their values and sizes only."""
    classifier, features = network.classifier, network.features
    if isinstance(classifier, MapHead):
        return classifier.kind
    scaling = [name for name in ("standardise", "normalise") if getattr(features, name, False)]
    return (type(features), *scaling, classifier.projection is not None, classifier.log_lift is not None)


@functools.cache
def first_of_shape(shape):
    return next(name for name in NAMES if shape_of(trained(name).network()) == shape)


def test_its_network_is_exported(name):
    """Once for each shape of networks, with calibrated probabilities: PyTorch and ONNX Runtime agree with the model."""
    network = trained(name).network().eval()
    if (same_shape := first_of_shape(shape_of(network))) != name:
        pytest.skip(f"its network has the shape of that of {same_shape}")
    classes = sum(map(len, TASKS))
    slope, shift = torch.linspace(0.5, 2, classes), torch.linspace(-0.3, 1, classes)
    calibrated = ProbabilityNetwork(network, {"slope": slope.tolist(), "shift": shift.tolist()})
    images = images_of(5)
    with torch.no_grad():
        expected = (network(images) * slope + shift).sigmoid()
        session = open_session(onnx_program(calibrated, images.shape[-1]).model_proto.SerializeToString())
        program = torch_program(calibrated, images.shape[-1]).module()
        for count in (1, 2, 5):
            given = {session.get_inputs()[0].name: images[:count].numpy()}
            exported = torch.from_numpy(session.run(["probabilities"], given)[0])
            for found in (calibrated(images[:count]), program(images[:count]), exported):
                torch.testing.assert_close(found, expected[:count], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


def test_two_tasks_and_an_extension_are_three_tasks_in_one_stream(name, tables, tmp_path):
    assert_an_extension_equals_one_stream(tables, tmp_path, name)


# Known and unknown labels


def after_second_task(name, labels=None, known=(False, False)):
    """A method that has learned two tasks, the second with labels of old classes or without."""
    method = in_second_task(name)
    for step in range(3):
        given = batch(method, 1, step)
        method.observe(given if labels is None else with_old(given, labels, known))
    method.end_task()
    return method


def test_the_value_of_an_unknown_label_is_not_used(name):
    states = []
    for unknown in (0, 1):
        method = in_second_task(name)
        given = batch(method, 1, 0, hidden=0.7)
        assert not given.known.all()
        given.labels[~given.known] = unknown
        method.observe(given)
        states.append(method.state_dict())
    assert same(*states)


def test_unknown_labels_of_old_classes_change_nothing(lifelong):
    """Up to rounding: sums have more columns, some of them 0."""
    images = images_of()
    without, unknown = after_second_task(lifelong), after_second_task(lifelong, (True, True), (False, False))
    torch.testing.assert_close(unknown.scores(images), without.scores(images), rtol=1e-3, atol=1e-3)


def test_it_learns_from_known_labels_of_old_classes(lifelong):
    images = images_of()
    absent, present = (
        after_second_task(lifelong, (value, value), (True, True)).scores(images)[:, :OLD].sigmoid().mean()
        for value in (False, True)
    )
    assert absent < present


def test_images_are_stored_with_their_known_labels(name):
    """Labels that were hidden when an image was stored stay unknown."""
    if not stores_images(name):
        pytest.skip("it stores no images")
    method = in_second_task(name)
    first = [batch(method, 0, step, count=1 if step == 2 else 4) for step in range(4)]
    with_some = [with_old(batch(method, 1, step), (True, False), (True, False)) for step in range(2)]
    without = [batch(method, 1, step) for step in (2, 3)]
    visible = {
        encode(pixels.numpy()): (offset, labels.tolist(), known.tolist())
        for offset, batches in ((0, first), (0, with_some), (OLD, without))
        for given in batches
        for pixels, labels, known in zip(given.host.pixels, given.host.labels, given.host.known, strict=True)
    }
    for given in (*with_some, *without):
        method.observe(given)
    method.end_task()
    stored = [(item.offset, item.labels.tolist(), item.known.tolist()) for item in method.buffer.items]
    assert stored == [visible[item.jpeg] for item in method.buffer.items]
    assert {(offset, len(labels)) for offset, labels, _ in stored} == {(0, 2), (0, 5), (OLD, 3)}
    replayed = method.buffer.replay(range(len(stored)), OLD + len(TASKS[1]))
    for row, (offset, labels, known) in enumerate(stored):
        columns = slice(offset, offset + len(labels))
        assert replayed.labels[row, columns].tolist() == labels and replayed.known[row, columns].tolist() == known
        assert replayed.known[row].sum() == sum(known)


# Several passes and processes, memory, and the device


def test_an_image_that_is_shown_again_is_not_stored_or_counted_again(name):
    """A later pass changes the weights, and what belongs to them, alone: no other state."""
    method = in_second_task(name)
    method.observe(batch(method, 1, 0))
    before, footprint = copy.deepcopy(method.state_dict()), method.footprint()
    for seed, count in ((0, 4), (1, 1)):
        parts = method.observe(dataclasses.replace(batch(method, 1, seed, count=count), first_pass=False))
    after = method.state_dict()
    changed = {key for key in before if not same(before[key], after[key])}
    assert changed == ({"learner", *method.per_step} if parts else set())
    assert method.footprint() == footprint


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory):
    """What one process and the first of two processes compute for every method, see `learn_two_tasks`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFELABEL_PLUGINS", str(PLUGIN))
        folder = tmp_path_factory.mktemp("processes")
        return [in_processes(folder, size, "learn_two_tasks")[0] for size in (1, 2)]


def test_two_processes_learn_as_one(name, by_processes):
    """They divide the passes of the network only. Up to rounding: gradients and batch norm are added up in parts."""
    (losses, scores, footprint), found = (results[name] for results in by_processes)
    torch.testing.assert_close(found[0], losses, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[1], scores, rtol=1e-8, atol=1e-8)
    assert found[2] == footprint


def test_what_it_stores_does_not_grow_with_the_images(name):
    """Twice as many images in each task, with as many classes. A buffer has JPEG files, whose sizes differ."""
    found = []
    for steps in (6, 12):
        method = small(name)
        for call in calls_of(method, 2, steps):
            call()
        found.append((method.footprint(), bytes_of(method.state_dict())))
    (few, few_bytes), (many, many_bytes) = found
    if stores_images(name):
        assert 0 < many.images <= method.options.buffer_images and many_bytes < 1.01 * few_bytes
    else:
        assert (few, few_bytes) == (many, many_bytes) and few.images == 0


def test_the_footprint_is_what_it_stores_in_addition_to_its_network(name):
    """The tensors of the state, without those of the network. Derived parts of an index may be counted or not."""
    method = trained(name)
    own = {key: value for key, value in method.state_dict().items() if key not in ("learner", "backbone")}
    found = method.footprint()
    assert 0.95 * bytes_of(own) <= found.bytes <= bytes_of(own)
    if stores_images(name):  # the index of a buffer, such as counts of classes, is small beside the images
        images = Buffer.state_dict(method.buffer).keys()
        index = {key: value for key, value in own["buffer"].items() if key not in images}
        assert found.bytes >= method.buffer.bytes + bytes_of(index)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_does_not_wait_for_the_gpu(name, precision):
    """The last step of each task. If the method stores images, they are shown again: storing one is host work."""
    method = small(name, device="cuda", precision=precision)
    for task, classes in enumerate(TASKS[:2]):
        *given, last = (batch(method, task, step) for step in range(4))
        begin(method, classes, [*given, last])
        for each in given:
            method.observe(each)
        with no_waiting():
            parts = method.observe(dataclasses.replace(last, first_pass=not stores_images(name)))
        assert all(math.isfinite(part.item()) for part in parts.values())
        method.end_task()
