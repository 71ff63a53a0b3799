"""The page of chips: every model in both types on every chip, and a part of it made now."""

import pytest

from benchmarks import chips

PAGE = chips.read_page()


def _cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_every_model_is_on_the_page_for_every_chip():
    assert set(PAGE) == set(chips.CHIPS)
    for soc, types in chips.CHIPS.items():
        assert set(PAGE[soc]) == {(model, dtype) for model in chips.CASES for dtype in types}


# Operators whose published list for the chip has no float32.
NO_FLOAT32 = {"ascend310p": {"GroupedMatmul", "LayerNormV4"}}
# How much may be unknown: three chips have the facts of two cores that many people measured, or a complete list.
UNKNOWN = {"ascend310p": 0.20}


@pytest.mark.parametrize("soc", chips.CHIPS)
def test_no_model_has_an_operator_without_a_kernel(soc):
    cells = [_cells(line) for line in PAGE[soc].values()]
    named = {entry.split()[1] for c in cells if c[9] != "0" for entry in c[12].split(", ")}
    assert named == {f"{op}(f32)" for op in NO_FLOAT32.get(soc, ())}


@pytest.mark.parametrize("soc", chips.CHIPS)
def test_few_operators_are_unknown(soc):
    numbers = [list(map(int, _cells(line)[2:11])) for line in PAGE[soc].values()]
    assert sum(row[-1] for row in numbers) <= UNKNOWN.get(soc, 0.01) * sum(sum(row) - row[5] for row in numbers)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "dtype"), [("mixtral", "float32"), ("resnet50", "bfloat16")])
def test_a_part_of_the_page_is_what_is_made_now(model, dtype, monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    wanted = {soc: lines[model, dtype] for soc, lines in PAGE.items() if (model, dtype) in lines}
    assert chips.rows(model, dtype) == wanted
