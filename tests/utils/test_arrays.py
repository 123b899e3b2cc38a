"""Untrusted .npz files."""

import io
import zipfile

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.utils.arrays import read_arrays


def write_member(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)


def header(shape, descr="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


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
        header((1,), "|O") + bytes(8),
    ],
    ids=["huge", "overflow", "short", "empty", "cut", "text", "objects"],
)  # fmt: skip
def test_a_damaged_array_is_one_line(tmp_path, content):
    write_member(tmp_path / "x.npz", content)
    with pytest.raises(UserError, match="damaged"):
        read_arrays(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", bytes(100)])
def test_a_file_that_is_no_archive_is_one_line(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_arrays(tmp_path / "x.npz")
