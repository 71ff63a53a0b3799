"""The page of chips: every model in both types on every chip, and a part of it made now."""

import pytest

from benchmarks import chips

PAGE = chips.read_page()


def _cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_every_model_is_on_the_page_for_every_chip():
    wanted = {(model, dtype) for model in chips.CASES for dtype in chips.DTYPES}
    assert set(PAGE) == set(chips.CHIPS)
    assert all(set(lines) == wanted for lines in PAGE.values())


@pytest.mark.parametrize("soc", chips.CHIPS)
def test_no_model_has_an_operator_without_a_kernel(soc):
    assert [key for key, line in PAGE[soc].items() if _cells(line)[9] != "0"] == []


@pytest.mark.parametrize("soc", chips.CHIPS)
def test_at_most_one_operator_of_a_hundred_is_unknown(soc):
    numbers = [list(map(int, _cells(line)[2:11])) for line in PAGE[soc].values()]
    assert sum(row[-1] for row in numbers) <= 0.01 * sum(map(sum, numbers))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "dtype"), [("mixtral", "float32"), ("resnet50", "bfloat16")])
def test_a_part_of_the_page_is_what_is_made_now(model, dtype, monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert chips.rows(model, dtype) == {soc: lines[model, dtype] for soc, lines in PAGE.items()}
