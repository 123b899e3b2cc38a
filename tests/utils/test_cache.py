"""Arrays in the cache folder."""

import multiprocessing

import numpy as np
import pytest

from lifelabel.utils import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_arrays_are_saved_and_loaded(folder):
    assert cache.load("words") is None
    cache.save("words", a=np.arange(3), b=np.array(["x"]))
    loaded = cache.load("words")
    assert loaded["a"].tolist() == [0, 1, 2] and loaded["b"].tolist() == ["x"]
    assert [entry.name for entry in folder.iterdir()] == ["words.npz"]


def test_a_damaged_file_is_no_file(folder):
    cache.save("words", a=np.arange(1000))
    data = (folder / "words.npz").read_bytes()
    for damaged in (b"", data[:100], data[:-1]):
        (folder / "words.npz").write_bytes(damaged)
        assert cache.load("words") is None


def test_a_folder_that_cannot_be_written_saves_nothing(folder):
    folder.write_text("a file")
    cache.save("words", a=np.arange(3))
    assert cache.load("words") is None


def _save(value):
    for _ in range(20):
        cache.save("words", a=np.full(100_000, value))


def test_several_processes_save_at_the_same_time(folder):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_save, args=(value,)) for value in (1, 2)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        exists = (folder / "words.npz").exists()
        loaded = cache.load("words")
        assert loaded is not None or not exists
        assert loaded is None or len(set(loaded["a"].tolist())) == 1
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert [entry.name for entry in folder.iterdir()] == ["words.npz"]


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("LIFELABEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache.save("words", a=np.arange(3))
    assert (tmp_path / "xdg" / "lifelabel" / "words.npz").is_file()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache.save("words", a=np.arange(3))
    assert (tmp_path / "home" / ".cache" / "lifelabel" / "words.npz").is_file()
