"""Untrusted .npz files."""

import io
import struct
import zipfile

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.utils import arrays
from lifelabel.utils.arrays import read_arrays, read_headers, read_rows


def write_member(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)


def header(shape, descr="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def raw_header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


LONG_HEADER = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 20) + bytes(1 << 20)


def test_arrays_are_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(6).reshape(2, 3), names=np.array(["é", "b"]))
    found = read_arrays(tmp_path / "x.npz")
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["names"].tolist() == ["é", "b"]


def test_a_small_file_of_a_large_array_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1_000_000))
    with pytest.raises(UserError, match="more than 1,000,000 bytes"):
        read_arrays(tmp_path / "x.npz", 1_000_000)


@pytest.mark.parametrize(
    "content",
    [
        header((10**12,)) + bytes(8), header((2**40, 2**40)), header((3,)) + bytes(8), b"", b"\x93NUMPY\x01", b"text",
        header((-1, -4)) + bytes(32), raw_header("{1: 2, 'a': 3}"),
        raw_header("(" * 9000), raw_header("-" * 9000 + "1"), raw_header("{'descr': '<f8"), raw_header("\\"),
        raw_header("{'descr': [], 'fortran_order': False, 'shape': ()}"), LONG_HEADER,
    ],
    ids=[
        "huge", "overflow", "short", "empty", "cut", "text", "negative", "keys", "brackets", "signs",
        "open", "backslash", "no-type", "long",
    ],
)  # fmt: skip
@pytest.mark.parametrize("read", [read_arrays, read_headers, lambda path: list(read_rows(path, "a"))])
def test_a_damaged_array_is_one_line(tmp_path, content, read):
    write_member(tmp_path / "x.npz", content)
    with pytest.raises(UserError, match="damaged"):
        read(tmp_path / "x.npz")


def test_objects_are_not_read(tmp_path):
    write_member(tmp_path / "x.npz", header((1, 1), "|O") + bytes(8))
    for read in (read_arrays, lambda path: list(read_rows(path, "a"))):
        with pytest.raises(UserError, match="damaged"):
            read(tmp_path / "x.npz")


def test_rows_are_read_in_blocks(tmp_path, monkeypatch):
    array = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "x.npz", a=array, b=np.asfortranarray(array), c=array[:0])
    monkeypatch.setattr(arrays, "_BLOCK", 50)
    blocks = list(read_rows(tmp_path / "x.npz", "a"))
    assert [len(block) for block in blocks] == [2, 2] and np.array_equal(np.concatenate(blocks), array)
    for name in ("b", "c", "missing"):
        with pytest.raises(UserError, match="damaged"):
            list(read_rows(tmp_path / "x.npz", name))
    assert read_headers(tmp_path / "x.npz")["b"] == ((4, 3), True, np.float64)


def test_arrays_that_are_not_wanted_are_not_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1000), b=np.zeros(1_000_000))
    assert list(read_arrays(tmp_path / "x.npz", 10_000, {"a"})) == ["a"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", bytes(100)])
def test_a_file_that_is_no_archive_is_one_line(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_arrays(tmp_path / "x.npz")
