"""Every reader of files that a user can be given: how a valid file is written, how it is changed, and how it is read.

A reader returns, or raises a `UserError` of one line. Anything else is a failure. To add one, append to `READERS`.
"""

import csv
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from faults import mutations as change
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from support import data_sets
from support.drawn_images import encoded, noise
from support.models import change_info, write_images
from support.run_files import sign_checkpoint

import lifelabel
from lifelabel.config import presets
from lifelabel.config.config import Config
from lifelabel.engine import run as runs
from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.errors import UserError
from lifelabel.images.decode import open_image
from lifelabel.images.source import BadImage
from lifelabel.model.model_folder import read_model, read_trained
from lifelabel.nn.graph.words import embed
from lifelabel.nn.weights import read_file
from lifelabel.report.page import report_html
from lifelabel.report.tables import ResultTable, table_texts
from lifelabel.runs.details import read_details
from lifelabel.runs.finished import read_run
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.listing import list_runs
from lifelabel.search.tuner import _has_ended, _read_trial
from lifelabel.streams import build, manifest
from lifelabel.streams.conversion import convert
from lifelabel.streams.labelled_set import from_table
from lifelabel.utils.yaml_reader import read_yaml

CLASSES = ("cat", "dog", "boat", "sky")
ROWS = [(f"{n}.jpg", CLASSES[n % 4], CLASSES[(n + 1) % 4], "train" if n % 5 else "test") for n in range(20)]


@dataclass(frozen=True)
class Reader:
    """`write` makes valid files in an empty folder, `file` is the one that is changed, and `read` reads the folder.

    `repair` makes a digest of the changed file valid again, so that the reader behind the digest is tested too.
    """

    name: str
    file: str
    write: Callable[[Path, Path], object]
    """From the folder, and the folder of a finished run."""
    changed: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[Path], object]
    cost: int = 1
    """Inputs of a slow reader are as many times fewer."""
    repair: Callable[[Path], None] | None = None


def command(*args):
    """`lifelabel ARGS` in this process, with its output. An error of the user is raised as a `UserError`."""
    from lifelabel.cli import main as cli

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["lifelabel", *map(str, args)]
    code = None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    if code == 2:
        line = err.getvalue()
        assert line.startswith("error: ") and line.endswith("\n") and line.count("\n") == 1, line
        raise UserError(line.removeprefix("error: ").rstrip("\n"))
    assert code in (0, 1), (code, err.getvalue())
    return out.getvalue()


# Run folders


def copy_run(folder, run):
    shutil.copytree(run, folder, dirs_exist_ok=True)


def read_tables(folder):
    """What `lifelabel report` reads, without the page and the drawing of figures."""
    list(list_runs(folder))
    table = ResultTable.from_runs([read_run(folder)])
    table_texts(table)
    return table


def read_report(folder):
    return report_html(read_tables(folder))


def read_finished(folder):
    run = read_run(folder)
    return run.figures(), run.curve(), run.matrices, read_details(run)


def read_trial(folder):
    return _has_ended(folder) and _read_trial(1, "", {}, [folder])


def copy_unfinished(folder, run):
    copy_run(folder, run)
    path = folder / "metrics.json"
    path.write_text(path.read_text().replace('"finished": true', '"finished": false'))


def read_checkpoint(folder):
    if load_checkpoint(RunFolder(folder)) is None:
        raise UserError("no checkpoint")


@st.composite
def checkpoint_file(draw, data):
    """A checkpoint, changed as a zip file, in the pickle in it, or as bytes."""
    if zipfile.is_zipfile(io.BytesIO(data)) and draw(st.booleans()):
        try:
            return draw(change.zip_file(data))
        except (zipfile.BadZipFile, NotImplementedError):
            pass
    return draw(change.damaged(data))


def read_scores(folder):
    return command("metrics", folder / "scores.npz")


# Models


def copy_model(folder, run):
    shutil.copytree(run / "model", folder, dirs_exist_ok=True)
    noise(48, 40).save(folder / "image.png")


def predict(folder):
    return lifelabel.load(folder, "cpu").predict(folder / "image.png")


def compare_images(folder):
    return read_trained(folder, read_model(folder)[0])


def repair_model(folder):
    data = (folder / "model.safetensors").read_bytes()
    change_info(folder, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def repair_info(folder):
    with suppress(ValueError, TypeError, RecursionError):  # it is not a JSON object any more
        change_info(folder)


def write_pth(folder, run):
    torch.save({"conv.weight": torch.ones(4, 3, 3, 3), "fc.bias": torch.zeros(7)}, folder / "weights.pth")


def write_safetensors(folder, run):
    save_file({"conv.weight": torch.ones(4, 3, 3, 3)}, folder / "weights.safetensors", {"trained_on": "ImageNet"})


def write_words(folder, run):
    lines = [" ".join([word, *(f"{v:.3f}" for v in np.arange(5) / 7)]) for word in ("the", *CLASSES)]
    (folder / "words.txt").write_text("\n".join(lines) + "\n")


def read_weights(suffix):
    return lambda folder: read_file(folder / f"weights.{suffix}")


def read_words(folder):
    return embed(CLASSES, folder / "words.txt")


# Streams


def write_table(folder, run, suffix="csv"):
    with open(folder / f"photos.{suffix}", "w", newline="") as file:
        writer = csv.writer(file, delimiter="," if suffix == "csv" else "\t")
        writer.writerow(["image", "labels", "split"])
        writer.writerows([image, f"{a};{b}", part] for image, a, b, part in ROWS)


write_tsv = functools.partial(write_table, suffix="tsv")


def write_columns(folder, run):
    head = ",".join(["image", "split", *CLASSES])
    lines = [",".join([image, part, *(str(int(name in (a, b))) for name in CLASSES)]) for image, a, b, part in ROWS]
    (folder / "photos.csv").write_text("\n".join([head, *lines]) + "\n")


def write_parquet(folder, run):
    import pyarrow
    from pyarrow import parquet

    rows = [{"image": image, "labels": f"{a};{b}", "split": part} for image, a, b, part in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "photos.parquet")


def described(stream):
    return stream.fingerprint, stream.problems.lines(), list(stream.classes), stream.groups


def stream_of(name, **options):
    """A reader of the stream in a file, or of a data set."""
    is_file = "." in name
    return lambda folder: described(build(str(folder / name) if is_file else name, {"root": str(folder), **options}))


def inspect(folder):
    # without charts: the JavaScript engine of vl-convert hangs in a fork of a process that has used it
    sys.modules["vl_convert"] = None
    options = ("--root", folder, "--set", "tasks=2", "--no-sheets")
    shutil.rmtree(folder / "look", ignore_errors=True)
    return command("data", "inspect", folder / "photos.csv", *options, "--out", folder / "look")


def write_inspected(folder, run):
    write_table(folder, run)
    write_images(folder, len(ROWS), 20, ".jpg")


def write_order(folder, run):
    write_table(folder, run)
    (folder / "order.txt").write_text("cat\ndog\n\nboat\nsky\n")


def ordered(folder):
    return stream_of("photos.csv", order=str(folder / "order.txt"))(folder)


def write_manifest(folder, run):
    write_table(folder, run)
    stream = build(str(folder / "photos.csv"), {"root": str(folder), "tasks": 2})
    manifest.write(stream, folder / "stream.yaml", complete=True)


def write_coco(folder, run):
    for part, numbers in (("train2014", range(8)), ("val2014", range(8, 12))):
        labels = {f"COCO_{part}_{n:012}.jpg": [CLASSES[n % 4], CLASSES[(n + 1) % 4]] for n in numbers}
        data_sets.write_instances(folder, part, CLASSES, labels)


def write_prs(folder, run):
    """COCO, and lists of two tasks over it."""
    write_coco(folder, run)
    lists = {"multihot_map": {name: number for number, name in enumerate(CLASSES)}}
    for kind, numbers in (("train", range(8)), ("test", range(8, 12))):
        for task in (0, 1):
            lists[f"{kind}_task{task}_id_coco"] = [n for n in numbers if n % 4 // 2 == task]
    lists |= {"major_cats": ["cat"], "moderate_cats": ["dog", "sky"], "minor_cats": ["boat"]}
    for name, content in lists.items():
        data_sets.write(folder / f"{name}.json", content)


def prs(folder):
    return stream_of("cocoseq", lists=str(folder))(folder)


def write_voc(folder, run):
    sets = {"trainval": ("000005", "000007", "000008", "000009"), "test": ("000001", "000002")}
    objects = [("cat", False), ("sofa", False)], [("person", False), ("dog", False)]
    found = {part: {key: objects[number % 2] for number, key in enumerate(keys)} for part, keys in sets.items()}
    data_sets.write_voc(folder, "2007", found)


def write_nus_wide(folder, run):
    labels = {f"a/{n:04}_{n}.jpg": {c for k, c in enumerate(CLASSES) if (n + k) % 4 < 2} for n in range(12)}
    names = list(labels)
    lists = {"Train": names[:8], "Test": names[8:]}
    data_sets.write_nus_wide(folder, CLASSES, labels, lists, of_lists=True)


PUBLISHED = {
    "task0/train.csv": "a.jpg,1,0\nb.jpg,0,1\n", "task1/train.csv": "c.jpg,1\nd.jpg,1\n",
    "task0/test.csv": "t.jpg,1,1\n", "task1/test.csv": "u.jpg,0,1,1\nt.jpg,1,1,0\n", "classes.txt": "cat\ndog\nboat\n",
}  # fmt: skip


def write_published(folder, run):
    (folder / "split.zip").write_bytes(change.zip_of((f"Split/{name}", text) for name, text in PUBLISHED.items()))


def published_file(data):
    return change.zip_file(data, change.text_file)


def write_shards(folder, run):
    write_table(folder, run)
    with tarfile.open(folder / "photos.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for seed, (name, *_) in enumerate(ROWS):
            data, member = encoded(noise(20, 16, seed), "JPEG"), tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def read_shards(folder):
    shutil.rmtree(folder / "cache", ignore_errors=True)  # an index of the shard before
    os.environ["LIFELABEL_CACHE"] = str(folder / "cache")
    stream = build(str(folder / "photos.csv"), {"root": str(folder / "photos.tar"), "tasks": 2})
    for row in range(len(stream.train.images)):
        with suppress(BadImage):
            stream.train.images.read(row)


# Exports of annotation tools

_LABEL = {"_cls": "Classifications", "classifications": [{"_cls": "Classification", "label": "dog"}]}
_RESULT = {"from_name": "tag", "to_name": "img", "type": "choices", "value": {"choices": ["dog", "cat"]}}
EXPORTS = {
    "label-studio": [
        {"id": n, "data": {"image": f"{n}.jpg"}, "annotations": [{"id": 5, "result": [_RESULT]}]} for n in range(3)
    ],
    "coco": {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3}, {"id": 2, "image_id": 8, "category_id": 4}],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}],
    },
    "datumaro": {
        "categories": {"label": {"labels": [{"name": "dog"}, {"name": "cat"}]}},
        "items": [{"id": "a", "annotations": [{"type": "label", "label_id": 1}], "image": {"path": "a.jpg"}}],
    },
    "fiftyone": {"samples": [{"filepath": "/x/a.jpg", "tags": ["train"], "labels": _LABEL}]},
}


def write_export(kind):
    return lambda folder, run: (folder / "export.json").write_text(json.dumps(EXPORTS[kind]))


def convert_export(folder):
    return convert(folder / "export.json", folder / "out.csv", overwrite=True).problems.lines()


def write_yolo(folder, run):
    """A YOLO data set of two images."""
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [dog, cat]\n")
    for split in ("train", "val"):
        data_sets.write(folder / "images" / split / "a.png", "")
        data_sets.write(folder / "labels" / split / "a.txt", "0 0.5 0.5 0.2 0.2\n1 0.1 0.1 0.3 0.1 0.2 0.2\n")


def write_image_folder(suffix):
    """An image folder of Hugging Face, with metadata.`suffix`."""
    rows = [{"file_name": f"{name}.png", "label": label} for name, label in (("a", "dog"), ("b", "cat"))]
    lines = {"jsonl": [json.dumps(row) for row in rows], "csv": ["file_name,label", "a.png,dog", "b.png,cat"]}

    def write(folder, run):
        data_sets.write(folder / "train" / f"metadata.{suffix}", "\n".join(lines[suffix]) + "\n")
        for name in ("a.png", "b.png"):
            data_sets.write(folder / "train" / name, "")

    return write


def convert_folder(folder):
    return convert(folder, folder.parent / "out.csv", overwrite=True).problems.lines()


# Images

IMAGES = ("jpg", "png", "gif", "bmp", "webp", "tiff")


def write_image(suffix):
    def write(folder, run):
        image, exif = noise(37, 29), Image.Exif()
        exif[274] = 6
        image.convert("P" if suffix == "gif" else "RGB").save(folder / f"image.{suffix}", exif=exif)

    return write


def decode(suffix):
    def read(folder):
        try:
            return open_image(folder / f"image.{suffix}").tobytes()
        except BadImage as error:
            raise UserError(str(error)) from None

    return read


# Configurations


def write_config(folder, run):
    (folder / "config.yaml").write_text(Config.make({"method": "agcn"}).to_yaml())


def read_config(folder):
    return Config.make(read_yaml(folder / "config.yaml")).to_yaml()


def write_preset(folder, run):
    origin = "# command: lifelabel tune --method er\n# reached: 71.23 mAP\n"
    (folder / "er.yaml").write_text(f"{origin}method: er\nlr: 0.001\nmethod_options:\n  buffer_images: 50\n")


def read_preset(folder):
    path = folder / "er.yaml"
    return presets.parse_origin(path.read_bytes().decode(errors="replace")), Config.make(read_yaml(path)).to_yaml()


def labelled(folder):
    return from_table(folder / "photos.csv", folder, "all").fingerprint()


READERS = [
    Reader("config.yaml", "config.yaml", copy_run, change.yaml_file, read_tables, 2),
    Reader("config.yaml of a run that is resumed", "config.yaml", copy_run, change.yaml_file, runs.resume, 2),
    *(
        Reader(f"{file}{use}", file, copy_run, change.json_file, read, cost)
        for file in ("metrics.json", "environment.json")
        for use, read, cost in (("", read_tables, 2), (" in a report", read_report, 20), (" of a trial", read_trial, 1))
    ),
    Reader("acm.npz", "acm.npz", copy_run, change.npz_file, read_finished),
    Reader("acm.npz in a report", "acm.npz", copy_run, change.npz_file, read_report, 20),
    Reader("details of a task", "details/task-2.npz", copy_run, change.npz_file, read_finished),
    Reader("examples of details", "details/examples.npz", copy_run, change.npz_file, read_finished),
    Reader("details in a report", "details/task-2.npz", copy_run, change.npz_file, read_report, 20),
    # Hypothesis keeps every input in memory, and a checkpoint is large
    Reader("checkpoint.pt", "checkpoint.pt", copy_unfinished, checkpoint_file, read_checkpoint, 4),
    Reader(
        "checkpoint.pt with a valid digest", "checkpoint.pt", copy_unfinished, checkpoint_file, read_checkpoint, 4,
        lambda folder: sign_checkpoint(folder / "checkpoint.pt"),
    ),
    Reader("scores.npz", "scores.npz", copy_run, change.npz_file, read_scores, 2),
    Reader("model.json", "model.json", copy_model, change.json_file, predict, 4),
    Reader("model.json with a valid digest", "model.json", copy_model, change.json_file, predict, 4, repair_info),
    Reader("model.safetensors", "model.safetensors", copy_model, change.safetensors_file, predict, 4),
    Reader(
        "model.safetensors with a valid digest", "model.safetensors", copy_model, change.safetensors_file, predict, 4,
        repair_model,
    ),
    Reader("training-images.bin", "training-images.bin", copy_model, change.damaged, compare_images, 4),
    Reader("weights.pth", "weights.pth", write_pth, change.zip_file, read_weights("pth")),
    Reader(
        "weights.safetensors", "weights.safetensors", write_safetensors, change.safetensors_file,
        read_weights("safetensors"),
    ),
    Reader("word vectors", "words.txt", write_words, change.text_file, read_words),
    Reader("configuration", "config.yaml", write_config, change.yaml_file, read_config),
    Reader("preset", "er.yaml", write_preset, change.yaml_file, read_preset),
    Reader("CSV table", "photos.csv", write_table, change.text_file, stream_of("photos.csv", tasks=2)),
    Reader("CSV table of columns", "photos.csv", write_columns, change.text_file, stream_of("photos.csv", tasks=2)),
    Reader("CSV table that is inspected", "photos.csv", write_inspected, change.text_file, inspect, 20),
    Reader("CSV table of labelled images", "photos.csv", write_table, change.text_file, labelled),
    Reader("TSV table", "photos.tsv", write_tsv, change.text_file, stream_of("photos.tsv", tasks=2)),
    Reader("Parquet table", "photos.parquet", write_parquet, change.damaged, stream_of("photos.parquet", tasks=2)),
    Reader("order of classes", "order.txt", write_order, change.text_file, ordered),
    Reader("manifest", "stream.yaml", write_manifest, change.yaml_file, stream_of("stream.yaml")),
    *(
        Reader(name, file, write, change.json_file, read)
        for name, file, write, read in (
            ("COCO instances", "annotations/instances_train2014.json", write_coco, stream_of("coco", tasks=2)),
            ("list of PRS", "train_task0_id_coco.json", write_prs, prs),
            ("classes of PRS", "multihot_map.json", write_prs, prs),
            ("group of PRS", "major_cats.json", write_prs, prs),
        )
    ),
    *(
        Reader(f"VOC {name}", f"VOCdevkit/VOC2007/{file}", write_voc, change.text_file, stream_of("voc", tasks=1))
        for name, file in (("annotation", "Annotations/000005.xml"), ("list", "ImageSets/Main/trainval.txt"))
    ),
    *(
        Reader(f"NUS-WIDE {name}", file, write_nus_wide, change.text_file, stream_of("nus-wide", tasks=2))
        for name, file in (
            ("images", "ImageList/TrainImagelist.txt"), ("concepts", "ConceptsList/Concepts81.txt"),
            ("labels", "Groundtruth/TrainTestLabels/Labels_cat_Train.txt"),
        )
    ),
    Reader("published split", "split.zip", write_published, published_file, stream_of("split.zip")),
    *(Reader(f"export of {k}", "export.json", write_export(k), change.json_file, convert_export) for k in EXPORTS),
    Reader("data.yaml of YOLO", "data.yaml", write_yolo, change.yaml_file, convert_folder),
    Reader("labels of YOLO", "labels/train/a.txt", write_yolo, change.text_file, convert_folder),
    Reader("metadata.jsonl", "train/metadata.jsonl", write_image_folder("jsonl"), change.json_lines, convert_folder),
    Reader("metadata.csv", "train/metadata.csv", write_image_folder("csv"), change.text_file, convert_folder),
    *(Reader(f"image.{kind}", f"image.{kind}", write_image(kind), change.damaged, decode(kind)) for kind in IMAGES),
    Reader("tar shard", "photos.tar", write_shards, change.tar_file, read_shards),
]  # fmt: skip
