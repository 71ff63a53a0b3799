"""Operator functions of training and serving around the layers: losses, routing, optimizers, steps of a scheduler.

As in ``aclnn_forms``: arguments by name and the tensors to write; the results in order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ge_emulator.aclnn_forms import Arguments, Outputs, refuse
from ge_runtime.cpu.kernels import regions

aten = torch.ops.aten


# -- serving --------------------------------------------------------------------------------------------------------


def advance_step(a: Arguments, _: Outputs) -> Any:
    """The next step of sequences in pages: their new token, its position, one row more, and the slot of its row."""
    count, size = a["numQueries"], a["blockSize"]
    tokens, positions, lengths, slots = (
        a[n].clone() for n in ("inputTokensRef", "inputPositionsRef", "seqLensRef", "slotMappingRef")
    )
    tokens[:count] = a["sampledTokenIds"].reshape(-1)[:count].to(tokens.dtype)
    place = a["seqLensRef"][:count].long()
    positions[:count] = place.to(positions.dtype)
    lengths[:count] = (place + 1).to(lengths.dtype)
    page = a["blockTables"].long().gather(1, (place // size).unsqueeze(1)).squeeze(1)
    slots[:count] = (page * size + place % size).to(slots.dtype)
    return tokens, positions, lengths, slots


def ring_attention_update(a: Arguments, _: Outputs) -> Any:
    """Two partial results of attention merged by their maxima and sums."""
    first, second = (a["prevSoftmaxMax"], a["prevSoftmaxSum"]), (a["curSoftmaxMax"], a["curSoftmaxSum"])
    top = torch.maximum(first[0], second[0])
    parts = [total * torch.exp(most - top) for most, total in (first, second)]
    whole = parts[0] + parts[1]
    layout = a["inputLayout"]
    if layout not in ("SBH", "TND") or (layout == "TND" and a["inputSoftmaxLayout"] != "TND"):
        raise refuse(f"RingAttentionUpdate with layout {layout!r}, of its sums {a['inputSoftmaxLayout']!r}")

    def share(x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        weight = (part / whole)[..., 0]
        if layout == "TND":  # sums [rows, heads, 8]
            return x.float() * weight.unsqueeze(-1)
        heads = weight.permute(2, 0, 1).unsqueeze(-1)  # sums [batch, heads, rows, 8]
        return (x.float().unflatten(-1, (weight.shape[1], -1)) * heads).flatten(2)

    return share(a["prevAttnOut"], parts[0]) + share(a["curAttnOut"], parts[1]), top, whole


# -- experts --------------------------------------------------------------------------------------------------------


def moe_gating_top_k_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the logits from that of the chosen weights: of a softmax (0), or of sigmoids over their sum (1)."""
    if a["normType"] not in (0, 1) or a["renorm"]:
        raise refuse(f"the gradient of MoeGatingTopK with norm type {a['normType']} and renorm {a['renorm']}")
    normed, index = a["xNorm"].float(), a["expertIdx"].long()
    slope = a["gradY"].float() * a["routedScalingFactor"]
    if a["normType"] == 1:
        chosen = normed.gather(-1, index)
        total = chosen.sum(-1, keepdim=True) + a["eps"]
        slope = slope / total - (slope * chosen).sum(-1, keepdim=True) / total**2
    grad = torch.zeros_like(normed).scatter_add_(-1, index, slope)
    if a["normType"] == 1:
        return grad * normed * (1 - normed)
    return (grad - (grad * normed).sum(-1, keepdim=True)) * normed


def unpermute_by_map(a: Arguments, _: Outputs) -> Any:
    """Back in the order of tokens, the copies of each weighted and added; where each row came from, and its weight."""
    if a["paddedMode"]:
        raise refuse("MoeTokenUnpermuteWithRoutingMap in padded mode")
    tokens, probs = a["permutedTokens"].float(), a["probsOptional"]
    came_from = a["sortedIndices"].long().argsort()  # of each row its pair, token by token
    chosen = torch.nonzero(a["routingMapOptional"].bool())
    rows, experts = chosen[:, 0][came_from], chosen[:, 1][came_from]
    weights = None if probs is None else probs.float()[rows, experts]
    weighted = tokens if weights is None else tokens * weights.unsqueeze(1)
    result = torch.zeros(a["restoreShapeOptional"], dtype=torch.float32).index_add_(0, rows, weighted)
    return result, came_from.int(), rows.int(), weights


def unpermute_by_map_grad(a: Arguments, _: Outputs) -> Any:
    """Gradients of the sorted tokens and of the weights; torch_npu passes the places of the pairs as ``outIndex``."""
    if a["dropAndPad"]:
        raise refuse("the gradient of MoeTokenUnpermuteWithRoutingMap in padded mode")
    came_from = a["outIndex"].long().argsort()
    chosen = torch.nonzero(a["routingMapOptional"].bool())
    rows, experts = chosen[:, 0][came_from], chosen[:, 1][came_from]
    spread = a["unpermutedTokensGrad"].float()[rows]
    if a["probsOptional"] is None:
        return spread, None
    probs = a["probsOptional"].float()
    slopes = (spread * a["permutedTokensOptional"].float()).sum(-1)
    return spread * probs[rows, experts].unsqueeze(1), torch.zeros_like(probs).index_put_((rows, experts), slopes)


# -- losses ---------------------------------------------------------------------------------------------------------


def cross_entropy_grad(a: Arguments, _: Outputs) -> Any:
    """Gradient of the logits from that of the loss and the logarithms of the probabilities."""
    if a["labelSmoothing"] or a["lseSquareScaleForZloss"] or a["gradZloss"] is not None:
        raise refuse("the gradient of CrossEntropyLoss with label smoothing or z-loss")
    logs, target = a["logProb"].float(), a["target"].long()
    kept = target != a["ignoreIndex"]
    at = torch.where(kept, target, 0)
    weights = torch.ones(logs.shape[1]) if a["weight"] is None else a["weight"].float()
    scale = weights[at] * kept
    if a["reduction"] == "mean":
        scale = scale / scale.sum()
    grad = (a["gradLoss"].float().reshape(-1) * scale).unsqueeze(1)
    return grad * (logs.exp() - F.one_hot(at, logs.shape[1]))


def cross_entropy_of_sums(a: Arguments, _: Outputs) -> Any:
    """The loss of a part of a vocabulary from its largest logits and sums, and the probabilities."""
    if a["labelSmoothing"]:
        raise refuse("FusedCrossEntropyLossWithMaxSum with label smoothing")
    loss = a["sumExpLogits"].log() - a["predictedLogits"]
    logits = a["vocabParallelLogitsOptional"]
    if logits is None:
        return loss, None
    top, total = a["logitsMax"].unsqueeze(1), a["sumExpLogits"].unsqueeze(1)
    return loss, (logits.float() - top).exp() / total


def cross_entropy(a: Arguments, outs: Outputs) -> Any:
    """The loss, the logarithms of the probabilities, and what only the z-loss needs."""
    if a["labelSmoothing"] or a["lseSquareScaleForZloss"] or a["returnZloss"]:
        raise refuse("CrossEntropyLoss with label smoothing or z-loss")
    logits, weight = a["input"].float(), None if a["weight"] is None else a["weight"].float()
    target = a["target"].long()
    loss = F.cross_entropy(logits, target, weight, ignore_index=a["ignoreIndex"], reduction=a["reduction"])
    rest = [None if o is None else torch.zeros(o.shape) for o in outs[2:]]
    return loss.reshape(outs[0].shape), logits.log_softmax(-1), *rest


def linear_online_max_sum(a: Arguments, outs: Outputs) -> Any:
    """Of the logits of a part of a vocabulary the largest, the sum of their exponentials, and that of the target."""
    target, start, end = a["target"].long(), a["vocabStartIndex"], a["vocabEndIndex"]
    if bool(((target < start) | (target > end)).any()):
        raise refuse("FusedLinearOnlineMaxSum of targets outside of its part: their mask is packed in an unknown order")
    logits = a["input"].float() @ a["weight"].float().t()
    at = target - start
    top = logits.amax(-1)
    total = (logits - top.unsqueeze(1)).exp().sum(-1)
    predicted = logits.gather(1, at.unsqueeze(1)).squeeze(1) - top
    return top, total, predicted, torch.zeros_like(outs[3]), at, logits if outs[5] is not None else None


def linear_cross_entropy_grad(a: Arguments, _: Outputs) -> Any:
    """Gradients of the operands of the product that made the logits."""
    if a["labelSmoothing"] or bool(a["targetMask"].any()):
        raise refuse("FusedLinearCrossEntropyLossGrad with label smoothing, or of targets outside of its part")
    x, weight = a["input"].float(), a["weight"].float()
    probs = a["softmaxOptional"]
    if probs is None:
        shifted = x @ weight.t() - a["logitsMaxOptional"].unsqueeze(1)
        probs = shifted.exp() / a["sumExpLogitsOptional"].unsqueeze(1)
    slope = probs.float() - F.one_hot(a["maskedTarget"].long(), weight.shape[0])
    slope = slope * a["grad"].float().unsqueeze(1)
    return slope @ weight, slope.t() @ x


# -- products -------------------------------------------------------------------------------------------------------


def fused_quant_matmul(a: Arguments, outs: Outputs) -> Any:
    """An int8 product with scales for rows and columns, then GELU."""
    kinds = {"gelu_erf": "none", "gelu_tanh": "tanh"}
    if a["fusedOpType"] not in kinds or a["groupSize"]:
        raise refuse(f"FusedQuantMatmul with {a['fusedOpType']!r} and group size {a['groupSize']}")
    given = [n for n in ("yScale", "x1Offset", "x2Offset", "yOffset", "bias", "x3") if a[n] is not None]
    if given or a["x1Scale"] is None or a["x1"].dtype is not torch.int8:
        raise refuse(f"FusedQuantMatmul of {a['x1'].dtype} with {', '.join(given) or 'no scale of rows'}")
    product = (a["x1"].int() @ a["x2"].int()).float() * a["x1Scale"].float().unsqueeze(1) * a["x2Scale"].float()
    return F.gelu(product, approximate=kinds[a["fusedOpType"]])


def _scale(value: torch.Tensor | None, group: int, count: int) -> Any:
    """The one scale of a product, or of one of several."""
    if value is None:
        return 1.0
    if value.numel() not in (1, count):
        raise refuse(f"a scale {list(value.shape)} for {count} products; one for each is computed")
    return value.float().reshape(-1)[group if value.numel() > 1 else 0]


def quant_matmul_add(a: Arguments, _: Outputs) -> Any:
    """A scaled product of 8-bit floats, added."""
    if a["transposeX1"] or a["transposeX2"] or a["groupSize"]:
        raise refuse("QuantBatchMatmulInplaceAdd with transposed operands or scales of groups")
    product = a["x1"].float() @ a["x2"].float()
    return a["yRef"].float() + product * _scale(a["x1ScaleOptional"], 0, 1) * _scale(a["x2Scale"], 0, 1)


def quant_grouped_matmul_add(a: Arguments, _: Outputs) -> Any:
    """Of each group of rows the product of both operands over these rows, scaled and added."""
    if a["groupSize"]:
        raise refuse("QuantGroupedMatmulInplaceAdd with scales of groups of elements")
    sizes = a["groupList"].long()
    ends = (sizes.cumsum(0) if a["groupListType"] == 1 else sizes).tolist()
    y, start = a["yRef"].float(), 0
    for group, end in enumerate(ends):
        scale = _scale(a["scale1Optional"], group, len(ends)) * _scale(a["scale2"], group, len(ends))
        y[group] += a["x1"][start:end].float().t() @ a["x2"][start:end].float() * scale
        start = end
    return y


# -- attention, convolution -----------------------------------------------------------------------------------------


def block_sparse_attention(a: Arguments, outs: Outputs) -> Any:
    """Attention of packed sequences in blocks of queries and keys that a mask picks, and the logarithms of the sums.

    Shapes: query [rows, heads, d], mask [batch, heads, blocks, blocks].
    """
    layouts = a["qInputLayout"], a["kvInputLayout"]
    if layouts != ("TND", "TND") or a["attenMaskOptional"] is not None or a["blockTableOptional"] is not None:
        raise refuse(f"BlockSparseAttention of layouts {layouts}, or with a mask of elements or pages")
    if a["maskType"] or a["blockSize"]:
        raise refuse(f"BlockSparseAttention with mask type {a['maskType']}, block size {a['blockSize']}")
    down, across = a["blockShapeOptional"]
    heads = a["query"].shape[1]
    out, sums = torch.zeros(a["query"].shape), torch.zeros(a["query"].shape[0], heads, 1)
    row = column = 0
    for which, (rows, columns) in enumerate(zip(a["actualSeqLengthsOptional"], a["actualSeqLengthsKvOptional"])):
        q = a["query"][row : row + rows].float().transpose(0, 1)
        k, v = (
            a[n][column : column + columns].float().transpose(0, 1).repeat_interleave(heads // a["numKeyValueHeads"], 0)
            for n in ("key", "value")
        )
        picked = a["blockSparseMask"][which].bool().repeat_interleave(down, 1).repeat_interleave(across, 2)
        scores = (q @ k.mT * a["scaleValue"]).masked_fill(~picked[:, :rows, :columns], -torch.inf)
        out[row : row + rows] = (scores.softmax(-1) @ v).nan_to_num().transpose(0, 1)
        sums[row : row + rows] = scores.logsumexp(-1, keepdim=True).transpose(0, 1)
        row, column = row + rows, column + columns
    return out, sums if a["softmaxLseFlag"] else None


def _deformed(a: Arguments, x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, bias: Any) -> Any:
    """The convolution, and the samples that it is taken of."""
    if not a["modulated"]:
        raise refuse("DeformableConv2d without masks (modulated)")
    samples = regions.deformable_offsets(
        x,
        offset,
        strides=a["stride"],
        pads=a["padding"],
        ksize=a["kernelSize"],
        dilations=a["dilation"],
        deformable_groups=a["deformableGroups"],
        modulated=True,
    )
    return F.conv2d(samples, weight, bias, a["kernelSize"], groups=a["groups"]), samples


def deformable_conv2d(a: Arguments, _: Outputs) -> Any:
    """A convolution whose samples are moved by offsets and weighed by masks; and the samples."""
    bias = None if a["bias"] is None else a["bias"].float()
    return _deformed(a, a["x"].float(), a["weight"].float(), a["offset"].float(), bias)


def deformable_conv2d_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of input, weight, offsets and bias."""
    x, weight, offset = (a[n].float().requires_grad_() for n in ("input", "weight", "offset"))
    with torch.enable_grad():
        y = _deformed(a, x, weight, offset, None)[0]
    grad = a["gradOutput"].float()
    return *torch.autograd.grad(y, (x, weight, offset), grad), grad.sum((0, 2, 3))


# -- optimizers, random numbers, routing ----------------------------------------------------------------------------


def fused_adam(a: Arguments, _: Outputs) -> Any:
    """One step of Adam for a list of parameters."""
    if a["gradScale"] is not None or a["foundInf"] is not None or a["amsgrad"]:
        raise refuse("FusedAdam with a scale of gradients or with amsgrad")
    params, firsts, seconds = [], [], []
    for p, g, m, v, step in zip(a["paramsRef"], a["grads"], a["expAvgsRef"], a["expAvgSqsRef"], a["stateSteps"]):
        grad = (-g if a["maximize"] else g).float() + a["weightDecay"] * p.float()
        count = float(step) + 1  # torch_npu says how many steps there were before
        first = m.float() * a["beta1"] + grad * (1 - a["beta1"])
        second = v.float() * a["beta2"] + grad * grad * (1 - a["beta2"])
        rate = a["lr"] / (1 - a["beta1"] ** count)
        divisor = (second / (1 - a["beta2"] ** count)).sqrt() + a["eps"]
        params.append(p.float() - rate * first / divisor)
        firsts.append(first)
        seconds.append(second)
    return [*params, *firsts, *seconds]


def exponential(a: Arguments, _: Outputs) -> Any:
    """Exponential numbers; the same seed and offset give the same ones, other than a device's."""
    made = torch.Generator().manual_seed((a["seed"] * 1000003 + a["offset"]) % (1 << 63))
    x = a["selfRef"]
    return torch.empty(x.shape, dtype=torch.float32).exponential_(a["lambda"], generator=made).to(x.dtype)


def moe_update_expert(a: Arguments, _: Outputs) -> Any:
    """Of each expert the instance for this process: the table has for each how many there are, then which."""
    if a["balanceMode"] or any(a[n] is not None for n in ("expertScales", "pruningThreshold", "activeMask")):
        raise refuse(f"MoeUpdateExpert with balance mode {a['balanceMode']}, or with weights that are pruned")
    table = a["eplbTable"].long()[a["expertIds"].long()]
    share = -(-a["worldSize"] // table[..., 0])
    place = torch.where(table[..., 0] == 1, 1, a["localRankId"] // share + 1)
    chosen = table.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    return chosen, torch.ones(chosen.shape, dtype=torch.bool)


def swiglu_group_grad(a: Arguments, _: Outputs) -> Any:
    """Gradient of ``silu(a) * b``, a and b the halves of x."""
    given = [n for n in ("weightOptional", "yOriginOptional", "groupIndexOptional") if a[n] is not None]
    if given or a["clampLimit"]:
        raise refuse(f"SwigluGroupQuantGrad with {', '.join(given) or 'a limit'}")
    left, right = a["x"].float().chunk(2, -1)
    dy, gate = a["gradY"].float(), left.sigmoid()
    return torch.cat((dy * right * gate * (1 + left * (1 - gate)), dy * left * gate), -1), None
