"""The file of a checkpoint: damage is found before the content is used."""

import io
import random
import zipfile

import pytest
import torch
from support.run_files import sign_checkpoint

from lifelabel.engine.checkpoint_file import read_checkpoint, write_checkpoint
from lifelabel.errors import UserError
from lifelabel.runs.folder import DamagedCheckpoint

STATE = {"task": 2, "method": {"w": torch.arange(64.0), "names": ["a", "b"]}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with open(path, "wb") as handle:
        write_checkpoint(handle, STATE)
    return path


def test_a_checkpoint_is_read_as_it_was_written_also_by_torch(path):
    for state in (read_checkpoint(path), torch.load(path, weights_only=True)):
        assert state["task"] == 2 and state["method"]["names"] == ["a", "b"]
        assert torch.equal(state["method"]["w"], STATE["method"]["w"])


def test_every_flipped_bit_is_found(path):
    data, rng = path.read_bytes(), random.Random(0)
    in_digest = range(8 * (len(data) - 82), 8 * len(data), 5)
    for position in (*rng.sample(range(8 * len(data)), 200), *in_digest):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint, match=r"checkpoint.pt is damaged or cut short"):
            read_checkpoint(path)


@pytest.mark.parametrize("cut", [1, 64, 81, 82, 83, 500])
def test_a_file_that_is_cut_short_is_found(path, cut):
    data = path.read_bytes()
    for damaged in (data[:-cut], data[cut:], data[:-cut] + bytes(cut), data + bytes(cut)):
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint):
            read_checkpoint(path)


def test_a_checkpoint_of_another_version_is_refused(path):
    torch.save({"format": 3, **STATE}, path)
    with pytest.raises(DamagedCheckpoint, match="it has no SHA-256"):
        read_checkpoint(path)
    with open(path, "wb") as handle:
        write_checkpoint(handle, {**STATE, "format": 4})
    with pytest.raises(UserError, match="is not a checkpoint of this version"):
        read_checkpoint(path)


class FullDisk(io.BytesIO):
    """Has space for some bytes."""

    def __init__(self, space):
        super().__init__()
        self.space = space

    def write(self, data):
        if self.tell() + len(data) > self.space:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("space", [0, 100, 1000])
def test_the_error_of_a_full_disk_is_raised_as_it_is(space):
    with pytest.raises(OSError, match="No space left on device") as error:
        write_checkpoint(FullDisk(space), STATE)
    assert error.value.errno == 28 and error.value.__cause__ is None


def test_an_archive_that_unpacks_to_more_than_its_size_is_refused(tmp_path):
    path, packed = tmp_path / "checkpoint.pt", tmp_path / "packed.pt"
    torch.save({"zeros": torch.zeros(1_000_000)}, path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small:
        for member in archive.infolist():
            small.writestr(member.filename, archive.read(member))
    assert torch.load(packed, weights_only=True)["zeros"].numel() == 1_000_000  # torch would load it
    sign_checkpoint(packed)
    with pytest.raises(DamagedCheckpoint, match="holds more than its size"):
        read_checkpoint(packed)
