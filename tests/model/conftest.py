import pytest
from support import models

import lifelabel


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The model folder of a small fine-tuned network. It must not be changed."""
    path = tmp_path_factory.mktemp("model")
    models.write(path)
    return path


@pytest.fixture(scope="session")
def model(folder):
    return lifelabel.load(folder, "cpu")
