"""The page of operator counts: every model, no worse than the bundled, the same fused operators for any sizes."""

import pytest

from benchmarks import graphs

PAGE = graphs.read_page()
CELLS = {key: [c.strip() for c in line.split("|")[1:-1]] for key, line in PAGE.items()}


def test_every_model_is_on_the_page_in_both_modes():
    assert set(PAGE) == {(model, mode) for model in graphs.CASES for mode in ("static", "dynamic")}
    assert set(graphs.bundled()) <= set(PAGE)


def test_no_graph_is_larger_than_the_bundled_ones():
    counts = {key: int(CELLS[key][2]) for key in PAGE}
    assert [key for key, theirs in graphs.bundled().items() if counts[key] > theirs] == []


def test_no_move_follows_one_of_its_kind():
    assert {cells[5] for cells in CELLS.values()} == {"0"}


@pytest.mark.parametrize("model", graphs.CASES)
def test_fused_operators_do_not_depend_on_whether_sizes_are_known(model):
    assert CELLS[model, "static"][6] == CELLS[model, "dynamic"][6]


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("model", ["llama2", "mixtral"])
def test_a_part_of_the_page_is_what_is_compiled_now(model, mode):
    line = graphs.row(model, mode, graphs.graph_of(model, mode), graphs.bundled().get((model, mode)))
    assert PAGE[model, mode] == line
