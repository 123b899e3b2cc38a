"""The configuration: layers, YAML and back, and wrong files and values."""

from types import SimpleNamespace

import pytest
import yaml

from lifelabel.config.config import Config, merge
from lifelabel.config.fidelities import FIDELITIES
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.utils.yaml_reader import _MAX_BYTES as MAX_YAML_BYTES
from lifelabel.utils.yaml_reader import read_yaml


def message_of(call, *args):
    with pytest.raises(UserError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults():
    config = Config.make()
    assert config == Config.make({}) == Config.make(None)
    assert (config.stream, config.method, config.fidelity, config.seed) == ("scenes", "agcn", "tuned", 0)
    assert (config.batch_size, config.backbone, config.weights, config.image_size) == (8, "tiny", "none", None)
    stream, method = config.stream_options, config.method_options
    assert (stream.classes, stream.tasks, stream.train_images, stream.test_images) == (20, 5, 6000, 1500)
    assert (method.hidden, method.blocks) == (512, "all")


AUTHORS = {
    "batch_size": 8, "lr": 3e-5, "backbone_lr": 1e-4, "later_backbone_lr": 1e-4, "batch_norm": "running", "pool": "max",
    "word_norm": None, "precision": "fp32",
}  # fmt: skip
OF_AGCN = {"hidden": 1024, "prevalence": None, "context": 0.0}


@pytest.mark.parametrize(
    ("fidelity", "shared", "own"),
    [
        (
            "paper",
            {**AUTHORS, "adam_eps": 1e-4, "augment": "crop-flip", "reduction": "sum", "normalize": "backbone"},
            {"lambdas": [0.07, 0.93, 1e5], "soft_labels": "sigmoid", "new_old": "bayes", "adjacency": "raw",
             "activate_output": True},
        ),
        (
            "release",
            {**AUTHORS, "adam_eps": 1e-8, "augment": "flip", "reduction": "mean", "normalize": "authors"},
            {"lambdas": [0.07, 0.93, 1e5], "soft_labels": "softmax", "new_old": "halved", "adjacency": "binarised",
             "activate_output": False},
        ),
        (
            "plain",
            {"lr": 1e-3, "backbone_lr": 1e-3, "later_backbone_lr": 1e-3, "batch_norm": "running"},
            {"lambdas": [0.07, 0.93, 1e3], "new_old": "halved", "adjacency": "binarised"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_fidelity_wins_over_defaults(fidelity, shared, own):
    config = Config.make({"fidelity": fidelity}).to_dict()
    assert {name: config[name] for name in shared} == shared
    own = own | OF_AGCN
    assert {name: config["method_options"][name] for name in own} == own
    untouched = Config.make({"fidelity": "tuned"}, with_preset=False).to_dict()
    same = config.keys() - shared.keys() - {"fidelity", "method_options"}
    assert {name: config[name] for name in same} == {name: untouched[name] for name in same}


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("stream", "images"), [("scenes", 200), ("split-coco", 2000)])
def test_every_method_that_stores_images_has_the_same_budget(fidelity, stream, images, monkeypatch):
    """A method of a plug-in too."""
    monkeypatch.setitem(METHODS._items, "replay-of-a-plug-in", type("Replay", (METHODS["er"],), {}))
    for method in ("agem", "er", "prs", "der++", "ocdm", "icarl", "rm", "krt-r", "rebll", "replay-of-a-plug-in"):
        config = Config.make({"stream": stream, "method": method, "fidelity": fidelity})
        assert config.method_options.buffer_images == images


def test_four_layers(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("fidelity: paper\nlr: 1e-2\nbatch_size: 3\nmethod_options:\n  hidden: 9\n  mix: 0.2\n")
    config = Config.make(merge(read_yaml(file), {"batch_size": "4", "method_options": {"mix": 0.3}}))
    assert config.seed == 0  # of the default
    assert config.adam_eps == 1e-4  # of the fidelity
    assert (config.lr, config.method_options.hidden) == (1e-2, 9)  # of the file
    assert config.method_options.lambdas == (0.07, 0.93, 1e5)  # of the fidelity: sections are merged, not replaced
    assert (config.batch_size, config.method_options.mix) == (4, 0.3)  # of the flags


@pytest.mark.parametrize(
    ("fidelity", "expected"),
    [
        ("tuned", ("efficientnet-lite0", "imagenet", 224, "frozen", 2e-5, (0.15, 0.85, 1e3))),
        ("paper", ("resnet101", "imagenet", 448, "running", 1e-4, (0.07, 0.93, 1e5))),
        ("release", ("resnet101", "imagenet", 448, "running", 1e-4, (0.07, 0.93, 1e5))),
    ],
)
def test_photographs_have_their_own_defaults(fidelity, expected):
    c = Config.make({"stream": "split-coco", "fidelity": fidelity}, with_preset=False)
    found = (c.backbone, c.weights, c.image_size, c.batch_norm, c.later_backbone_lr, c.method_options.lambdas)
    assert found == expected
    assert Config.make({"stream": "scenes", "fidelity": fidelity}).image_size is None
    given = {"backbone": "resnet18", "method_options": {"lambdas": "1,2,3"}}
    c = Config.make({"stream": "split-coco", "fidelity": fidelity, **given})
    assert (c.backbone, c.method_options.lambdas) == ("resnet18", (1, 2, 3))


_RATES = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")


def rates(config):
    return tuple(getattr(config, name) for name in _RATES)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("fidelity", "expected"),
    [("tuned", (3e-4, 1e-3, 6e-4, "first-task")), ("plain", (1e-3, 1e-3, 1e-3, "running"))],
)
def test_a_backbone_without_weights_gets_rates_that_can_learn(method, fidelity, expected):
    base = {"stream": "photos.csv", "method": method, "fidelity": fidelity}
    for network in ({"weights": "none"}, {"backbone": "tiny"}, {"backbone": "tiny", "weights": "none"}):
        c = Config.make({**base, **network})
        assert (rates(c), c.weights) == (expected, "none")
        assert Config.make(c.to_dict()) == c
        own = Config.make(base).method_options  # of the preset, as far as there is one
        assert c.method_options == own
        assert (c.batch_size, c.image_size, c.pool) == (32, Config.make(base).image_size, "avg")
    assert rates(Config.make({**base, "backbone": "resnet18"})) == rates(Config.make(base)) != expected


def test_given_options_win_over_those_of_a_backbone_without_weights():
    given = {"lr": 0.5, "backbone_lr": 2e-5, "later_backbone_lr": 0.0, "batch_norm": "frozen"}
    assert rates(Config.make({"stream": "split-coco", "backbone": "tiny", **given})) == tuple(given.values())
    one = Config.make({"stream": "split-coco", "weights": "none", "batch_norm": "running"})
    assert rates(one) == (3e-4, 1e-3, 6e-4, "running")
    assert Config.make({"stream": "split-coco", "backbone": "tiny", "weights": "w.pth"}).weights == "w.pth"


@pytest.mark.parametrize("fidelity", ["paper", "release"])
@pytest.mark.parametrize("stream", ["scenes", "split-coco"])
def test_only_a_label_graph_has_the_authors_rate_of_the_graph(fidelity, stream):
    """A linear head has that of the CNN, which is larger."""
    found = {name: Config.make({"stream": stream, "method": name, "fidelity": fidelity}).lr for name in METHODS}
    graphs = {"agcn", "agcn++", "ml-gcn", "ml-gcn-lifelong"}
    assert {name for name, lr in found.items() if lr == 3e-5} == graphs
    assert {lr for name, lr in found.items() if name not in graphs} == {1e-4}


@pytest.mark.parametrize("fidelity", ["paper", "release"])
def test_the_rates_of_the_paper_do_not_depend_on_the_weights(fidelity):
    for method in ("agcn", "er"):
        base = {"stream": "split-coco", "fidelity": fidelity, "method": method}
        assert rates(Config.make({**base, "weights": "none"})) == rates(Config.make(base))
    assert Config.make({**base, "backbone": "tiny"}).weights == "none"


def test_the_label_of_a_run_without_weights_names_the_network_only():
    label = Config.make({"stream": "split-coco", "method": "er", "backbone": "tiny", "lr": 0.5}).label
    assert label == "er (lr=0.5, backbone=tiny, weights=none)"
    assert Config.make({"stream": "split-coco", "method": "er", "weights": "none"}).label == "er (weights=none)"
    assert Config.make({"stream": "split-coco", "method": "er"}).label == "er"


def test_a_path_is_a_stream(tmp_path):
    c = Config.make({"stream": "photos.csv", "stream_options": {"tasks": 3}})
    assert (c.stream, c.stream_options.file, c.stream_options.tasks) == ("table", "photos.csv", 3)
    assert Config.make({"stream": "a/stream.yaml"}).stream == "manifest"
    for split in ("Split-COCO.zip", str(tmp_path)):
        assert Config.make({"stream": split}).stream == "published"
    assert Config.make(c.to_dict()) == c
    with pytest.raises(UserError, match=r"unknown stream 'split-coc': did you mean 'split-coco'\?"):
        Config.make({"stream": "split-coc"})


def test_a_choice_that_yaml_reads_as_a_number_or_a_truth_value():
    assert Config.make({"stream": "voc", "stream_options": {"year": 2012}}).stream_options.year == "2012"
    for word in ("on", "off", "auto"):
        assert Config.make({"compile": yaml.safe_load(word)}).compile == word
    with pytest.raises(UserError, match="batch_norm must be text, not True"):
        Config.make({"batch_norm": True})


def test_paths_are_made_absolute(tmp_path, monkeypatch):
    """Files that do not exist too: a finished run is recognised after they are deleted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.txt").write_text("a\n")
    options = {"root": "photos", "order": "order.txt"}
    c = Config.make({"stream": "t.csv", "words": "glove.txt", "weights": "w.pth", "stream_options": options})
    c = c.with_absolute_paths()
    found = (c.words, c.weights, c.stream_options.file, c.stream_options.root, c.stream_options.order)
    assert found == tuple(str(tmp_path / name) for name in ("glove.txt", "w.pth", "t.csv", "photos", "order.txt"))
    plain = Config.make({"stream": "scenes"})
    assert plain.with_absolute_paths() == plain
    (tmp_path / "frequency").write_text("a file with the name of an order, which is not used")
    options = Config.make({"stream": "t.csv", "stream_options": {"order": "frequency"}}).with_absolute_paths()
    assert options.stream_options.order == "frequency"
    named = Config.make({"stream": "split-coco"}).with_absolute_paths()
    assert (named.weights, named.stream_options.order, named.stream_options.root) == ("imagenet", "paper", None)


def test_merge_does_not_change_its_layers():
    first, second = {"method_options": {"mix": 0.1, "hidden": 3}}, {"method_options": {"mix": 0.2}, "lr": 1}
    assert merge(first, second) == {"method_options": {"mix": 0.2, "hidden": 3}, "lr": 1}
    assert first == {"method_options": {"mix": 0.1, "hidden": 3}}
    assert second == {"method_options": {"mix": 0.2}, "lr": 1}


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("method", METHODS)
def test_to_yaml_and_back(method, fidelity):
    config = Config.make({"method": method, "fidelity": fidelity, "seed": 3, "stream_options": {"classes": 7}})
    values = yaml.safe_load(config.to_yaml())
    assert Config.make(values) == config
    assert values == config.to_dict()  # complete, and plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("words", text) for text in ("yes", "a: b # c", "C:\\x", "é/ü", "1e-3", "two\nlines", " lead", "#", "")),
        *(("lr", number) for number in (1e-300, 1e300, 1 / 3, 5e-324, 1e16)),
    ],
)
def test_values_that_yaml_could_misread_are_preserved(name, value):
    config = Config.make({name: value})
    assert getattr(Config.make(yaml.safe_load(config.to_yaml())), name) == value


@pytest.mark.parametrize("method", METHODS)
def test_every_option_is_in_the_yaml_below_its_help(method):
    config = Config.make({"method": method})
    section, comment, found = "", [], {}
    for line in config.to_yaml().splitlines():
        assert len(line) <= 120  # short enough to read
        text, is_inner = line.strip(), line.startswith(" ")
        if text.startswith("# "):
            comment.append(text.removeprefix("# "))
            continue
        name = text.partition(":")[0]
        section = section if is_inner else f"{name.removesuffix('_options')}."
        found[section + name if is_inner else name] = " ".join(comment)
        comment = []
    for name, (_, declaration) in config.entries().items():
        assert found[name].startswith(declaration["help"])
        assert all(choice in found[name] for choice in declaration["choices"] or ())


@pytest.mark.parametrize(
    ("fidelity", "reduction"), [("tuned", "mean"), ("paper", "sum"), ("release", "mean"), ("plain", "mean")]
)
def test_a_fidelity_sets_only_the_options_that_a_method_has(fidelity, reduction):
    config = Config.make({"method": "fine-tuning", "fidelity": fidelity})
    assert not hasattr(config.method_options, "lambdas")
    assert (config.batch_size, config.reduction) == (8, reduction)


def test_a_broken_plugin_does_not_hide_a_mistake(monkeypatch):
    """To find the method of an option, all methods are loaded."""

    def load():
        raise ModuleNotFoundError("no_such_module")

    point = SimpleNamespace(name="broken", load=load, dist=None, module="no_such_module")
    monkeypatch.setattr(METHODS, "_entry_points", {"broken": point})
    text = message_of(Config.make, {"method": "er", "method_options": {"mix": 1}})
    assert text == "'mix' is an option of agcn, agcn++, not of er: choose another method, or remove it"


@pytest.mark.parametrize("empty", [None, {}])
def test_an_empty_section_is_the_defaults(empty):
    assert Config.make({"stream_options": empty, "method_options": empty}) == Config.make()


def test_an_empty_file_is_the_defaults(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("# nothing but a comment\n")
    assert read_yaml(file) == {}
    file.write_text("")
    assert read_yaml(file) == {}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("- lr\n- seed\n", "must hold `option: value` lines, not ['lr', 'seed']"),
        ("just words\n", "must hold `option: value` lines"),
        ("3\n", "must hold `option: value` lines"),
        ("lr: 1\nseed: [1, 2\n", "line 3, is not valid YAML"),
        ("lr: 1\nseed: 1: 2\n", "line 2, is not valid YAML"),
    ],
    ids=lambda value: value[:20].strip() if isinstance(value, str) else value,
)
def test_bad_yaml(tmp_path, text, part):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    message = message_of(read_yaml, file)
    assert str(file) in message
    assert part in message


def test_a_large_file_is_not_read(tmp_path):
    file = tmp_path / "large.yaml"
    file.write_text("#" * MAX_YAML_BYTES)
    assert read_yaml(file) == {}
    file.write_text("#" * (MAX_YAML_BYTES + 1))
    assert message_of(read_yaml, file) == f"{file} is larger than 1,000,000 bytes: not a configuration"


def test_a_missing_file_and_a_folder(tmp_path):
    missing = tmp_path / "missing.yaml"
    assert message_of(read_yaml, missing) == f"cannot read the configuration {missing}: No such file or directory"
    assert str(tmp_path) in message_of(read_yaml, tmp_path)
    file = tmp_path / "file"
    file.touch()
    assert str(file / "a.yaml") in message_of(read_yaml, file / "a.yaml")


@pytest.mark.parametrize("section", ["stream_options", "method_options"])
@pytest.mark.parametrize("value", [3, "classes", ["classes"], True])
def test_a_section_of_the_wrong_type(section, value):
    message = message_of(Config.make, {section: value})
    assert section in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"leraning_rate": 1}, ["'leraning_rate'", "known:", "backbone_lr"]),
        ({"batchsize": 1}, ["'batchsize'", "did you mean 'batch_size'?"]),
        ({3: 4}, ["'3'"]),
        ({"stream_options": {"clases": 3}}, ["'clases'", "stream", "did you mean 'classes'?"]),
        ({"method_options": {"lamdas": 3}}, ["'lamdas'", "method", "did you mean 'lambdas'?"]),
        ({"stream": "scenez"}, ["stream", "did you mean 'scenes'?"]),
        ({"method": "acgn"}, ["method", "did you mean 'agcn'?"]),
        ({"method": ["agcn"]}, ["method", "known: agcn"]),
        ({"method": None}, ["method", "known: agcn"]),
        ({"fidelity": "papr"}, ["fidelity", "did you mean 'paper'?"]),
        ({"fidelity": 3}, ["fidelity", "known: paper"]),
        ({"batch_norm": "froze"}, ["batch_norm", "did you mean 'frozen'?"]),
        ({"augment": "flop"}, ["augment", "did you mean 'flip'?"]),
        ({"pool": "mean"}, ["pool", "known: avg, max"]),
        ({"precision": "fp16"}, ["precision", "known: auto, bf16, fp32"]),
        ({"seed": "x"}, ["seed must be a whole number", "'x'"]),
        ({"seed": -1}, ["seed must be at least 0"]),
        ({"seed": 2**31}, ["seed must be at most 2147483647"]),
        ({"batch_size": 0}, ["batch_size must be at least 1"]),
        ({"lr": 0}, ["lr must be more than 0"]),
        ({"word_norm": 0}, ["word_norm must be more than 0"]),
        ({"checkpoint_seconds": -1}, ["checkpoint_seconds must be at least 0"]),
        ({"method_options": {"lambdas": [1, 2]}}, ["lambdas takes 3 values, not 2"]),
        ({"method_options": {"lambdas": [1, 2, -3]}}, ["lambdas must be at least 0", "-3"]),
        ({"method_options": {"mix": 1.5}}, ["mix must be at most 1"]),
        ({"method_options": {"activate_output": "no"}}, ["activate_output must be true or false"]),
        ({"stream_options": {"classes": 0}}, ["classes must be at least 1"]),
        ({"stream_options": {"classes": 1000}}, ["30 classes", "1000"]),
        ({"stream_options": {"tasks": 21}}, ["20 classes", "21 tasks"]),
        ({"stream_options": {"train_images": 4}}, ["4 training images", "5 tasks"]),
        ({"stream_options": {"size": 16}}, ["size must be at least 32"]),
    ],
    ids=str,
)
def test_bad_values_are_named(values, parts):
    message = message_of(Config.make, values)
    for part in parts:
        assert part in message
