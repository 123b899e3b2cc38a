"""Plans of leaderboards: folders, and which stream gets which option."""

from pathlib import Path

import pytest

from lifelabel.errors import UserError
from lifelabel.search.leaderboard_plan import existing_boards, make_boards

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
        ({}, ["scenes", "a/scenes.csv"], "have the same name 'scenes'"),
    ],
    ids=str,
)
def test_mistakes(given, streams, part):
    with pytest.raises(UserError) as caught:
        boards(given, streams)
    assert part in str(caught.value)


def test_only_overlapping_streams_get_several_passes():
    scenes, photographs = map(values, boards({"epochs": 3}))
    assert "epochs" not in scenes and photographs["epochs"] == 3
    with pytest.raises(UserError, match="overlapping tasks, and none is given"):
        boards({"epochs": 3}, ["scenes"])


@pytest.mark.parametrize("name", ["task_order", "class_order"])
def test_a_leaderboard_has_the_order_of_each_stream(name):
    with pytest.raises(UserError, match=f"--set {name}: a leaderboard has the order of each stream"):
        boards({name: 1})
