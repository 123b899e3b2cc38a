"""The roles of options: which ones may be changed, make another run, or are in labels. All follow from declarations."""

import dataclasses
import typing

import pytest

from lifelabel.config import config as config_module
from lifelabel.config.config import Config
from lifelabel.engine.progress import check_same_run
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.runs.folder import RunFolder
from lifelabel.search.planned_run import differences
from lifelabel.streams import STREAMS

STREAM = {"scenes": "scenes", "table": "photos.csv", "voc": "voc", "published": "split.zip"}
BASES = [("scenes", "agcn"), ("table", "er"), ("voc", "l3a"), ("published", "frozen")]
"""Streams and methods whose options are all different from each other."""
MADE_FROM = {"stream": "a", "files": "b", "words": "c", "weights": "d"}

# The roles of all options. These lists are the documented behaviour, and are not taken from the declarations.
FREE = {
    "device", "compile", "workers", "checkpoint_seconds", "strict", "max_skipped", "keep_tasks", "log", "pictures",
    "plugins",
}  # fmt: skip
RESUME = FREE | {"lr", "backbone_lr", "later_backbone_lr", "adam_eps"}
PATH = {"words", "weights", "stream.root", "stream.file", "stream.order", "stream.lists"}
NOT_IN_LABELS = FREE | {
    "stream", "seed", "task_order", "class_order", "save_scores", "stream.root", "stream.file", "stream.lists",
    "stream.separator", "stream.learned", "stream.alias", "stream.merge_case",
}  # fmt: skip
EQUAL = {
    "batch_size", "augment", "backbone", "weights", "image_size", "normalize", "pool", "precision",
    "method.buffer_images", "method.buffer_bytes",
}  # fmt: skip
REGISTERED = {"stream", "method", "backbone"}


def sections(config):
    return {"": config, "method.": config.method_options, "stream.": config.stream_options}


def options_of(config):
    """Every option by its full name: the dataclass that declares it, and its field."""
    return {
        prefix + field.name: (options, field)
        for prefix, options in sections(config).items()
        for field in dataclasses.fields(options)
        if field.name not in ("method_options", "stream_options")
    }


CASES = [
    (stream, method, name)
    for stream, method in BASES
    for name in options_of(Config.make({"stream": STREAM[stream], "method": method}))
    if (stream, method) == BASES[0] or "." in name  # the options of the run are the same in every case
]
every_option = pytest.mark.parametrize(("stream", "method", "name"), CASES)


def other_value(field, hint, value):
    """Another valid value of an option, from its declaration."""
    metadata = field.metadata
    if metadata["choices"]:
        return next(choice for choice in metadata["choices"] if choice != value)
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is tuple:
        return tuple(part / 2 for part in value) if value else ("another_module",)
    kind = parts[0] if parts else hint
    if kind is bool:
        return not value
    if kind is str:
        return f"/another/{field.name}"
    if value is None:
        return kind(metadata["low"] or 1)
    larger = value + 1 if kind is int else value * 1.5 + 0.01
    return kind(larger) if metadata["high"] is None or larger <= metadata["high"] else kind(value / 2)


@pytest.fixture
def changed(stream, method, name, monkeypatch):
    """Two configurations that differ in one option."""
    monkeypatch.setattr(config_module, "check_plugins", lambda plugins: plugins)
    before = Config.make({"stream": STREAM[stream], "method": method})
    options, field = options_of(before)[name]
    value = getattr(options, field.name)
    other = other_value(field, typing.get_type_hints(type(options))[field.name], value)
    assert other != value
    replaced = dataclasses.replace(options, **{field.name: other})
    section = {"method.": "method_options", "stream.": "stream_options"}.get(name.partition(".")[0] + ".")
    after = replaced if options is before else dataclasses.replace(before, **{section: replaced})
    return before, after


@every_option
def test_an_option_may_be_changed_before_a_run_resumes_if_it_declares_so(changed, name, tmp_path):
    before, after = changed
    state = {**MADE_FROM, "config": before.to_dict()}
    if name in RESUME | PATH:
        check_same_run(state, MADE_FROM, after, RunFolder(tmp_path))
    else:
        with pytest.raises(UserError) as caught:
            check_same_run(state, MADE_FROM, after, RunFolder(tmp_path))
        assert f" was made with another {name} than {tmp_path / 'config.yaml'} " in str(caught.value)


@every_option
def test_an_option_makes_another_run_unless_it_is_free(changed, name):
    before, after = changed
    found = differences(before, after)
    assert len(found) == (0 if name in FREE else 1)
    assert all(text.startswith(f"{name} ") for text in found)


@pytest.mark.parametrize(
    ("stream", "method", "name"), [case for case in CASES if case[2] not in ("stream", "method", "fidelity")]
)  # the defaults of other options depend on these three: see the next test
def test_an_option_is_in_the_label_if_it_declares_so(changed, name):
    before, after = changed
    assert before.label == before.method
    short = name.removeprefix("method.")
    if name in NOT_IN_LABELS:
        assert after.label == before.label
    else:
        assert after.label.startswith(f"{before.method} ({short}=") and after.label.count("=") == 1


def test_labels_have_the_method_and_the_fidelity_and_not_the_stream():
    values = {"stream": "split-coco", "method": "lwf", "fidelity": "paper", "seed": 3, "task_order": 2}
    assert Config.make(values).label == "lwf (paper)"
    values |= {"lr": 0.5, "words": "/data/glove.txt", "stream_options": {"order": "frequency"}}
    assert Config.make(values).label == "lwf (paper, lr=0.5, words=glove.txt, stream.order=frequency)"


def test_roles_of_all_options():
    """The declarations of the options of every method and of every stream."""
    every = [*((stream, "agcn") for stream in STREAMS), *(("scenes", method) for method in METHODS)]
    declarations = {}
    for stream, method in every:
        config = Config.make({"stream": stream, "method": method}, with_preset=False)
        for name, (_, field) in options_of(config).items():
            declarations.setdefault(name, []).append(field.metadata)

    def with_role(role, value=True):
        return {name for name, found in declarations.items() if any(bool(each[role]) == value for each in found)}

    assert with_role("free") == FREE
    assert with_role("resume") == RESUME
    assert with_role("path") == PATH
    assert with_role("label", False) == NOT_IN_LABELS
    assert with_role("equal") == EQUAL
    assert with_role("registered") == REGISTERED
