"""Every example in a docstring is run."""

import doctest
import importlib
import pkgutil

import pytest

import lifelabel

MODULES = [m.name for m in pkgutil.walk_packages(lifelabel.__path__, "lifelabel.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", ["lifelabel", *MODULES])
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
