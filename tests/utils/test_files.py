"""Files are written completely or not at all, and read up to a limit."""

import os

import pytest

from lifelabel.errors import UserError
from lifelabel.utils.files import atomic_write, partial_name, read_limited, write_text


@pytest.fixture
def path(tmp_path):
    write_text(tmp_path / "config.yaml", "seed: 1\n")
    return tmp_path / "config.yaml"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_replaces_the_old_one_at_the_end(path):
    with atomic_write(path) as handle:
        handle.write(b"seed: 2\n")
        assert path.read_text() == "seed: 1\n"
        assert names(path.parent) == [partial_name("config.yaml"), "config.yaml"]
    assert path.read_text() == "seed: 2\n"
    assert names(path.parent) == ["config.yaml"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_temporary_file(path, error):
    with pytest.raises(error), atomic_write(path) as handle:
        handle.write(b"half of")
        handle.flush()
        raise error
    assert path.read_text() == "seed: 1\n"
    assert names(path.parent) == ["config.yaml"]


def test_a_write_error_is_a_user_error(path):
    expected = r"^cannot write .*config.yaml: No space left on device; free space, or choose another folder$"
    with pytest.raises(UserError, match=expected), atomic_write(path):
        raise OSError(28, "No space left on device")
    assert path.read_text() == "seed: 1\n"
    (path.parent / "sub").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*sub"):
        write_text(path.parent / "sub", "a folder of this name exists")
    assert names(path.parent) == ["config.yaml", "sub"]


def test_two_writers_with_their_own_temporary_files(path):
    with atomic_write(path, ".one") as one, atomic_write(path, ".two") as two:
        one.write(b"one")
        two.write(b"two")
    assert path.read_text() == "one" and names(path.parent) == ["config.yaml"]


def test_a_file_is_read_up_to_a_limit(path):
    assert read_limited(path, 8) == b"seed: 1\n"
    with pytest.raises(UserError, match=r"config.yaml has more than 7 bytes: this cannot be the right file"):
        read_limited(path, 7)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", ".", "endless"):
        with pytest.raises(UserError, match="is not a regular file: give the path of a file"):
            read_limited(tmp_path / name, 100)
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
        read_limited(tmp_path / "missing", 100)
