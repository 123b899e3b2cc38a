"""Damaged files: every reader gives a result or an error of one line, in limited time and memory."""

import pytest
from faults.fuzz import fuzz
from faults.readers import READERS


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork of a process with threads
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files(reader, finished_run, tmp_path, size, seed, count):
    inputs, refused, failures = fuzz(reader, tmp_path, finished_run, max(size.inputs // reader.cost, 1), seed)
    count(inputs=inputs, inputs_refused=refused, input_failures=len(failures))
    assert not failures, "\n\n".join(failures)
    assert inputs
