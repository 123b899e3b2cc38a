"""Published rankings and verdicts, by hand."""

import pytest

from lifelabel.report.rankings import DOES_NOT_HOLD, HOLDS, LEVEL, NO_VERDICT, SOURCES, difference
from lifelabel.report.text_tables import Stat


@pytest.mark.parametrize(
    ("upper", "lower", "expected", "text"),
    [
        # the standard error is sqrt(9 / 9 + 0) = 1: more than 2 points are needed
        (Stat(52.5, 3.0, 9), Stat(50.0, 0.0, 3), HOLDS, "+2.50 ± 1.00"),
        (Stat(52.0, 3.0, 9), Stat(50.0, 0.0, 3), LEVEL, "+2.00 ± 1.00"),
        (Stat(47.5, 3.0, 9), Stat(50.0, 0.0, 3), DOES_NOT_HOLD, "-2.50 ± 1.00"),
        # sqrt(16 / 4 + 12 / 3) = 2.83
        (Stat(55.0, 4.0, 4), Stat(50.0, 12**0.5, 3), LEVEL, "+5.00 ± 2.83"),
        (Stat(56.0, 4.0, 4), Stat(50.0, 12**0.5, 3), HOLDS, "+6.00 ± 2.83"),
        # methods without random numbers
        (Stat(50.1, 0.0, 3), Stat(50.0, 0.0, 3), HOLDS, "+0.10 ± 0.00"),
        (Stat(50.0, 0.0, 3), Stat(50.0, 0.0, 3), LEVEL, "+0.00 ± 0.00"),
        (Stat(60.0, None, 1), Stat(50.0, 1.0, 3), NO_VERDICT, "+10.00, one seed"),
    ],
)
def test_the_verdict(upper, lower, expected, text):
    found = difference(upper, lower)
    assert (found.verdict, str(found)) == (expected, text)
    opposite = {HOLDS: DOES_NOT_HOLD, DOES_NOT_HOLD: HOLDS}
    assert difference(lower, upper).verdict == opposite.get(expected, expected)


def test_a_row_without_runs_gives_no_difference():
    assert difference(Stat(None, None, 0), Stat(50.0, 1.0, 3)) is None
    assert difference(Stat(50.0, 1.0, 3), Stat(None, None, 0)) is None


def test_published_figures_agree_with_the_rankings_that_they_show():
    """In every protocol that has both figures, the upper method has the larger one."""
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    for source in SOURCES:
        assert source.claims and len(set(source.claims)) == len(source.claims)
        named = {name for claim in source.claims for name in claim}
        for figures in source.figures.values():
            assert figures.keys() == named
            for upper, lower in source.claims:
                assert float(figures[upper]) > float(figures[lower])
        assert (source.published(*source.claims[0]) == "no figures") == (not source.figures)
