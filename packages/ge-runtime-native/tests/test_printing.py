"""StringFormat and PrintV2 against the text that the operators' definition gives."""

import pytest
import torch

from ge_graph import Graph, building
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine
from ge_runtime.cpu.text import decode, encode, summarize


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [
        (torch.arange(10), 3, "[0 1 2 ... 7 8 9]"),
        (torch.arange(6), 3, "[0 1 2 3 4 5]"),
        (torch.arange(7), -1, "[0 1 2 3 4 5 6]"),
        (torch.arange(6).reshape(2, 3), 3, "[[0 1 2]\n [3 4 5]]"),
        (torch.arange(8).reshape(2, 2, 2), 1, "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]"),
        (torch.arange(9).reshape(3, 3), 1, "[[0 ... 2]\n ...\n [6 ... 8]]"),
        (torch.tensor(7, dtype=torch.int8), 3, "7"),
        (torch.empty(0), 3, "[]"),
        (torch.tensor([0.1, 1e-7, 1.0]), 3, "[0.1 1e-07 1]"),
        (torch.tensor([1 / 3]), 3, "[0.333333343]"),
        (torch.tensor([1 / 3], dtype=torch.float64), 3, "[0.33333333333333331]"),
        (torch.tensor([float("nan"), float("-inf")]), 3, "[nan -inf]"),
        (torch.tensor([True, False]), 3, "[True False]"),
        (torch.tensor([1.5], dtype=torch.bfloat16), 3, "[1.5]"),
    ],
)
def test_texts_of_tensors(value, ends, text):
    assert summarize(value, ends) == text


@pytest.mark.parametrize("text", ["", "plain", "ü\n{}"])
def test_text_as_tensor(text):
    assert decode(encode(text)) == text


def build(template, tensors, stream="stdout"):
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=9, shape=(3,), node_name="x")
        line = ge.StringFormat([x] * tensors, template=template, placeholder="{}")
        graph.output_control.append(ge.PrintV2(line, output_stream=stream))
        graph.outputs = [ge.Add(x, x)]
    return CpuEngine().compile(graph, {})


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_printing(capsys, stream):
    build("a {} b {}!", 2, stream).run([torch.tensor([1, 2, 3])])
    assert getattr(capsys.readouterr(), {"stdout": "out", "stderr": "err"}[stream]) == "a [1 2 3] b [1 2 3]!\n"


def test_values_go_to_standard_error(capsys):
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=9, shape=(3,), node_name="x")
        graph.output_control.append(ge.Print([x, x]))
        graph.outputs = [ge.Add(x, x)]
    CpuEngine().compile(graph, {}).run([torch.tensor([1, 2, 3])])
    assert capsys.readouterr().err == "tensor([1, 2, 3])\n" * 2


def test_refusals():
    with pytest.raises(EngineError, match="1 placeholders in the template, 2 tensors"):
        build("{}", 2).run([torch.tensor([1, 2, 3])])
    with pytest.raises(EngineError, match="output_stream is 'log'"):
        build("{}", 1, "log").run([torch.tensor([1, 2, 3])])
