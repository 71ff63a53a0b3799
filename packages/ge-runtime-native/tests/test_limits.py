"""No index, length or coordinate of a graph reaches ATen unseen, in either of the engine's programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import schema
from ge_graph.errors import EngineError
from ge_runtime.conformance import index_cases, scatter_cases
from ge_runtime.conformance.case import Case
from ge_runtime.cpu import CpuEngine
from ge_runtime.cpu.limits import LIMITS

HUGE = 2**33
NOT_COMPILED = {"InplaceIndexAdd"}  # its alpha is an element, which a trace does not know


def refused(run: Any, op: str, *operands: Any, code: str = "GE4009", **attrs: Any) -> None:
    with pytest.raises(EngineError) as caught:
        run(op, *operands, **attrs)
    assert caught.value.code == code


# -- indices of either program ------------------------------------------------------------------------------------


def _cases() -> list[Case]:
    """The first conformance case of each operator whose indices are limited."""
    first = {case.op: case for case in reversed(list(index_cases.cases())) if case.op in LIMITS}
    return list(first.values())


@pytest.mark.night(rows=4)
@pytest.mark.slow  # a C++ compilation each
@pytest.mark.parametrize("case", _cases(), ids=str)
def test_both_programs_refuse_the_same_indices(case: Case) -> None:
    at = [p.name for p in schema.require(case.op).inputs].index(LIMITS[case.op].index)
    from_end = bool(case.attrs.get("negative_index_support"))
    for program in ("aten", "inductor"):
        graph, fed = case.graph(feed_numbers=False)
        executable = CpuEngine().compile(graph, {"engine.program": program, "engine.check": "never"})
        if program == "inductor" and case.op in NOT_COMPILED:
            with pytest.raises(EngineError, match="GE4026"):
                executable.run(fed)
            continue
        executable.run(fed)
        place = next(i for i, value in enumerate(fed) if value is case.inputs[at])
        for index in (-1000 if from_end else -1, 1 << 20):
            bad = np.array(fed[place])
            bad.reshape(-1)[0] = index
            with pytest.raises(EngineError):
                executable.run([*fed[:place], bad, *fed[place + 1 :]])


def test_names_in_the_table_are_the_operators_own() -> None:
    for op, limit in LIMITS.items():
        found = schema.require(op)
        ports, attrs = {p.name for p in found.inputs}, {a.name for a in found.attrs}
        assert {limit.index, limit.of} <= ports, op
        assert {n for n in (limit.axis, limit.from_end, limit.skipped) if isinstance(n, str) and n} <= ports | attrs, op


# -- what ATen believes -------------------------------------------------------------------------------------------

PROBABILITIES = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
CTC: dict[str, Any] = {"targets": [1, 2, 3, 3, 1], "inputs": [5, 5], "lengths": [2, 3], "blank": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"targets": [1, 2, -1, 3, 1]},
        {"targets": [1, 2, HUGE, 3, 1]},
        {"targets": [1, 2, 4, 3, 1]},
        {"lengths": [2, -1]},
        {"lengths": [2, 4]},
        {"lengths": [HUGE, 3]},
        {"lengths": [2**62, 2**62]},
        {"inputs": [5, 6]},
        {"inputs": [-1, 5]},
        {"inputs": [HUGE, 5]},
        {"inputs": [5]},
        {"lengths": [2, 3, 0]},
        {"blank": 4},
        {"blank": -1},
        {"blank": HUGE},
        {"targets": []},
        {"targets": [[1, 2], [3, 1]]},
    ],
)
def test_targets_and_lengths_of_a_ctc_loss(run, change: dict[str, Any]) -> None:
    right = [torch.tensor(CTC[n]) for n in ("targets", "inputs", "lengths")]
    loss, alpha = run("CTCLossV2", PROBABILITIES, *right)
    bad = {**CTC, **change}
    operands = [torch.tensor(bad[n], dtype=torch.int64) for n in ("targets", "inputs", "lengths")]
    refused(run, "CTCLossV2", PROBABILITIES, *operands, blank=bad["blank"])
    refused(run, "CTCLossV2Grad", torch.ones(2), PROBABILITIES, *operands, loss, alpha, blank=bad["blank"])


def test_a_ctc_loss_is_still_eagers(run) -> None:
    x = PROBABILITIES.clone().requires_grad_()
    targets, inputs, lengths = (torch.tensor(CTC[n]) for n in ("targets", "inputs", "lengths"))
    want = torch.nn.functional.ctc_loss(x, targets, inputs, lengths, reduction="none")
    want.sum().backward()
    loss, alpha = run("CTCLossV2", PROBABILITIES, targets, inputs, lengths)
    torch.testing.assert_close(loss, want)
    grad = run("CTCLossV2Grad", torch.ones(2), PROBABILITIES, targets, inputs, lengths, loss, alpha)
    torch.testing.assert_close(grad, x.grad)


def test_a_ctc_gradient_needs_the_forward_results_of_its_sizes(run) -> None:
    operands = [torch.tensor(CTC[n]) for n in ("targets", "inputs", "lengths")]
    loss, alpha = run("CTCLossV2", PROBABILITIES, *operands)
    for given in ((loss, alpha[:, :, :3]), (loss, alpha[:, :2]), (loss, alpha[:1]), (loss[:1], alpha)):
        refused(run, "CTCLossV2Grad", torch.ones(2), PROBABILITIES, *operands, *(g.contiguous() for g in given))
    refused(run, "CTCLossV2Grad", torch.ones(1), PROBABILITIES, *operands, loss, alpha)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -3e38])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_gradient_of_points_that_are_nowhere_keeps_that_of_all_others(run, mode, padding, value) -> None:
    x, generator = torch.randn(1, 2, 4, 4), torch.Generator().manual_seed(2)
    grid = torch.rand(1, 3, 3, 2, generator=generator) * 2 - 1
    bad = grid.clone()
    bad[0, 1, 1, 0] = value
    how = {"interpolation_mode": mode, "padding_mode": padding}
    _, want = run("GridSampler2DGrad", torch.ones(1, 2, 3, 3), x, grid, **how)
    dx, got = run("GridSampler2DGrad", torch.ones(1, 2, 3, 3), x, bad, **how)
    others = torch.ones(1, 3, 3, 2, dtype=torch.bool)
    others[0, 1, 1] = False
    assert torch.equal(got[others], want[others])
    assert dx.shape == x.shape


def test_a_class_that_is_none(run) -> None:
    x, weight = torch.randn(3, 4), torch.ones(4)
    for target in (-1, 4, HUGE):
        y = torch.tensor([0, target, 2])
        refused(run, "NLLLoss", x, y, weight)
        refused(run, "NLLLossGrad", x, torch.ones(()), y, weight, torch.ones(()))
    ignored = torch.tensor([0, -7, 2])
    loss = run("NLLLoss", x, ignored, weight, ignore_index=-7)[0]
    torch.testing.assert_close(loss, torch.nn.functional.nll_loss(x, ignored, ignore_index=-7))


def test_gradients_of_other_sizes_than_the_operands(run) -> None:
    """ATen's gradients read as much as one operand says out of another."""
    x, small = torch.randn(2, 3, 4, 4), torch.randn(3, 4, 4)
    refused(run, "LogSoftmaxGrad", x, small, axis=[-1])
    refused(run, "LogSoftmaxGrad", small, x, axis=[-1])
    refused(run, "SoftmaxGrad", x, small, axes=[-1])
    refused(run, "AdaptiveAvgPool2dGrad", torch.randn(2, 3, 2, 2), orig_input_shape=[100, 3, 4, 4])
    refused(run, "AdaptiveAvgPool2dGrad", torch.randn(2, 3, 2, 2), orig_input_shape=[2, 30, 4, 4])
    windows = {"ksize": [1, 1, 3, 3], "strides": [1, 1, 2, 2], "pads": [1, 1, 1, 1], "data_format": "NCHW"}
    for shape in ([0, 3, 8, 9], [9, 3, 8, 9], [2, 2, 8, 9], [2, 3, 8, 19]):
        refused(run, "AvgPoolV2Grad", shape, torch.randn(2, 3, 4, 5), **windows)
    volumes = {"ksize": [2], "strides": [2], "pads": [0] * 6, "data_format": "NCDHW"}
    refused(run, "AvgPool3DGrad", [9, 3, 4, 4, 4], torch.randn(2, 3, 2, 2, 2), **volumes)
    assert not run("AdaptiveAvgPool2dGrad", torch.randn(2, 3, 2, 2), orig_input_shape=[2, 3, 4, 0]).numel()
    refused(run, "AdaptiveAvgPool3dGrad", torch.randn(2, 3, 2, 2, 2), torch.randn(2, 9, 4, 4, 4), data_format="NCDHW")
    refused(run, "GridSampler2DGrad", torch.randn(2, 3, 2, 2), x, torch.zeros(2, 5, 5, 2))
    refused(run, "GridSampler2DGrad", torch.randn(2, 3, 5, 5), x, torch.zeros(1, 5, 5, 2))
    refused(run, "GroupNormGrad", x[:1], torch.zeros(2, 3), torch.ones(2, 3), x, torch.ones(3), num_groups=3)
    refused(run, "GroupNormGrad", x, torch.zeros(2, 3), torch.ones(2, 3), x, torch.ones(1), num_groups=3)
    refused(run, "LayerNormGradV3", x[:1], x, torch.ones(2, 3, 4, 1), torch.zeros(2, 3, 4, 1), torch.ones(4))
    for wrong in range(4):
        vectors = [torch.ones(3 if i != wrong else size) for i, size in enumerate((0, 1, 2, 9))]
        refused(run, "BatchNormV3", x, *vectors, is_training=True)
        refused(run, "BatchNormV3", x, *vectors, is_training=False)
        refused(run, "BNInfer", x.half(), *vectors, epsilon=1e-5)
        refused(run, "BNInfer", x, *vectors, epsilon=1e-5, code="GE4005")  # ATen looks itself
    rows = torch.randn(5, 3)
    refused(run, "CdistGrad", torch.ones(5, 4), rows, torch.randn(6, 3), torch.ones(5, 6), p=2.0)


@pytest.mark.parametrize("scale", [math.nan, math.inf, 1e-30])
def test_a_scale_that_is_none(run, scale: float) -> None:
    image = torch.randn(1, 2, 4, 4)
    for op in ("UpsampleBilinear2dAA", "UpsampleBicubic2d", "UpsampleNearest"):
        refused(run, op, image, output_size=[8, 8], scales_h=scale, scales_w=1.0)


@pytest.mark.parametrize("op", ["UpsampleBilinear2dAA", "UpsampleBicubic2dAA"])
def test_a_scale_that_leads_out_of_the_image(run, op: str) -> None:
    image = torch.randn(2, 3, 4, 1)
    refused(run, op, image, output_size=[6, 7], scales_h=1.5, scales_w=1.5)
    assert run(op, image, output_size=[6, 1], scales_h=1.5, scales_w=1.5).shape == (2, 3, 6, 1)


# -- padding of caches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["aten", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_negative_slot_is_padding(program: str, dtype: Any) -> None:
    var, updates = np.zeros((4, 3), np.float32), np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    case = Case("ScatterNdUpdate", (var, np.array([[2], [-1], [0]], dtype), updates), None)
    graph, fed = case.graph(feed_numbers=False)
    executable = CpuEngine().compile(graph, {"engine.program": program, "engine.check": "never"})
    for slots in ([2, -1, 0], [-1, 3, -7], [-1, -1, -1], [0, 1, 2]):
        fed[1] = np.array(slots, dtype)[:, None]
        want = torch.zeros(4, 3)
        for slot, row in zip(slots, torch.from_numpy(updates)):
            if slot >= 0:
                want[slot] = row
        assert torch.equal(executable.run(fed)[0], want), slots
    fed[1] = np.array([[2], [4], [0]], dtype)
    with pytest.raises(EngineError):
        executable.run(fed)


def test_only_cache_writes_know_padding(run) -> None:
    x, rows, values = torch.zeros(4, 3), torch.tensor([[2], [-1]]), torch.ones(2, 3)
    for op in ("ScatterNdAdd", "TensorScatterUpdate"):
        refused(run, op, x, rows, values)


def test_a_padded_slot_of_a_paged_cache(run) -> None:
    key = torch.arange(1.0, 7).reshape(3, 1, 2)
    cache = torch.zeros(2, 2, 1, 2)
    got = run("ScatterPaKvCache", key, cache, torch.tensor([3, -1, 0], dtype=torch.int32), key, cache.clone())
    for filled in got[:2]:
        assert filled.reshape(4, 2).tolist() == [[5, 6], [0, 0], [0, 0], [1, 2]]


def _scattering() -> list[Case]:
    """The first case of each further operator whose indices are limited, and which of its inputs they are."""
    first = {case.op: case for case in reversed(list(scatter_cases.cases())) if case.op in LIMITS}
    return list(first.values())


@pytest.mark.parametrize("case", _scattering(), ids=str)
def test_the_kernels_refuse_indices_outside(case: Case) -> None:
    at = [p.name for p in schema.require(case.op).inputs].index(LIMITS[case.op].index)
    graph, fed = case.graph(feed_numbers=False)
    executable = CpuEngine().compile(graph, {"engine.check": "never"})
    executable.run(fed)
    place = next(i for i, value in enumerate(fed) if value is case.inputs[at])
    for index in (-1000, 1 << 20):
        bad = np.array(fed[place])
        bad.reshape(-1)[0] = index
        with pytest.raises(EngineError):
            executable.run([*fed[:place], bad, *fed[place + 1 :]])
