"""The GE graphs of small programs, as text in ``graphs/``: a change of a graph is seen where changes are read.

The text proves nothing of the values, so each program is also compared with eager. After a change that is meant:
``UPDATE_GOLDEN=1 pytest tests/golden_graphs``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

import torchair
from ge_graph import printer
from tair_debug.observer import Silent, observing
from tests.golden_graphs.programs import PROGRAMS

HERE = Path(__file__).parent
_PLACE = re.compile(r"  # \S+\.py:\d+ in \S.*$", re.M)
_NAME = re.compile(r"\bgraph_\d+")


class Texts(Silent):
    """The graphs that an engine gets, as text without places in files and running numbers of graphs."""

    def __init__(self):
        self.found = []

    def ge_graph(self, stage, label, graph):
        if label == "optimized":
            text = _PLACE.sub("", printer.to_text(graph))
            self.found.append(_NAME.sub(stage.phase, text))


def run(fn, inputs, trained):
    """Results, inputs afterwards, gradients."""
    given = [
        i.detach().clone().requires_grad_(trained and i.is_floating_point()) if isinstance(i, torch.Tensor) else i
        for i in inputs
    ]
    results = [r for r in pytree.tree_leaves(fn(*given)) if isinstance(r, torch.Tensor)]
    if trained:
        sum(r.square().sum() for r in results).backward()
    tensors = [i for i in given if isinstance(i, torch.Tensor)]
    return results, tensors, [i.grad for i in tensors]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_is_the_one_that_was_read(name):
    program = PROGRAMS[name]
    compiled = torch.compile(
        program.fn, backend=torchair.get_npu_backend(), dynamic=program.dynamic or None, fullgraph=True
    )
    seen = Texts()
    with observing(seen):
        for batch in (4, 6) if program.dynamic else (4,):
            got = run(compiled, program.inputs(batch), program.trained)
            torch.testing.assert_close(got, run(program.fn, program.inputs(batch), program.trained))
    text = "\n".join(seen.found)
    file = HERE / "graphs" / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{file.name} is missing: UPDATE_GOLDEN=1 writes it"
    assert text == file.read_text()


def test_every_graph_belongs_to_a_program():
    assert {f.stem for f in (HERE / "graphs").iterdir()} == set(PROGRAMS)
    assert len(PROGRAMS) >= 60
