"""Plans of comparisons and leaderboards: rows, runs, folders, and which run gets which option."""

from pathlib import Path

import pytest
from engine.small_runs import error_of

from lifelabel.errors import UserError
from lifelabel.search.comparison import existing_boards, make_boards, make_plan, method_variants, study_variants


def test_a_plan_has_every_variant_with_every_seed_and_order():
    plan = make_plan(method_variants(["er", "multi-task"]), [3, 0, 3], 2, Path("out"), {"lr": 0.5}, {"lr": 0.25})
    joint, er = (plan.runs_of(variant) for variant in plan.variants)
    folders = ["-s3", "-s0", "-o1-s3", "-o1-s0"]
    assert [run.folder for run in joint] == [Path("out") / f"multi-task{end}" for end in folders]
    assert [run.folder for run in er] == [Path("out") / f"er{end}" for end in folders]
    assert er[2].name == "er, seed 3, task order 1" and joint[1].name == "multi-task, seed 0"
    assert er[2].values == {"lr": 0.25, "method": "er", "method_options": {}, "seed": 3, "task_order": 1}


def test_the_orders_of_a_stream_with_overlapping_tasks_are_those_of_its_classes(tmp_path):
    variants = method_variants(["er"])
    for given, kind in (
        ({"stream": "voc-b0-c4"}, "class"), ({"stream": "voc"}, "task"),
        ({"stream": "voc", "stream_options": {"protocol": "overlap"}}, "class"), ({"stream": "mine.yaml"}, "task"),
        ({"stream": str(tmp_path / "overlap.yaml")}, "class"), ({"stream": str(tmp_path / "disjoint.yaml")}, "task"),
    ):  # fmt: skip
        for protocol in ("overlap", "disjoint"):
            text = f"lifelabel_stream: 1\nname: a\nrules:\n  protocol: {protocol}\ntasks:\n- [a]\ntrain: [\n"
            (tmp_path / f"{protocol}.yaml").write_text(text)
        plan = make_plan(variants, [0], 2, Path("out"), {}, given)
        first, second = plan.runs_of(variants[0])
        assert (first.values[f"{kind}_order"], second.values[f"{kind}_order"]) == (0, 1), given
        assert len({"task_order", "class_order"} & second.values.keys()) == 1
        assert second.name == f"er, seed 0, {kind} order 1" and second.folder == Path("out/er-o1-s0")


def test_an_option_of_a_method_is_given_to_the_methods_that_have_it():
    given = {"method_options": {"buffer_images": 7, "mix": 0.1}}
    plan = make_plan(method_variants(["fine-tuning", "er", "agcn"]), [0], 1, Path("out"), {}, given)
    options = [plan.runs_of(variant)[0].values["method_options"] for variant in plan.variants]
    assert options == [{}, {"buffer_images": 7}, {"mix": 0.1}]


def test_a_preset_of_the_only_method_can_be_the_file_of_a_plan():
    preset = {"method": "er", "lr": 0.5}
    plan = make_plan(method_variants(["er"]), [0], 1, Path("out"), preset, {}, "preset.yaml")
    assert plan.runs_of(plan.variants[0])[0].values["lr"] == 0.5
    with pytest.raises(UserError, match=r"^preset.yaml: method: the runs of a comparison differ in it; "):
        make_plan(method_variants(["er", "lwf"]), [0], 1, Path("out"), preset, {}, "preset.yaml")


def test_folders_of_a_study_are_numbered():
    assert [variant.folder for variant in study_variants("acm")] == [f"acm-{n}" for n in range(1, 6)]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"seed": 1}, "--set seed: the runs of a comparison differ in it; remove it, and give --seeds"),
        ({"task_order": 1}, "--set task_order: the runs of a comparison differ in it; remove it, and give --orders"),
        ({"method_options": {"lambdas": 1}}, "method.lambdas: the rows of this study differ in it; remove it"),
        ({"method_options": 3}, "method_options must hold `option: value` lines"),
    ],
    ids=str,
)
def test_mistakes_are_reported_before_the_first_run(given, line):
    assert error_of(make_plan, study_variants("lambdas"), [0], 1, Path("out"), {}, given) == line


# Leaderboards

STREAMS = ["scenes", "coco-b0-c10"]


def boards(given, streams=STREAMS, methods=("er", "multi-task")):
    return make_boards(streams, ["tuned", "plain"], methods, [0, 2, 0], Path("out"), given)


def values(board, fidelity="tuned"):
    plan = board.plans[fidelity]
    return plan.runs_of(plan.variants[-1])[0].values


def test_folders_and_names_of_all_runs():
    planned = [run for board in boards({}) for run in board.runs]
    kinds = [f"{stream}-{fidelity}" for stream in STREAMS for fidelity in ("tuned", "plain")]
    runs = [f"{method}-s{seed}" for method in ("multi-task", "er") for seed in (0, 2)]
    assert [run.folder for run in planned] == [Path("out") / kind / run for kind in kinds for run in runs]
    assert planned[-1].name == "coco-b0-c10, plain, er, seed 2"
    assert planned[-1].values["fidelity"] == "plain" and planned[-1].values["stream"] == "coco-b0-c10"
    existing = existing_boards(STREAMS, ["tuned", "plain"], ["er", "multi-task"], [0, 2], Path("out"))
    found = [run for board in existing for run in board.runs]
    assert [(run.folder, run.name) for run in found] == [(run.folder, run.name) for run in planned]


def test_every_stream_gets_the_options_that_apply_to_it():
    of_photographs = {"weights": "none", "words": "glove.txt", "image_size": 64, "pool": "max"}
    of_stream = {"root": "coco", "train_images": 9, "labels": "known"}
    given = {**of_photographs, "lr": 0.5, "stream_options": of_stream, "method_options": {"buffer_images": 7}}
    scenes, photographs = map(values, boards(given))
    assert scenes["stream_options"] == {"train_images": 9, "labels": "known"}
    assert photographs["stream_options"] == {"root": "coco", "labels": "known"}
    assert not of_photographs.keys() & scenes.keys()
    assert of_photographs.items() <= photographs.items()
    for each in (scenes, photographs):
        assert (each["lr"], each["method_options"]) == (0.5, {"buffer_images": 7})


def test_a_file_gives_its_name_to_the_folder_and_need_not_exist_to_write_the_page(tmp_path):
    folder = tmp_path / "coco" / "Split-COCO"
    folder.mkdir(parents=True)
    (board,) = boards({}, [str(folder)])
    assert board.stream == "Split-COCO" and values(board)["stream"] == str(folder)
    (board,) = existing_boards(["elsewhere/Split-COCO.zip"], ["tuned"], ["er"], [0], Path("out"))
    assert board.plans["tuned"].out == Path("out/Split-COCO-tuned")


@pytest.mark.parametrize(
    ("given", "streams", "part"),
    [
        ({"weights": "none"}, ["scenes"], "weights is for streams of photographs, and none is given"),
        ({"stream_options": {"rot": 1}}, STREAMS, "unknown option of the chosen streams 'rot': did you mean 'root'?"),
        ({"stream_options": {"root": "x"}}, ["scenes"], "unknown option of the chosen streams 'root'"),
        ({"stream": "scenes"}, STREAMS, "--set stream: the runs of a leaderboard differ in it"),
        ({"fidelity": "plain"}, STREAMS, "give --fidelities"),
        ({"seed": 1}, STREAMS, "give --seeds"),
        ({"method_options": {"mix": 1}}, STREAMS, "option of the chosen methods 'mix'"),
        ({"task_order": 1}, STREAMS, "--set task_order: a leaderboard has the order of each stream"),
        ({"class_order": 1}, STREAMS, "--set class_order: a leaderboard has the order of each stream"),
        ({}, ["scenes", "a/scenes.csv"], "have the same name 'scenes'"),
    ],
    ids=str,
)
def test_mistakes_in_a_leaderboard(given, streams, part):
    assert part in error_of(boards, given, streams)


def test_only_overlapping_streams_get_several_passes():
    scenes, photographs = map(values, boards({"epochs": 3}))
    assert "epochs" not in scenes and photographs["epochs"] == 3
    with pytest.raises(UserError, match="overlapping tasks, and none is given"):
        boards({"epochs": 3}, ["scenes"])
