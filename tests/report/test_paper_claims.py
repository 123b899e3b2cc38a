"""The figures and claims of the AGCN paper agree with each other."""

import pytest

from lifelabel.report import paper_claims as paper

TABLES = {"table1": paper.TABLE_1, "table2": paper.TABLE_2, "table3": paper.TABLE_3}


@pytest.mark.parametrize(("table", "claim"), [(table, each) for table in TABLES for each in paper.CLAIMS[table]])
def test_every_claim_holds_for_the_figures_that_the_paper_prints(table, claim):
    for split in TABLES[table]:

        def printed(row, split=split):
            figures = paper.figures_of(TABLES[table], split, row) or paper.figures_of(paper.TABLE_1, split, row)
            return figures[claim.key]

        assert min(map(printed, claim.upper)) > max(map(printed, claim.lower)), split


def test_figures_that_stand_in_two_tables_are_the_same():
    agcn = paper.TABLE_1["Split-COCO"]["agcn"]
    assert paper.TABLE_2["Split-COCO"]["+ R^t & Q^t"] == agcn[:3]
    assert paper.TABLE_3["Split-COCO"]["0.07 / 0.93 / 10^5"] == agcn
