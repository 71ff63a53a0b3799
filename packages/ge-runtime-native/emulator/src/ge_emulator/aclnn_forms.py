"""Operator functions that are no single call: other rules for defaults, masks, random numbers, several outputs.

Each takes the arguments by name and the tensors to write; it returns what to write into them, in order. Meaning after
the functions' public documentation; where a function has a counterpart in torch, the numbers are torch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ge_emulator.refusal import INVALID, CannRefusal
from ge_runtime.cpu.kernels import matmul, quant, rotary

Arguments = dict[str, Any]
Outputs = list[Any]
aten = torch.ops.aten


def refuse(text: str) -> CannRefusal:
    return CannRefusal(INVALID, text)


def _itself(a: Arguments) -> torch.Tensor:
    """The first operand, which an in-place function calls by another name."""
    return a["self"] if "self" in a else a["selfRef"]


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """Eight bits a byte, the lowest first."""
    return (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def _unpacked(mask: torch.Tensor) -> torch.Tensor:
    return ((mask.reshape(-1, 1) >> torch.arange(8, dtype=torch.uint8)) & 1).reshape(-1)


# -- elementwise -----------------------------------------------------------------------------------------------------


def add_v3(a: Arguments, _: Outputs) -> Any:
    """A number plus a scaled tensor."""
    return aten.add.Scalar(aten.mul.Scalar(a["other"], a["alpha"]), a["self"])


def div_mode(a: Arguments, _: Outputs) -> Any:
    """Division: mode 0 true, 1 towards zero, 2 downwards."""
    if a["mode"] not in (0, 1, 2):
        raise refuse(f"division mode {a['mode']}")
    return torch.div(_itself(a), a["other"], rounding_mode=(None, "trunc", "floor")[a["mode"]])


def gelu_v2(a: Arguments, _: Outputs) -> Any:
    """GELU: 0 with erf, 1 with tanh."""
    return F.gelu(a["x"], approximate="tanh" if a["approximate"] == 1 else "none")


def equal(a: Arguments, _: Outputs) -> Any:
    """One truth value: same sizes and elements."""
    return torch.tensor(torch.equal(a["self"], a["other"]))


def histc(a: Arguments, outs: Outputs) -> Any:
    """How many elements lie in each of equal parts of a range; whole numbers are counted as floats."""
    return torch.histc(a["self"].to(torch.float64), a["bins"], a["min"], a["max"]).to(outs[0].dtype)


# -- making ----------------------------------------------------------------------------------------------------------


def range_inclusive(a: Arguments, outs: Outputs) -> Any:
    """From start up to and including end."""
    count = int((a["end"] - a["start"]) / a["step"]) + 1
    return (torch.arange(count, dtype=torch.float64) * a["step"] + a["start"]).to(outs[0].dtype)


# -- random numbers: the same seed and offset give the same numbers, other than a device's -----------------------------


def _generator(a: Arguments) -> torch.Generator:
    seed = int(a["seedTensor"].item()) if "seedTensor" in a else a["seed"]
    offset = a["offset"] + (int(a["offsetTensor"].item()) if "offsetTensor" in a else 0)
    return torch.Generator().manual_seed((seed * 1000003 + offset) % (1 << 63))


def _like(out: torch.Tensor) -> torch.Tensor:
    return torch.empty(out.shape, dtype=out.dtype)


def normal(a: Arguments, outs: Outputs) -> Any:
    """Normal numbers."""
    return _like(outs[0]).normal_(a["mean"], a["std"], generator=_generator(a))


def normal_out(a: Arguments, outs: Outputs) -> Any:
    """Normal numbers; mean or deviation may be tensors."""
    return (_like(outs[0]).normal_(0, 1, generator=_generator(a)) * a["std"] + a["mean"]).expand(outs[0].shape)


def uniform(a: Arguments, outs: Outputs) -> Any:
    """Uniform numbers."""
    return _like(outs[0]).uniform_(a["from"], a["to"], generator=_generator(a))


def bernoulli(a: Arguments, outs: Outputs) -> Any:
    """Ones with a probability."""
    p = a["prob"]
    if isinstance(p, torch.Tensor):
        return torch.bernoulli(p.float().expand(outs[0].shape), generator=_generator(a)).to(outs[0].dtype)
    return _like(outs[0]).bernoulli_(p, generator=_generator(a))


def random(a: Arguments, outs: Outputs) -> Any:
    """Whole numbers from an interval, or from the whole range of the type."""
    interval = (a["from"], a["to"]) if "from" in a else ()
    return _like(outs[0]).random_(*interval, generator=_generator(a))


def randperm(a: Arguments, outs: Outputs) -> Any:
    """A random order."""
    return torch.randperm(a["n"], generator=_generator(a), dtype=outs[0].dtype)


def multinomial(a: Arguments, _: Outputs) -> Any:
    """Indices drawn by weight."""
    return torch.multinomial(a["self"].float(), a["numsamples"], a["replacement"], generator=_generator(a))


def dropout_gen_mask(a: Arguments, outs: Outputs) -> Any:
    """Bits that say what is kept, eight a byte, padded to 128."""
    count = math.prod(a["shape"])
    bits = torch.zeros(outs[0].numel() * 8, dtype=torch.uint8)
    bits[:count] = (torch.rand(count, generator=_generator(a)) >= a["prob"]).to(torch.uint8)
    return _packed(bits)


def _scaled(x: torch.Tensor, kept: torch.Tensor, keep: float) -> torch.Tensor:
    return torch.where(kept, x / keep if keep else torch.zeros_like(x), torch.zeros_like(x))


def dropout_do_mask(a: Arguments, _: Outputs) -> Any:
    """What the bits keep, scaled."""
    x = a["self"]
    return _scaled(x, _unpacked(a["mask"])[: x.numel()].bool().view(x.shape), 1 - a["prob"])


def dropout_v3(a: Arguments, outs: Outputs) -> Any:
    """Dropout with its mask, as bits or as bytes, whichever the mask's size says."""
    x = a["input"]
    kept = torch.rand(x.shape, generator=_generator(a)) >= a["p"]
    result = _scaled(x, kept, 1 - a["p"])
    if outs[1].numel() == x.numel():
        return result, kept.to(outs[1].dtype)
    bits = torch.zeros(outs[1].numel() * 8, dtype=torch.uint8)
    bits[: x.numel()] = kept.reshape(-1).to(torch.uint8)
    return result, _packed(bits)


# -- reductions ------------------------------------------------------------------------------------------------------


def aminmax(a: Arguments, _: Outputs) -> Any:
    """Smallest and largest over dimensions; none given: all."""
    return torch.amin(a["self"], a["dim"], a["keepDim"]), torch.amax(a["self"], a["dim"], a["keepDim"])


# -- indexing --------------------------------------------------------------------------------------------------------


def nonzero_v2(a: Arguments, _: Outputs) -> Any:
    """Positions, one row per dimension."""
    return torch.nonzero(a["self"]).t().contiguous()


def unique2(a: Arguments, _: Outputs) -> Any:
    """Values, where each element is among them, how often."""
    values, inverse, counts = torch.unique(a["self"], sorted=True, return_inverse=True, return_counts=True)
    return values, inverse if a["returnInverse"] or a["returnCounts"] else None, counts if a["returnCounts"] else None


def _indices(entries: list[Any]) -> list[Any]:
    """An index that is not there comes as null or as an empty int64 tensor beside others."""
    missing = [e is None or (e.dim() == 1 and e.numel() == 0 and len(entries) > 1) for e in entries]
    return [None if m else e for e, m in zip(entries, missing)]


def index(a: Arguments, _: Outputs) -> Any:
    """Advanced indexing."""
    return aten.index.Tensor(a["self"], _indices(a["indices"]))


def index_put(a: Arguments, _: Outputs) -> Any:
    """Advanced indexing, written."""
    return aten.index_put(a["selfRef"], _indices(a["indices"]), a["values"], a["accumulate"])


def index_add(a: Arguments, _: Outputs) -> Any:
    """The rows of ``source`` are added where the index says; one of several dimensions stands for as many in
    ``source``."""
    index, dim = a["index"], a["dim"]
    source = a["source"].flatten(dim, dim + index.dim() - 1) if index.dim() > 1 else a["source"]
    return aten.index_add(a["self"], dim, index.flatten(), source, alpha=a["alpha"])


def scatter(a: Arguments, _: Outputs) -> Any:
    """Scatter of a tensor or one number: 0 replaces, 1 adds, 2 multiplies."""
    how = {0: {}, 1: {"reduce": "add"}, 2: {"reduce": "multiply"}}[a["reduce"]]
    return torch.scatter(_itself(a), a["dim"], a["index"], a["src"] if "src" in a else a["value"], **how)


def one_hot(a: Arguments, outs: Outputs) -> Any:
    """One-hot vectors with given values."""
    if a["axis"] != -1:
        raise refuse(f"OneHot over axis {a['axis']}")
    x = a["self"].long()
    hot = torch.zeros((*x.shape, outs[0].shape[-1]), dtype=torch.bool)
    inside = (x >= 0) & (x < hot.shape[-1])
    hot.scatter_(-1, x.clamp(0, max(hot.shape[-1] - 1, 0)).unsqueeze(-1), inside.unsqueeze(-1))
    return torch.where(hot, a["onValue"], a["offValue"]).to(outs[0].dtype)


# -- softmax and norms -----------------------------------------------------------------------------------------------


def layer_norm(a: Arguments, outs: Outputs) -> Any:
    """Layer norm; mean and reciprocal deviation have the leading sizes."""
    x = a["input"].float() if a["input"].dtype is not torch.float64 else a["input"]
    weight, bias = (None if a[k] is None else a[k].to(x.dtype) for k in ("weightOptional", "biasOptional"))
    y, mean_, rstd = aten.native_layer_norm(x, a["normalizedShape"], weight, bias, a["eps"])
    return y.to(a["input"].dtype), mean_, rstd


def layer_norm_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of layer norm."""
    x = a["input"].float()
    weight = None if a["weightOptional"] is None else a["weightOptional"].float()
    bias = None if a["biasOptional"] is None else a["biasOptional"].float()
    sizes = (*x.shape[: x.dim() - len(a["normalizedShape"])], *([1] * len(a["normalizedShape"])))
    mean_, rstd = (a[k].float().reshape(sizes) for k in ("mean", "rstd"))
    return aten.native_layer_norm_backward(
        a["gradOut"].float(), x, a["normalizedShape"], mean_, rstd, weight, bias, a["outputMask"]
    )


def group_norm(a: Arguments, _: Outputs) -> Any:
    """Group norm."""
    return aten.native_group_norm(
        a["self"].contiguous(), a["gammaOptional"], a["betaOptional"], a["n"], a["c"], a["hxw"], a["group"], a["eps"]
    )


def batch_norm(a: Arguments, outs: Outputs) -> Any:
    """Batch norm; running statistics are updated in place while training."""
    mean_, var = (None if a[k] is None else a[k].clone() for k in ("runningMean", "runningVar"))
    y, save_mean, save_invstd = aten.native_batch_norm(
        a["input"], a["weight"], a["bias"], mean_, var, a["training"], a["momentum"], a["eps"]
    )
    if not a["training"]:
        save_mean = save_invstd = None
    return mean_, var, y, save_mean, save_invstd


# -- convolution, pooling, resizing ----------------------------------------------------------------------------------


def conv_depthwise(a: Arguments, _: Outputs) -> Any:
    """Depthwise convolution."""
    return F.conv2d(
        a["self"], a["weight"], a["bias"], a["stride"], a["padding"], a["dilation"], groups=a["self"].shape[1]
    )


def _one_bit_a_window(a: Arguments, indices: torch.Tensor, width: int) -> torch.Tensor:
    """Which element of each window is the largest: batch, channel, element of the window, position."""
    k, s, p, d = (_pair(a[n]) for n in ("kernelSize", "stride", "padding", "dilation"))
    oh, ow = indices.shape[-2:]
    row = indices // width - torch.arange(oh).view(-1, 1) * s[0] + p[0]
    column = indices % width - torch.arange(ow) * s[1] + p[1]
    which = (row // d[0] * k[1] + column // d[1]).flatten(2)
    return F.one_hot(which, k[0] * k[1]).transpose(2, 3)


def _pair(value: list[int]) -> list[int]:
    return value * 2 if len(value) == 1 else value


def max_pool_mask(a: Arguments, outs: Outputs) -> Any:
    """Max pooling whose second result is a bit mask: a row of 32-byte blocks for each element of the window."""
    x = a["self"] if a["self"].dim() == 4 else a["self"].unsqueeze(0)
    y, indices = F.max_pool2d(
        x, a["kernelSize"], a["stride"] or None, a["padding"], a["dilation"], a["ceilMode"], return_indices=True
    )
    bits = _one_bit_a_window({**a, "stride": a["stride"] or a["kernelSize"]}, indices, x.shape[-1]).to(torch.uint8)
    room = outs[1].numel() * outs[1].element_size() * 8 // (bits.shape[0] * bits.shape[1] * bits.shape[2])
    return y.view(outs[0].shape), _packed(F.pad(bits, (0, room - bits.shape[-1]))).view(outs[1].dtype)


def max_pool_mask_backward(a: Arguments, outs: Outputs) -> Any:
    """Gradient of max pooling from the bit mask."""
    grad = a["gradOutput"] if a["gradOutput"].dim() == 4 else a["gradOutput"].unsqueeze(0)
    n, c, oh, ow = grad.shape
    k = _pair(a["kernelSize"])
    raw = a["indices"].contiguous().view(torch.uint8)
    bits = _unpacked(raw).reshape(n, c, k[0] * k[1], -1)[..., : oh * ow]
    columns = (bits * grad.flatten(2).unsqueeze(2)).reshape(n, c * k[0] * k[1], oh * ow)
    size, step = a["self"].shape[-2:], _pair(a["stride"] or a["kernelSize"])
    pad, spread = _pair(a["padding"]), _pair(a["dilation"])
    # ceil mode may have windows beyond the edge: fold into a larger image, then cut
    whole = [
        max((o - 1) * s + d * (e - 1) + 1 - 2 * p, z) for o, s, d, e, p, z in zip((oh, ow), step, spread, k, pad, size)
    ]
    folded = F.fold(columns.float(), whole, k, spread, pad, step)[..., : size[0], : size[1]].contiguous()
    return folded.view(outs[0].shape).to(outs[0].dtype)


# -- transformers ----------------------------------------------------------------------------------------------------


def log_sigmoid_forward(a: Arguments, _: Outputs) -> Any:
    """Logarithm of the sigmoid; the buffer serves some kernels and is not written."""
    return F.logsigmoid(a["self"]), None


# -- lists of tensors ------------------------------------------------------------------------------------------------

_FOREACH = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Pow": torch.pow,
    "Lerp": torch.lerp,
    "Addcdiv": torch.addcdiv,
    "Addcmul": torch.addcmul,
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Abs": torch.abs,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Maximum": torch.clamp_min,
    "Minimum": torch.clamp_max,
    "Sign": torch.sign,
}


def foreach_of(name: str) -> Any:
    """The form of one function over lists; the operation's name stands in the function's."""
    operation = _FOREACH[name]

    def run(a: Arguments, _: Outputs) -> Any:
        lists = [a[k] for k in ("x", "x1", "x2", "x3") if k in a]
        if isinstance(a.get("weight"), list):
            lists.append(a["weight"])
        given = [a[k] for k in ("scalar", "alpha", "weight") if k in a and not isinstance(a[k], list)]
        number = next((n.item() if isinstance(n, torch.Tensor) else n for n in given), None)
        results = []
        for entries in zip(*lists, strict=True):
            if number is None:
                results.append(operation(*entries))
            elif name in ("Addcdiv", "Addcmul"):
                results.append(operation(*entries, value=number))
            elif name in ("Add", "Sub") and len(entries) == 2:
                results.append(operation(*entries, alpha=number))
            else:
                results.append(operation(*entries, number))
        return results

    return run


def foreach_copy(a: Arguments, _: Outputs) -> Any:
    """Copies, with cast."""
    return [x.clone() for x in a["x"]]


def adam_w(a: Arguments, _: Outputs) -> Any:
    """One step of AdamW."""
    step = float(a["step"].item()) + 1  # torch_npu says how many steps there were before
    grad = -a["grad"].float() if a["maximize"] else a["grad"].float()
    var = a["varRef"].float() * (1 - a["lr"] * a["weightDecay"])
    m = a["mRef"].float() * a["beta1"] + grad * (1 - a["beta1"])
    v = a["vRef"].float() * a["beta2"] + grad * grad * (1 - a["beta2"])
    largest = None
    denominator = v
    if a["amsgrad"]:
        denominator = largest = torch.maximum(a["maxGradNormOptionalRef"].float(), v)
    root = (denominator / (1 - a["beta2"] ** step)).sqrt() + a["eps"]
    return var - a["lr"] / (1 - a["beta1"] ** step) * m / root, m, v, largest


def dynamic_quant_v2(a: Arguments, outs: Outputs) -> Any:
    """Symmetrical where no offset is asked for."""
    operands = a["x"], a["smoothScalesOptional"], a["groupIndexOptional"]
    return quant.dynamic_quant_v2(*operands, dst_type=a["dstType"], is_symmetrical=outs[2] is None)


# -- losses ----------------------------------------------------------------------------------------------------------


def _reduced(grad: torch.Tensor, count: int, reduction: int) -> torch.Tensor:
    """The gradient that each element has: reduction 0 none, 1 mean, 2 sum."""
    return grad / max(count, 1) if reduction == 1 else grad


def l1_loss_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the mean or summed absolute difference."""
    difference = a["self"] - a["target"]
    return _reduced(a["gradOutput"] * difference.sign(), difference.numel(), a["reduction"])


def kl_div_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the divergence to its first operand."""
    target = a["target"]
    kept = target.exp() if a["logTarget"] else torch.where(target > 0, target, torch.zeros_like(target))
    return _reduced(-kept * a["gradOutput"], a["self"].numel(), a["reduction"])


def kl_div_target_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the divergence to its target."""
    x, target = a["self"], a["target"]
    if a["logTarget"]:
        slope = (target + 1 - x) * target.exp()
    else:
        slope = torch.where(target == 0, torch.zeros_like(target), target.log() + 1 - x)
    return _reduced(slope * a["gradOutput"], x.numel(), a["reduction"])


def bce_with_logits_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the binary cross entropy of a sigmoid."""
    x, target = a["self"], a["target"]
    chosen = target if a["posWeightOptional"] is None else target * a["posWeightOptional"]
    grad = ((chosen + 1 - target) * x.sigmoid() - chosen) * a["gradOutput"]
    grad = grad if a["weightOptional"] is None else grad * a["weightOptional"]
    return _reduced(grad, x.numel(), a["reduction"])


def ctc_loss(a: Arguments, outs: Outputs) -> Any:
    """CTC loss; the table of its backward is as wide as the result has room, the rest is no path."""
    loss, alpha = aten._ctc_loss(*[a[n] for n in _CTC], a["blank"], a["zeroInfinity"])
    return loss, F.pad(alpha, (0, outs[1].shape[-1] - alpha.shape[-1]), value=-math.inf)


_CTC = ("logProbs", "targets", "inputLengths", "targetlengths")


def ctc_loss_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the CTC loss."""
    alpha = a["logAlpha"][..., : 2 * max(a["targetLengths"], default=0) + 1]
    given = [a[n] for n in ("gradOut", "logProbs", "targets", "inputLengths", "targetLengths", "negLogLikelihood")]
    return aten._ctc_loss_backward(*given, alpha, a["blank"], a["zeroInfinity"])


# -- linear algebra --------------------------------------------------------------------------------------------------


def qr(a: Arguments, _: Outputs) -> Any:
    """QR decomposition: mode 0 reduced, 1 complete, 2 only R."""
    q, r = torch.linalg.qr(a["self"], ("reduced", "complete", "r")[a["mode"]])
    return q if q.numel() else None, r


def svd(a: Arguments, _: Outputs) -> Any:
    """Singular values, left vectors, right vectors as columns."""
    if not a["computeUV"]:
        return torch.linalg.svdvals(a["input"]), None, None
    u, s, vh = torch.linalg.svd(a["input"], full_matrices=a["fullMatrices"])
    return s, u, vh.mH


# -- parts of batch norm over several processes ----------------------------------------------------------------------


def _by_channel(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """float32, and the axes that are not the channel."""
    return x.float(), [0, *range(2, x.dim())]


def _spread(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return value.float().reshape(1, -1, *([1] * (x.dim() - 2)))


def batch_norm_stats(a: Arguments, _: Outputs) -> Any:
    """Mean and reciprocal deviation of each channel."""
    x, axes = _by_channel(a["input"])
    return x.mean(axes), (x.var(axes, correction=0) + a["eps"]).rsqrt()


def batch_norm_reduce(a: Arguments, _: Outputs) -> Any:
    """Sum and sum of squares of each channel."""
    x, axes = _by_channel(a["x"])
    return x.sum(axes), (x * x).sum(axes)


def batch_norm_gather_stats(a: Arguments, _: Outputs) -> Any:
    """Statistics of all processes from those of each, weighted by its count; running ones are updated."""
    counts = a["counts"].float().reshape(-1, 1)
    total, mean = counts.sum(), a["mean"].float()
    whole = (counts * mean).sum(0) / total
    var = a["invstd"].float().pow(-2) - a["eps"]
    squares = (counts * (var + (mean - whole) ** 2)).sum(0)
    news = whole, squares / (total - 1)
    running = [
        None if old is None else old * (1 - a["momentum"]) + new * a["momentum"]
        for old, new in zip((a["runningMean"], a["runningVar"]), news)
    ]
    return *running, whole, (squares / total + a["eps"]).rsqrt()


def batch_norm_elemt(a: Arguments, _: Outputs) -> Any:
    """Normalise by given statistics."""
    x = a["input"].float()
    y = (x - _spread(a["mean"], x)) * _spread(a["invstd"], x)
    y = y if a["weight"] is None else y * _spread(a["weight"], x)
    return y if a["bias"] is None else y + _spread(a["bias"], x)


def batch_norm_reduce_backward(a: Arguments, _: Outputs) -> Any:
    """Sums over each channel that the gradient needs; gradients of weight and bias."""
    dy, axes = _by_channel(a["gradOut"])
    sum_dy = dy.sum(axes)
    sum_dy_xmu = (dy * (a["input"].float() - _spread(a["mean"], dy))).sum(axes)
    grads = (sum_dy, sum_dy_xmu) if a["inputG"] else (None, None)
    return *grads, sum_dy_xmu * a["invstd"].float() if a["weightG"] else None, sum_dy if a["biasG"] else None


def batch_norm_elemt_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the input, from the sums of all processes."""
    dy, x = a["gradOut"].float(), a["input"].float()
    count, invstd = a["counter"].sum(), _spread(a["invstd"], x)
    centred = dy - _spread(a["sumDy"], x) / count
    centred = centred - (x - _spread(a["mean"], x)) * invstd**2 * _spread(a["sumDyXmu"], x) / count
    return centred * invstd if a["weight"] is None else centred * invstd * _spread(a["weight"], x)


# -- single steps of recurrent networks ------------------------------------------------------------------------------


def lstm_cell(a: Arguments, _: Outputs) -> Any:
    """One step of an LSTM from the products of its weights; third result: the gates after their activation."""
    gates = a["inputGates"] + a["hiddenGates"]
    for bias in (a["inputBiasOptional"], a["hiddenBiasOptional"]):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * a["cx"] + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), -1)


def lstm_cell_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of the gates before their activation, of the old cell state and of the bias."""
    i, f, g, o = a["storage"].chunk(4, -1)
    bent = a["cy"].tanh()
    dhy = torch.zeros_like(bent) if a["gradHyOptional"] is None else a["gradHyOptional"]
    dc = dhy * o * (1 - bent * bent)
    dc = dc if a["gradCOptional"] is None else dc + a["gradCOptional"]
    parts = dc * g * i * (1 - i), dc * a["cx"] * f * (1 - f), dc * i * (1 - g * g), dhy * bent * o * (1 - o)
    gates = torch.cat(parts, -1)
    return gates, dc * f, gates.sum(0) if a["hasBias"] else None


# -- others ----------------------------------------------------------------------------------------------------------


def index_fill(a: Arguments, _: Outputs) -> Any:
    """One number at listed positions."""
    return torch.index_fill(_itself(a), a["dim"], torch.tensor(a["index"], dtype=torch.int64), a["value"])


def masked_scale(a: Arguments, _: Outputs) -> Any:
    """What a mask keeps, scaled."""
    return a["self"] * a["mask"].to(a["self"].dtype) * a["scale"]


def confusion_transpose(a: Arguments, _: Outputs) -> Any:
    """A permutation and a new shape, in either order."""
    if a["transpose_first"]:
        return a["x"].permute(a["perm"]).reshape(a["shape"])
    return a["x"].reshape(a["shape"]).permute(a["perm"])


def dropout_v3_grad(a: Arguments, _: Outputs) -> Any:
    """Gradient of dropout by its mask, bits or bytes."""
    grad, mask = a["gradY"], a["mask"]
    kept = mask if mask.numel() == grad.numel() else _unpacked(mask)[: grad.numel()]
    return grad * kept.bool().view(grad.shape) * a["scale"]


def rrelu(a: Arguments, outs: Outputs) -> Any:
    """Leaky ReLU with a random slope each while training, kept as noise; else with the mean slope."""
    x = a["self"]
    if not a["training"]:
        y = torch.where(x >= 0, x, x * ((a["lower"] + a["upper"]) / 2))
        return (y, None) if outs[0] is x else (None, y)
    drawn = torch.empty_like(x).uniform_(a["lower"], a["upper"], generator=_generator(a))
    noise = torch.where(x <= 0, drawn, torch.ones_like(x))
    return (x * noise, noise) if outs[0] is x else (noise, x * noise)


def fake_quant(a: Arguments, _: Outputs) -> Any:
    """Rounded to a grid and back, and what lies inside of it."""
    on = torch.tensor([int(a["fakeQuantEnabled"])])
    call = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return call(a["self"], a["scale"], a["zeroPoint"].int(), on, a["quantMin"], a["quantMax"])


def scatter_reduce(a: Arguments, _: Outputs) -> Any:
    """Scatter with a reduction, 1: sum. torch_npu computes the others in another way."""
    if a["reduce"] != 1:
        raise refuse(f"scatter with reduction {a['reduce']}")
    return torch.scatter_reduce(_itself(a), a["dim"], a["index"], a["src"], "sum", include_self=a["includeSelf"])


def unique(a: Arguments, _: Outputs) -> Any:
    """Values, and where each element is among them."""
    values, inverse = torch.unique(a["self"], sorted=True, return_inverse=True)
    return values, inverse if a["returnInverse"] else None


def unique_consecutive(a: Arguments, _: Outputs) -> Any:
    """Values without repetitions of neighbours; dimension 1000 means all elements in order."""
    dim = None if a["dim"] == 1000 else a["dim"]
    values, inverse, counts = torch.unique_consecutive(a["self"], True, True, dim)
    return values, inverse if a["returnInverse"] else None, counts if a["returnCounts"] else None


def unique_dim(a: Arguments, _: Outputs) -> Any:
    """Different slices of a dimension."""
    values, inverse, counts = torch.unique(a["self"], True, True, True, a["dim"])
    return values, inverse if a["returnInverse"] else None, counts


def rope_with_cache(a: Arguments, _: Outputs) -> Any:
    """Rotary embedding of query and key by their positions; the heads follow from the sizes."""
    query, key, size = a["queryIn"], a["keyIn"], a["headSize"]
    if a.get("cacheMode"):
        raise refuse(f"rotary embedding with cache mode {a['cacheMode']}")
    sections = a["mropeSection"] if a["positions"].dim() == 2 else None
    return rotary.rope_with_sin_cos_cache(
        a["positions"],
        query,
        key,
        a["cosSinCache"],
        numQHeads=query.shape[-1] // size,
        numKHeads=key.shape[-1] // size,
        headSize=size,
        mropeSection=sections or (0, 0, 0),
        isNeoxStyle=a["isNeoxStyle"],
    )


def moe_token_permute_grad(a: Arguments, _: Outputs) -> Any:
    """Gradient of tokens that were sorted by expert: each token gets the sum of its copies'."""
    if a["paddedMode"]:
        raise refuse("the gradient of tokens in padded mode")
    grad, count = a["permutedOutputGrad"].float(), a["sortedIndices"].numel()
    rows = torch.nn.functional.pad(grad, (0, 0, 0, count - grad.shape[0]))[a["sortedIndices"].long()]
    return rows.view(-1, a["numTopk"], grad.shape[-1]).sum(1)


def _unpadded(a: Arguments) -> None:
    if a["paddedMode"]:
        raise refuse("tokens of experts in padded mode")


def moe_token_permute(a: Arguments, _: Outputs) -> Any:
    """Tokens in the order of their experts, a copy for each; and where each copy went."""
    _unpadded(a)
    chosen = a["indices"].reshape(-1)
    order = chosen.argsort(stable=True)
    copies = order // (chosen.numel() // max(a["tokens"].shape[0], 1))
    count = a["numOutTokens"]
    return a["tokens"][copies[: count if count > 0 else chosen.numel() + count]], order.argsort().int()


def moe_token_unpermute(a: Arguments, _: Outputs) -> Any:
    """Back in the order of tokens: the copies of each, weighted and added. A copy that was dropped counts as zero."""
    _unpadded(a)
    rows = _copies(a["permutedTokens"], a["sortedIndices"])
    if a["probsOptional"] is None:
        return rows
    probs = a["probsOptional"].float()
    return (rows.view(*probs.shape, -1) * probs.unsqueeze(-1)).sum(1)


def _copies(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return F.pad(tokens.float(), (0, 0, 0, max(places.numel() - tokens.shape[0], 0)))[places.reshape(-1).long()]


def moe_token_unpermute_grad(a: Arguments, outs: Outputs) -> Any:
    """Gradients of the sorted tokens and of the weights."""
    _unpadded(a)
    grad, places = a["unpermutedTokensGrad"].float(), a["sortedIndices"].reshape(-1).long()
    probs = None if a["probsOptional"] is None else a["probsOptional"].float()
    width = places.numel() // max(grad.shape[0], 1)
    spread = grad.repeat_interleave(width, 0)
    weighted = spread if probs is None else spread * probs.reshape(-1, 1)
    tokens = torch.zeros(places.numel(), grad.shape[1]).index_copy_(0, places, weighted)[: a["permuteTokens"].shape[0]]
    if probs is None:
        return tokens, None
    return tokens, (_copies(a["permuteTokens"], places) * spread).sum(-1).view(probs.shape)


def grouped_matmul_finalize_routing(a: Arguments, outs: Outputs) -> Any:
    """Products of groups, weighted and added into rows; how many rows there are, the result's size says."""
    for name in ("antiquantScaleOptional", "antiquantOffsetOptional"):
        if a.get(name) is not None and a[name].numel():
            raise refuse(f"GroupedMatmulFinalizeRouting with {name}")
    given = {k.removesuffix("Optional"): v for k, v in a.items()}
    return matmul.grouped_matmul_finalize_routing(
        a["x1"],
        a["x2"],
        given["scale"],
        given["bias"],
        given["pertokenScale"],
        given["groupList"],
        given["sharedInput"],
        given["logit"],
        given["rowIndex"],
        given.get("offset"),
        dtype=a["dtype"],
        shared_input_weight=a["sharedInputWeight"],
        shared_input_offset=a["sharedInputOffset"],
        transpose_x=a["transposeX1"],
        transpose_w=a["transposeX2"],
        output_bs=outs[0].shape[0],
        group_list_type=a["groupListType"],
    )
