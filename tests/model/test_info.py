"""What model.json says about a model."""

import dataclasses

import pytest

from lifelabel.model.info import ModelInfo

REQUIRED = [each.name for each in dataclasses.fields(ModelInfo)][:10]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name):
    values = {each: [] for each in REQUIRED if each != name}
    with pytest.raises(ValueError, match=f"^no (list )?{name}$"):
        ModelInfo.from_dict(values)
