"""Operators that no converter emits, or none by this name: against numpy, torch, and formulas written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ge_graph.dtypes import DataType


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def same(got: object, want: object) -> None:
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), check_dtype=False)


def test_shapes_by_their_other_names(run) -> None:
    x = rand(2, 1, 3, 1)
    parts = run("SplitD", rand(4, 3), split_dim=0, num_split=2, size_of_y=2)
    same(torch.stack(parts), np.stack(np.split(rand(4, 3).numpy(), 2)))
    same(run("Concat", 1, [rand(2, 3), rand(2, 1)], N=2), np.concatenate((rand(2, 3), rand(2, 1)), 1))
    same(run("SqueezeV2", x, axis=[1]), np.squeeze(x.numpy(), 1))
    same(run("SqueezeV3", x, [1, 3]), np.squeeze(x.numpy(), (1, 3)))
    same(run("SqueezeV3", x), np.squeeze(x.numpy()))
    same(run("UnsqueezeV2", x, axis=[0, -1]), np.expand_dims(x.numpy(), (0, -1)))
    same(run("UnsqueezeV3", x, [0, -1]), np.expand_dims(x.numpy(), (0, -1)))
    for axis, shape in ((0, (1, 6)), (1, (2, 3)), (2, (2, 3)), (4, (6, 1)), (-1, (6, 1))):
        assert tuple(run("Flatten", x, axis=axis).shape) == shape
    for copy in run("Copy", x, N=2, size_of_y=2):
        same(copy, x)
    same(run("Snapshot", x), x)
    same(run("AddV2", x, rand(3, 1)), x.numpy() + rand(3, 1).numpy())


def test_empty_has_its_shape_and_type(run) -> None:
    got = run("Empty", [2, 3], dtype=int(DataType.DT_FLOAT16), init=True)
    assert got.dtype == torch.float16
    same(got, np.zeros((2, 3)))


def test_counts(run) -> None:
    numbers = torch.tensor([[0, 2, 2], [7, 1, 2]], dtype=torch.int32)
    weights = rand(2, 3)
    counted = np.bincount(numbers.reshape(-1), minlength=5)[:5]
    same(run("Bincount", numbers, 5, torch.zeros(0)), counted)
    weighed = np.bincount(numbers.reshape(-1), weights.reshape(-1), minlength=5)[:5]
    same(run("Bincount", numbers, 5, weights), weighed)
    x = rand(40)
    same(run("HistogramV2", x, -1.0, 1.0, bins=7, y_dtype=DataType.DT_INT32), np.histogram(x, 7, (-1, 1))[0])
    same(run("HistogramV2", x, 0.0, 0.0, bins=7, y_dtype=DataType.DT_INT32), np.histogram(x, 7)[0])


def test_index_takes_tensors_where_sizes_say_one(run) -> None:
    x = rand(4, 5, 6)
    rows, columns = torch.tensor([3, 0, 1]), torch.tensor([-1, 2, 0])
    same(run("Index", x, [1, 1], [1, 1], [rows, columns]), x.numpy()[rows, columns])
    same(run("Index", x, [0, 1], [1, 1], [columns]), x.numpy()[:, columns])


def test_batch_norm_of_channels_last(run) -> None:
    x, scale, offset = rand(2, 3, 3, 4), rand(4), rand(4, seed=1)
    y, mean, variance, *kept = run("BatchNorm", x, scale, offset, epsilon=1e-3)
    rows = x.numpy().astype(np.float64).reshape(-1, 4)
    normed = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3) * scale.numpy() + offset.numpy()
    torch.testing.assert_close(y.reshape(-1, 4), torch.from_numpy(normed), check_dtype=False, rtol=1e-5, atol=1e-5)
    for got, want in ((mean, rows.mean(0)), (variance, rows.var(0, ddof=1)), *zip(kept, (rows.mean(0), rows.var(0)))):
        torch.testing.assert_close(got, torch.from_numpy(want), check_dtype=False, rtol=1e-5, atol=1e-6)
    still = run("BatchNorm", x, scale, offset, rand(4, seed=2), rand(4, seed=3).abs(), epsilon=1e-3, is_training=False)
    fixed = (rows - rand(4, seed=2).numpy()) / np.sqrt(rand(4, seed=3).abs().numpy() + 1e-3)
    torch.testing.assert_close(
        still[0].reshape(-1, 4),
        torch.from_numpy(fixed * scale.numpy() + offset.numpy()),
        check_dtype=False,
        rtol=1e-5,
        atol=1e-5,
    )


def test_ctc_is_the_sum_over_all_alignments(run) -> None:
    """Two steps, three classes, one label: it stands in one of the steps or in both."""
    log_probs = rand(2, 1, 3).log_softmax(-1).requires_grad_()
    operands = torch.tensor([[2]]), torch.tensor([2]), torch.tensor([1])
    p = log_probs.exp()
    likelihood = p[0, 0, 2] * p[1, 0, 2] + p[0, 0, 0] * p[1, 0, 2] + p[0, 0, 2] * p[1, 0, 0]
    loss = -likelihood.log()
    found, alpha = run("CTCLossV2", log_probs.detach(), *operands)
    same(found, loss.detach().reshape(1))
    grad = run("CTCLossV2Grad", torch.ones(1), log_probs.detach(), *operands, found, alpha)
    # torch's gradient is for the scores before the softmax: probabilities less their shares of the likelihood.
    scores = log_probs.detach().clone().requires_grad_()
    q = scores.softmax(-1)
    again = -(q[0, 0, 2] * q[1, 0, 2] + q[0, 0, 0] * q[1, 0, 2] + q[0, 0, 2] * q[1, 0, 0]).log()
    torch.testing.assert_close(grad, torch.autograd.grad(again, scores)[0])


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_cdist_grad_is_that_of_the_formula(run, p: float) -> None:
    a, b, grad = rand(4, 3).requires_grad_(), rand(5, 3), rand(4, 5)
    distances = ((a[:, None] - b).abs() ** p).sum(-1) ** (1 / p)
    (want,) = torch.autograd.grad(distances, a, grad)
    torch.testing.assert_close(run("CdistGrad", grad, a.detach(), b, distances.detach(), p=p), want)


def test_offsets_move_the_samples_of_a_convolution(run) -> None:
    """Whole steps read the neighbours, half a step the mean of two; outside there is nothing."""
    x = rand(1, 2, 4, 5)
    given = {"strides": [1, 1, 1, 1], "pads": [1, 1, 1, 1], "ksize": [3, 3]}

    def samples(x: torch.Tensor, across: float) -> torch.Tensor:
        offsets = torch.zeros(1, 3, 9, 4, 5)
        offsets[:, 0], offsets[:, 2] = across, 0.5
        return run("DeformableOffsets", x, offsets.view(1, 27, 4, 5), **given)

    def windows(x: torch.Tensor) -> torch.Tensor:
        unfolded = torch.nn.functional.unfold(x, 3, padding=1).view(1, 2, 3, 3, 4, 5)
        return unfolded.permute(0, 1, 4, 2, 5, 3).reshape(1, 2, 12, 15) / 2

    torch.testing.assert_close(samples(x, 0.0), windows(x))
    middle = samples(x, 1.0).view(1, 2, 4, 3, 5, 3)[..., 1]
    torch.testing.assert_close(middle[..., :-1], windows(x).view(1, 2, 4, 3, 5, 3)[..., 1][..., 1:])
    assert not middle[..., -1].any()
    torch.testing.assert_close(samples(x, 0.5)[..., 1:-1], ((samples(x, 0.0) + samples(x, 1.0)) / 2)[..., 1:-1])


def test_a_mask_has_as_many_bits_as_the_probability_says(run) -> None:
    got = run("DropOutGenMask", [1000], torch.tensor(0.25), seed=3, seed2=5)
    assert got.dtype == torch.uint8
    assert got.numel() == 128  # 1000 bits in blocks of 128
    bits = np.unpackbits(got.numpy(), bitorder="little")
    assert not bits[1000:].any()
    assert abs(bits.sum() - 250) < 5 * np.sqrt(1000 * 0.25 * 0.75)
    same(run("DropOutGenMask", [1000], torch.tensor(0.25), seed=3, seed2=5), got)
    assert run("DropOutGenMask", [1000], torch.tensor(1.0), seed=3, seed2=5).sum() == 255 * 125


def test_boxes_that_overlap_a_better_one_are_left_out(run) -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [4, 4, 2, 2], [0, 3, 1, 4], [0, 0, 2, 2]])
    scores = torch.tensor([0.5, 0.9, 0.7, 0.1, 0.4])
    limits = torch.tensor(0.5), torch.tensor(0.2)
    most = lambda n: torch.tensor(n, dtype=torch.int32)  # noqa: E731
    assert run("NonMaxSuppressionV3", boxes, scores, most(9), *limits).tolist() == [1, 2]
    assert run("NonMaxSuppressionV3", boxes, scores, most(1), *limits).tolist() == [1]
    assert run("NonMaxSuppressionV3", boxes, scores, most(9), torch.tensor(0.99), limits[1]).tolist() == [
        1,
        2,
        0,
    ]


def test_each_cell_of_a_region_has_its_maximum_and_its_place(run) -> None:
    x = rand(1, 2, 8, 8)
    regions = torch.tensor([[0.0, 0, 0, 7, 7], [0, 2, 4, 5, 7]])
    given = {"pooled_h": 2, "pooled_w": 2, "spatial_scale_h": 1.0, "spatial_scale_w": 1.0, "pool_channel": 2}
    y, places = run("RoiPoolingWithArgMax", x, regions, **given)
    same(y[0], x[0].view(2, 2, 4, 2, 4).amax((2, 4)))
    same(y[1], x[0, :, 4:8, 2:6].reshape(2, 2, 2, 2, 2).amax((2, 4)))
    same(x[0].flatten(1).gather(1, places[0].flatten(1).long()), y[0].flatten(1))


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_of_sgd_are_torchs(run, nesterov: bool) -> None:
    weight, gradients = rand(3, 4), [rand(3, 4, seed=s) for s in (1, 2, 3)]
    leaf = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    for step, gradient in enumerate(gradients):
        before, held = leaf.detach().clone(), optimizer.state[leaf].get("momentum_buffer")
        accum = torch.full((3, 4), 7.0) if held is None else held.clone()  # what it holds at first says nothing
        leaf.grad = gradient.clone()
        optimizer.step()
        stat = torch.full((3, 4), float(step == 0))
        given = {"weight_decay": 0.01, "nesterov": nesterov}
        got = run("SGD", before, gradient, torch.tensor(0.1), accum, torch.tensor(0.9), stat, **given)
        torch.testing.assert_close(got, leaf.detach())
