"""Files that are made to run code, to fill the memory, or to be shown as markup.

Tests of the readers check single formats. Here each kind of attack goes to all readers that it could concern.
"""

import io
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from faults.fuzz import in_child
from faults.mutations import members_of, npy_of, zip_of
from faults.readers import READERS, command
from support.drawn_images import noise

from lifelabel.errors import UserError
from lifelabel.report.page import report_html
from lifelabel.report.tables import ResultTable, table_texts
from lifelabel.runs.finished import read_run

BY_NAME = {reader.name: reader for reader in READERS}


class Code:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def object_npz(data, code):
    """An .npz file in which every array is a pickled object."""
    array = np.empty(1, object)
    array[0] = code
    return zip_of([(name, npy_of(array)) for name, _ in members_of(data)])


def torch_file(data, code):
    out = io.BytesIO()
    torch.save({"conv.weight": code}, out)
    return out.getvalue()


def yaml_tag(data, code):
    return f"seed: !!python/object/apply:os.mkdir ['{code.path}']\n".encode()


def bare(data, code):
    return pickle.dumps({"a": code})


CODE = {
    "acm.npz": object_npz, "details of a task": object_npz, "examples of details": object_npz, "scores.npz": object_npz,
    "checkpoint.pt with a valid digest": torch_file, "weights.pth": torch_file, "config.yaml": yaml_tag,
    "configuration": yaml_tag, "preset": yaml_tag, "manifest": yaml_tag, "model.safetensors with a valid digest": bare,
    "weights.safetensors": bare, "Parquet table": bare, "CSV table": bare, "published split": bare, "image.tiff": bare,
}  # fmt: skip


def read_in_child(reader, folder, run, change):
    """Write a valid file, change it, and read it in a process with limited memory. Returns the line of an error."""
    reader.write(folder, run)
    path = folder / reader.file
    path.write_bytes(change(path.read_bytes()))
    if reader.repair:
        reader.repair(folder)

    def read():
        try:
            reader.read(folder)
        except UserError as error:
            return str(error)
        return ""

    return in_child(read, 30)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("name", CODE)
def test_code_in_a_file_is_not_run(name, finished_run, tmp_path, count):
    (tmp_path / "files").mkdir()
    code = Code(tmp_path / "was run")
    line = read_in_child(BY_NAME[name], tmp_path / "files", finished_run, lambda data: CODE[name](data, code))
    assert not code.path.exists()
    # the run resumes from the checkpoint before a damaged one
    assert line or name.startswith(("config.yaml", "checkpoint.pt")), "the file was accepted"
    count(attacks=1)


def merge_keys(data):
    """483 bytes of YAML that stand for billions of keys."""
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    return "\n".join([*lines, ""]).encode()


def entities(data):
    inner = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    kind = f'<?xml version="1.0"?><!DOCTYPE annotation [<!ENTITY a0 "lol">{inner}]>'
    return f"{kind}<annotation><object><name>&a11;</name></object></annotation>".encode()


def zip_bomb(data):
    """The same members, of three gigabytes each when they are unpacked. The same block of zeros repeats."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as new:
        for name in archive.namelist()[:3]:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
            body = deflate.compress(archive.read(name)[:128]) + deflate.flush(zlib.Z_FULL_FLUSH)
            zeros = deflate.compress(bytes(1 << 24)) + deflate.flush(zlib.Z_FULL_FLUSH)
            body += zeros * 192 + deflate.flush()
            info = zipfile.ZipInfo(name)
            info.compress_type, info.compress_size = zipfile.ZIP_DEFLATED, len(body)
            info.file_size, info.header_offset = 128 + 192 * (1 << 24), new.fp.tell()
            info.CRC = 0  # only a reader that unpacks all of it finds out
            new.fp.write(info.FileHeader(False) + body)
            new.filelist.append(info)
            new.start_dir, new._didModify = new.fp.tell(), True
    return out.getvalue()


def png_bomb(data):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(10**7))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BOMBS = [
    ("config.yaml of a run that is resumed", merge_keys), ("configuration", merge_keys), ("preset", merge_keys),
    ("manifest", merge_keys),
    ("VOC annotation", entities), ("scores.npz", zip_bomb), ("acm.npz", zip_bomb), ("details of a task", zip_bomb),
    ("published split", zip_bomb), ("weights.pth", zip_bomb), ("image.png", png_bomb),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("name", "bomb"), BOMBS, ids=lambda value: getattr(value, "__name__", value))
def test_a_small_file_does_not_fill_the_memory(name, bomb, finished_run, tmp_path, count):
    read_in_child(BY_NAME[name], tmp_path, finished_run, bomb)
    count(attacks=1)


# Names that are markup

NAMES = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "=HYPERLINK(1)", "@SUM(1)", "[red]bold[/red]",
    "*a* `b` [c](http://d)", "{{7*7}}", "$(id)",
)  # fmt: skip


@pytest.fixture(scope="module")
def named_run(tmp_path_factory):
    """A finished run on a table whose classes and images are called like markup."""
    import lifelabel

    folder = tmp_path_factory.mktemp("names")
    lines = ["image,labels,split"]
    for n in range(32):
        image = f"<b>{n}</b> =1+{n}.png".replace("/", "_")
        noise(40, 30, n).save(folder / image)
        labels = {NAMES[n % 8], NAMES[(n // 4) % 8]}
        lines.append(f'"{image}","{";".join(sorted(labels))}",{"test" if n % 8 > 3 else "train"}')
    (folder / "photos.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"order": "frequency", "tasks": 1}
    lifelabel.train(
        folder / "run", method="fine-tuning", stream=str(folder / "photos.csv"), stream_options=options,
        root=str(folder), backbone="tiny", weights="none", image_size=32, device="cpu",
    )  # fmt: skip
    return folder / "run"


def test_names_are_escaped_in_the_report_the_tables_and_the_model_card(named_run, count):
    table = ResultTable.from_runs([read_run(named_run)])
    page, card = report_html(table), (named_run / "model/README.md").read_text(encoding="utf-8")
    for markup in ("<script>alert(1)", "<img src=x", "<b>1<"):
        assert markup not in page and markup not in card
    assert "[c](http://d)" not in card
    for line in table_texts(table)["CSV"].splitlines():
        assert not any(cell.lstrip('"').startswith(("=", "@")) for cell in line.split(","))
    count(attacks=len(NAMES))


def test_names_are_shown_as_they_are_in_the_terminal(named_run, tmp_path, count):
    noise(40, 30).save(tmp_path / "[red]x[_red].png")
    out = command("predict", named_run, tmp_path / "[red]x[_red].png", "--top", "8")
    assert "[red]bold[/red]" in out and "[red]x[_red].png" in out and "\x1b" not in out
    count(attacks=1)
