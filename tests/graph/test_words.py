import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.graph.words import embed, fixed_vector

GLOVE = "the 0.1 0.2 0.3\ntraffic 1 2 3\nlight 3 2 1\nsky -1 0 1\n"


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    return path


def test_a_fixed_vector_is_the_same_everywhere():
    vector = fixed_vector("boat", 300)
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
    np.testing.assert_allclose(vectors[2], fixed_vector("unicorn", 3), rtol=1e-6)
    assert missing == ["unicorn"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("sky a b c\n", "line 1"), ("the 1 2\nsky 1 2 3\n", "line 2"), ("sky 1 nan\n", "line 1")],
)
def test_a_bad_file_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        embed(["sky"], path)


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="cannot read the word vectors"):
        embed(["sky"], tmp_path / "none.txt")


def test_no_labels_give_an_empty_table(glove):
    assert embed([])[0].shape == (0, 300)
    assert embed([], glove)[0].shape == (0, 3)
