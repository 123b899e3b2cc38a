import os

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.nn.graph import words
from lifelabel.nn.graph.words import _fixed_vector, embed

GLOVE = "the 0.1 0.2 0.3\ntraffic 1 2 3\nlight 3 2 1\nsky -1 0 1\n"


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    return path


def test_a_fixed_vector_is_the_same_everywhere():
    vector = _fixed_vector("boat", 300)
    expected = [-0.039603, -0.122007, -0.029931, 0.062923]
    np.testing.assert_allclose(vector[:4], expected, atol=1e-5)
    assert abs(vector.std() - 0.4) < 0.05


def test_a_label_does_not_depend_on_its_neighbours():
    alone, _ = embed(["boat"])
    among, _ = embed(["sea", "boat", "sky"])
    assert np.array_equal(alone[0], among[1])
    assert not np.array_equal(among[0], among[1])


def test_glove_words_are_found_and_averaged(glove):
    vectors, missing = embed(["sky", "Traffic light", "unicorn"], glove)
    np.testing.assert_allclose(vectors[0], [-1, 0, 1])
    np.testing.assert_allclose(vectors[1], [2, 2, 2])
    np.testing.assert_allclose(vectors[2], _fixed_vector("unicorn", 3), rtol=1e-6)
    assert missing == ["unicorn"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"), ("sky a b c\n", "line 1"), ("the 1 2\nsky 1 2 3\n", "line 2"), ("sky 1 nan\n", "line 1"),
        (None, "cannot read the word vectors"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "bad.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        embed(["sky"], path)


def test_no_labels_give_an_empty_table(glove):
    assert embed([])[0].shape == (0, 300)
    assert embed([], glove)[0].shape == (0, 3)


def test_the_first_line_of_a_word_counts_and_other_lines_are_not_parsed(tmp_path):
    """Large GloVe files have lines whose word is two words, such as an address after 'at'."""
    path = tmp_path / "glove.txt"
    path.write_bytes(b"the 1 2\nbad line here\n\xff\xfe 1 2\nat 3 4\nat name@domain.com 5 6\nsky 7 8\n")
    np.testing.assert_allclose(embed(["at", "sky"], path)[0], [[3, 4], [7, 8]])


LABELS = ["traffic light", "sky", "unicorn"]


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that is large enough to be cached, and a cache folder for the test."""
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "large.txt"
    filler = "".join(f"w{i} 0.25 0.5 0.75\n" for i in range(words._SMALL_FILE // 15))
    path.write_text("the 0.1 0.2 0.3\ntraffic 1 2 3\n" + filler + "light 3 2 1\nsky -1 0 1.1\n")
    assert path.stat().st_size >= words._SMALL_FILE
    return path


def cached(tmp_path):
    return sorted((tmp_path / "cache").glob("*"))


def garble(path):
    """Other numbers in the same file, so that the test detects a second reading."""
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"-1 0 1.1", b"-2 0 2.2"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_large_file_is_read_once_for_the_same_words(large, tmp_path):
    first, missing = embed(LABELS, large)
    garble(large)
    again, missing_again = embed(LABELS[::-1], large)
    assert np.array_equal(again, first[::-1])
    assert missing == missing_again == ["unicorn"]
    assert len(cached(tmp_path)) == 1
    for _ in range(2):
        vectors, missing = embed(["boat"], large)
        assert len(cached(tmp_path)) == 2  # other words: the file is read again
        assert vectors.shape == (1, 3) and missing == ["boat"]
    os.utime(large, ns=(0, 0))
    np.testing.assert_allclose(embed(LABELS, large)[0][1], [-2, 0, 2.2], rtol=1e-6)  # a changed file is read again


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"nonsense"),
        lambda path: np.savez(path, words=np.array(["sky"])),
        lambda path: np.savez(path, words=np.array(["sky"]), vectors=np.ones(3)),
        lambda path: np.savez(path, words=np.array(["sky"]), vectors=np.full((1, 3), np.nan)),
        lambda path: np.savez(path, words=np.array(["boat"]), vectors=np.ones((1, 3))),
        lambda path: np.savez(path, words=np.array(["sky"]), vectors=np.array([["a", "b", "c"]])),
        lambda path: np.savez(path, words=np.array([{}], object), vectors=np.ones((1, 3))),
    ],
    ids=["cut", "no archive", "no vectors", "no table", "not finite", "other words", "no numbers", "a pickle"],
)
def test_a_damaged_cache_is_not_used(damage, large, tmp_path):
    expected, _ = embed(LABELS, large)
    damage(cached(tmp_path)[0])
    assert np.array_equal(embed(LABELS, large)[0], expected)


def test_a_cache_that_cannot_be_written_is_no_error(large, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "file" / "cache"))
    np.testing.assert_allclose(embed(LABELS, large)[0][0], [2, 2, 2])


def test_a_small_file_is_not_cached(glove, tmp_path, monkeypatch):
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "cache"))
    embed(["sky"], glove)
    assert not cached(tmp_path)
