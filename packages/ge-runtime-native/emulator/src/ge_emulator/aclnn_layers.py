"""Operator functions that are whole layers, or steps of training: attention with sinks, recurrent networks, experts.

As in ``aclnn_forms``: arguments by name and the tensors to write; the results in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ge_emulator.aclnn_forms import Arguments, Outputs, refuse
from ge_runtime.cpu.kernels import attention, norm, quant, token_sampling

aten = torch.ops.aten


def add_rms_norm_dynamic_quant(a: Arguments, outs: Outputs) -> Any:
    """A sum, its rms norm, and up to two quantisations of that; places of what the mask leaves out are of any size."""
    if outs[0].dtype is not torch.int8:
        raise refuse(f"aclnnAddRmsNormDynamicQuantV2: the emulator quantises to int8, y1Out is {outs[0].dtype}")
    smooth = a["smoothScale1Optional"], a["smoothScale2Optional"]
    asked = a["outputMask"] or [True, None not in smooth]
    y1, y2, x, scale1, scale2 = norm.add_rms_norm_dynamic_quant(
        *(a[name] for name in ("x1", "x2", "gamma")),
        *smooth,
        a["betaOptional"],
        epsilon=a["epsilon"],
        output_mask=asked,
    )
    (y1, scale1), (y2, scale2) = (
        pair if m else (None, None) for pair, m in zip(((y1, scale1), (y2, scale2)), asked, strict=True)
    )
    return y1, y2, x, scale1, scale2


# -- steps of training -----------------------------------------------------------------------------------------------


def foreach_zero(a: Arguments, _: Outputs) -> Any:
    """Zeros in a list."""
    return [torch.zeros_like(x) for x in a["xRef"]]


def unscale(a: Arguments, _: Outputs) -> Any:
    """Gradients times the reciprocal of the scale; a flag is set where one of them is not finite."""
    grads = a["gradsRef"]
    found = any(not bool(torch.isfinite(g).all()) for g in grads)
    flag = torch.ones_like(a["foundInfRef"]) if found else a["foundInfRef"]
    return [*(g * a["inverseScale"].to(g.dtype) for g in grads), flag]


def update_scale(a: Arguments, _: Outputs) -> Any:
    """The scale and how many steps in a row were finite, after a step."""
    scale, tracker = a["scale"].clone(), a["growthTracker"].clone()
    aten._amp_update_scale_(scale, tracker, a["foundInf"], a["growthFactor"], a["backoffFactor"], a["growthInterval"])
    return scale, tracker


def repeat_interleave_grad(a: Arguments, outs: Outputs) -> Any:
    """Sum over the copies of each slice; the counts are one number or a tensor."""
    grad, axis = a["yGrad"], a["axis"]
    size = outs[0].shape[axis]
    counts = a["repeats"].long().expand(size)
    where = torch.repeat_interleave(torch.arange(size), counts)
    return torch.zeros(outs[0].shape, dtype=torch.float32).index_add_(axis, where, grad.float())


def group_norm_swish_grad(a: Arguments, _: Outputs) -> Any:
    """Gradients of group norm with x * sigmoid(scale * x) behind it, from the statistics that were saved."""
    x, dy, scale = a["x"].float(), a["dy"].float(), a["swishScale"]
    sizes = (x.shape[0], a["numGroups"], -1)
    mean, rstd = (a[n].float().reshape(x.shape[0], a["numGroups"], 1) for n in ("mean", "rstd"))
    channels = (1, -1, *([1] * (x.dim() - 2)))
    gamma, beta = (a[n].float().view(channels) for n in ("gamma", "beta"))
    normed = ((x.reshape(sizes) - mean) * rstd).view(x.shape)
    z = normed * gamma + beta
    gate = torch.sigmoid(scale * z)
    dz = dy * (gate + scale * z * gate * (1 - gate))
    inner, own = (dz * gamma).reshape(sizes), normed.reshape(sizes)
    dx = rstd * (inner - inner.mean(-1, keepdim=True) - own * (inner * own).mean(-1, keepdim=True))
    others = [d for d in range(x.dim()) if d != 1]
    dgamma = (dz * normed).sum(others) if a["dgammaIsRequire"] else None
    return dx.view(x.shape), dgamma, dz.sum(others) if a["dbetaIsRequire"] else None


# -- attention with sinks: a logit for each head that takes a share of the probability and has no value ---------------

_PORTS = {
    "query": "query",
    "key": "key",
    "keyIn": "key",
    "value": "value",
    "dy": "dy",
    "realShiftOptional": "real_shift",
    "pseShiftOptional": "pse_shift",
    "dropMaskOptional": "drop_mask",
    "attenMaskOptional": "atten_mask",
    "paddingMaskOptional": "padding_mask",
    "softmaxMaxOptional": "softmax_max",
    "softmaxSumOptional": "softmax_sum",
    "attentionInOptional": "attention_in",
    "prefixOptional": "prefix",
    "actualSeqQLenOptional": "actual_seq_qlen",
    "actualSeqKvLenOptional": "actual_seq_kvlen",
    "scaleValue": "scale_value",
    "keepProb": "keep_prob",
    "preTokens": "pre_tockens",
    "nextTokens": "next_tockens",
    "headNum": "head_num",
    "inputLayout": "input_layout",
    "sparseMode": "sparse_mode",
    "pseType": "pse_type",
}
# What kernels have no operand for; ``softmaxIn`` is what the forward leaves empty.
_NOT_COMPUTED = (
    "queryRope",
    "keyRope",
    "keyInRope",
    "qStartIdxOptional",
    "kvStartIdxOptional",
    "queryRopeOptional",
    "keyRopeOptional",
    "qRopeOptional",
    "kRopeOptional",
    "dScaleQOptional",
    "dScaleKOptional",
    "dScaleVOptional",
    "dScaleDyOptional",
    "dScaleOOptional",
)


def _given(value: Any) -> bool:
    return value is not None and (not isinstance(value, (list, torch.Tensor)) or len(value) > 0)


def _fed(a: Arguments, function: str) -> dict[str, Any]:
    for name in _NOT_COMPUTED:
        if _given(a.get(name)):
            raise refuse(f"{function}: the emulator computes without {name}")
    layouts = a.get("softmaxOutLayout", a.get("softmaxInLayout", ""))
    if layouts not in ("", "same_as_input", None):
        raise refuse(f"{function}: softmax layout {layouts!r}")
    if layouts == "same_as_input" and a["inputLayout"] != "TND":
        raise refuse(f"{function}: softmax layout {layouts!r} with {a['inputLayout']}")
    return {port: a[name] for name, port in _PORTS.items() if name in a and _given(a[name])}


def _sink_of(a: Arguments, like: torch.Tensor) -> torch.Tensor | None:
    """Sinks beside the statistics: (1, N, 1, 1), or (1, N, 1) for TND."""
    sink = a["sinkOptional"]
    if not _given(sink):
        return None
    return sink.float().view(1, -1, 1) if like.dim() == 3 else sink.float().view(1, -1, 1, 1)


def _by_head(x: torch.Tensor, heads: int, layout: str, like: torch.Tensor) -> torch.Tensor:
    """A factor (..., 1) of each head and query, in the layout of an output."""
    factor = like[..., :1]
    if layout in ("BNSD", "TND"):
        return x.float() * factor
    sizes = {"BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}
    spread = factor.permute(sizes[layout])
    return (x.float().view(*spread.shape[:3], -1) * spread).view(x.shape)


def sink_attention(a: Arguments, _: Outputs) -> Any:
    """Attention and its row statistics, those with the sink."""
    top, total, empty, out = attention.flash_attention_score(**_fed(a, "FlashAttentionScore"))
    sink = _sink_of(a, top)
    if sink is None:
        return top, total, empty, out
    new = torch.maximum(top, sink)
    kept = total * (top - new).exp()
    whole = kept + (sink - new).exp()
    return new, whole, empty, _by_head(out, a["headNum"], a["inputLayout"], kept / whole).to(out.dtype)


def sink_attention_grad(a: Arguments, outs: Outputs) -> Any:
    """Gradients by the saved statistics; that of a sink is minus its probability times the rows' products."""
    dq, dk, dv, dpse = attention.flash_attention_score_grad(**_fed(a, "FlashAttentionScoreGrad"))
    sink = _sink_of(a, a["softmaxMaxOptional"])
    dsink = None
    if sink is not None:
        rows = a["dy"].float() * a["attentionInOptional"].float()
        layout, heads = a["inputLayout"], a["headNum"]
        if layout in ("BSH", "SBH"):
            rows = rows.unflatten(-1, (heads, -1))
        axes = {"BNSD": (0, 1, 2), "BSND": (0, 2, 1), "BSH": (0, 2, 1), "SBH": (1, 2, 0), "TND": (0, 1)}[layout]
        product = rows.sum(-1).permute(axes)
        share = (sink - a["softmaxMaxOptional"]).exp() / a["softmaxSumOptional"]
        dsink = -(share[..., 0] * product).sum([d for d in range(product.dim()) if d != 1])
    grads = (dq, None, dk, None) if "keyInRope" in a else (dq, dk)
    return *grads, dv, dpse if dpse.numel() else None, dsink


# -- recurrent networks ----------------------------------------------------------------------------------------------


def _layers(a: Arguments, both: bool) -> Iterator[tuple[int, bool, tuple[Any, ...]]]:
    """Of each layer and direction: its place in the states, whether time runs backwards, weights and biases."""
    width = 4 if a["hasBias"] else 2
    directions = 2 if both else 1
    for place in range(a["numLayers"] * directions):
        part = a["params"][place * width : (place + 1) * width]
        yield place, place % directions == 1, (*part, *([None] * (4 - width)))


def _recurrent(a: Arguments, both: bool, step: Any, states: int, kept: int) -> tuple[Any, list[Any], list[list[Any]]]:
    """Output, last states, and of each layer and direction what each step keeps, by time."""
    if _given(a["batchSizes"]) or a["dropout"] and a["train"]:
        raise refuse("a recurrent network with packed sequences, or with dropout between its layers")
    x = a["input"].transpose(0, 1) if a["batchFirst"] else a["input"]
    first = a["hx"] if isinstance(a["hx"], list) else [a["hx"]]
    last: list[list[Any]] = [[] for _ in range(states)]
    gates: list[list[Any]] = [[] for _ in range(kept)]
    halves: list[Any] = []
    for place, backwards, parameters in _layers(a, both):
        state = [h[place] for h in first]
        outputs, saved = [], []
        for t in range(x.shape[0] - 1, -1, -1) if backwards else range(x.shape[0]):
            state, keep = step(x[t], state, *parameters)
            outputs.append(state[0])
            saved.append(keep)
        turn = -1 if backwards else 1
        halves.append(torch.stack(outputs[::turn]))
        for store, column in zip(gates, zip(*saved)):
            store.append(torch.stack(column[::turn]))
        for store, value in zip(last, state):
            store.append(value)
        if not both or backwards:
            x, halves = torch.cat(halves, -1), []
    y = x.transpose(0, 1) if a["batchFirst"] else x
    return y, [torch.stack(s) for s in last], gates


def _gru_step(x: Any, state: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    (h,) = state
    given, back = F.linear(x, w, b), F.linear(h, u, c)
    r, z = ((p + q).sigmoid() for p, q in zip(given.chunk(3, -1)[:2], back.chunk(3, -1)[:2]))
    hn = back.chunk(3, -1)[2]
    n = (given.chunk(3, -1)[2] + r * hn).tanh()
    new = (1 - z) * n + z * h
    return [new], (r, z, n, hn, new)


def _lstm_step(x: Any, state: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    h, cell = state
    i, f, g, o = (F.linear(x, w, b) + F.linear(h, u, c)).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * cell + i * g
    bent = cell.tanh()
    return [o * bent, cell], (i, g, f, o, o * bent, cell, bent)


def gru(a: Arguments, _: Outputs) -> Any:
    """A GRU of several layers, and the gates of each, which its gradient takes."""
    y, last, gates = _recurrent(a, a["bidirection"], _gru_step, 1, 5)
    return [y, *last, *(t for column in gates for t in column)]


def lstm(a: Arguments, _: Outputs) -> Any:
    """An LSTM of several layers, and the gates of each, which its gradient takes."""
    y, last, gates = _recurrent(a, a["bidirectional"], _lstm_step, 2, 7)
    return [y, *last, *(t for column in gates for t in column)]


def _recurrent_grad(a: Arguments, run: Any, grads: list[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Gradients of input, states and parameters: the forward is run again and differentiated."""
    several = isinstance(a["hx"], list)
    leaves = [a["input"], *(a["hx"] if several else [a["hx"]]), *a["params"]]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    count = len(a["hx"]) if several else 1
    states = leaves[1 : 1 + count]
    again = {**a, "input": leaves[0], "hx": states if several else states[0], "params": leaves[1 + count :]}
    with torch.enable_grad():
        results = run(again)
    pairs = [(r, g) for r, g in zip(results, grads) if g is not None and g.numel()]
    found = torch.autograd.grad([r for r, _ in pairs], leaves, [g.to(r.dtype) for r, g in pairs], allow_unused=True)
    filled = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves)]
    return filled[0], filled[1 : 1 + count], filled[1 + count :]


def gru_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of a GRU."""
    given = {**a, "dropout": 0.0, "train": False}
    dx, states, parameters = _recurrent_grad(given, lambda b: gru(b, [])[:2], [a["dy"], a["dh"]])
    return [dx, *states, *parameters]


# -- experts, caches, quantisation ------------------------------------------------------------------------------------


def swiglu_quant(a: Arguments, outs: Outputs) -> Any:
    """SwiGLU of halves, smoothed by the group of each row, then rounded to int8 with a scale for each row."""
    if a["quantMode"] != "dynamic" or a["dstType"] != 2 or _given(a["offsetsOptional"]):
        raise refuse(f"SwiGluQuant with quantMode {a['quantMode']!r}, dstType {a['dstType']} or offsets")
    left, right = a["x"].float().chunk(2, -1)
    y = F.silu(left) * right if a["activateLeft"] else F.silu(right) * left
    smooth = a["smoothScalesOptional"]
    if _given(smooth):
        smooth = smooth.float().reshape(-1, y.shape[-1])
        if _given(a["groupIndexOptional"]):
            ends = a["groupIndexOptional"].long()
            ends = ends if a["groupListType"] == 0 else ends.cumsum(0)
            counts = torch.diff(ends, prepend=ends.new_zeros(1))
            smooth = smooth.repeat_interleave(counts, 0)
            rows = y.reshape(-1, y.shape[-1])
            rows[: smooth.shape[0]] *= smooth
        else:
            y = y * smooth
    scale = y.abs().amax(-1) / 127
    return (y / scale.unsqueeze(-1)).round().clamp(-128, 127).to(torch.int8), scale


def quant_max(a: Arguments, outs: Outputs) -> Any:
    """The scaled tensor as an 8-bit float, and the largest magnitude of the unscaled one."""
    if a["roundMode"] != "rint":
        raise refuse(f"QuantMax with roundMode {a['roundMode']!r}")
    x = a["x"].float()
    limit = torch.finfo(outs[0].dtype).max
    return (x * a["scale"].float()).clamp(-limit, limit).to(outs[0].dtype), x.abs().amax().reshape(1)


def gather_pa_kv_cache(a: Arguments, _: Outputs) -> Any:
    """Rows of paged caches, sequence after sequence."""
    if a["cacheMode"] != "Norm":
        raise refuse(f"GatherPaKvCache with cacheMode {a['cacheMode']!r}")
    lengths = a["seqLens"].long()
    if a["isSeqLensCumsum"]:
        lengths = torch.diff(lengths)
    tables, size = a["blockTables"].long(), a["keyCache"].shape[1]
    offsets = a["seqOffsetOptional"] if _given(a["seqOffsetOptional"]) else torch.zeros_like(lengths)
    results = []
    for name, target in (("keyCache", "keyRef"), ("valueCache", "valueRef")):
        rows = []
        for table, length, offset in zip(tables, lengths.tolist(), offsets.tolist()):
            at = torch.arange(offset, offset + length)
            rows.append(a[name][table[at // size], at % size])
        found, whole = torch.cat(rows), a[target].clone()
        whole[: found.shape[0]] = found
        results.append(whole)
    return results


def grouped_matmul_add(a: Arguments, _: Outputs) -> Any:
    """Of each group of rows, x transposed times weight, added to the group's matrix."""
    if not a["transposeX"] or a["transposeWeight"] or a["groupType"] != 2 or a.get("groupListType", 0) not in (0, 1):
        raise refuse("GroupedMatmulAdd with other transpositions or groups than documented")
    ends = a["groupList"].long()
    ends = ends.cumsum(0) if a.get("groupListType", 0) == 1 else ends
    if int(ends[-1]) > a["x"].shape[0]:
        raise refuse(f"GroupedMatmulAdd: groups of {int(ends[-1])} rows, there are {a['x'].shape[0]}")
    y, start = a["yRef"].float().clone(), 0
    flat = y.view(len(ends), -1, a["weight"].shape[-1])
    for i, end in enumerate(ends.tolist()):
        flat[i] += a["x"][start:end].float().t() @ a["weight"][start:end].float()
        start = end
    return y


def top_k_top_p(a: Arguments, _: Outputs) -> Any:
    """-inf for scores outside the k largest, then for those outside the most probable ones that make up p."""
    values, places = torch.sort(a["logits"], dim=-1, stable=True)
    p, k = (a[name] if _given(a[name]) else None for name in ("p", "k"))
    return token_sampling.apply_top_k_top_p_with_sorted(values, places.to(torch.int32), p, k)


def _causal(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    taps = weight.shape[0]
    padded = F.pad(x, (0, 0, 0, 0, taps - 1, 0))
    return sum(padded[k : k + x.shape[0]] * weight[k] for k in range(taps))


def masked_causal_conv1d(a: Arguments, _: Outputs) -> Any:
    """A convolution of each channel with the rows before, where a mask (B, S) keeps the result; rows are (S, B, H)."""
    y = _causal(a["input"].float(), a["weight"].float())
    return y * a["maskOptional"].t().unsqueeze(-1) if _given(a["maskOptional"]) else y


def masked_causal_conv1d_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of input and weight."""
    x, weight = (a[n].float().requires_grad_() for n in ("input", "weight"))
    with torch.enable_grad():
        y = masked_causal_conv1d({**a, "input": x, "weight": weight}, [])
    return torch.autograd.grad(y, (x, weight), a["gradOutput"].float())


def _windows(a: Arguments, rows: int) -> Iterator[int]:
    """Where each window of ``NsaCompress`` starts; no window crosses sequences."""
    ends = a["actSeqLenOptional"] or [rows]
    if a["actSeqLenType"] != 0 or a["layoutOptional"] != "TND":
        raise refuse("NsaCompress with other lengths than cumulative ones, or another layout than TND")
    start = 0
    for end in ends:
        yield from range(start, end - a["compressBlockSize"] + 1, a["compressStride"])
        start = end


def nsa_compress(a: Arguments, _: Outputs) -> Any:
    """Weighted sums of windows of rows, with a weight for each row of the window and head."""
    x, weight, size = a["input"].float(), a["weight"].float().unsqueeze(-1), a["compressBlockSize"]
    return torch.stack([(x[at : at + size] * weight).sum(0) for at in _windows(a, x.shape[0])])


def nsa_compress_grad(a: Arguments, _: Outputs) -> Any:
    """Gradients of input and weight."""
    x, weight = (a[n].float().requires_grad_() for n in ("input", "weight"))
    with torch.enable_grad():
        y = nsa_compress({**a, "input": x, "weight": weight}, [])
    return torch.autograd.grad(y, (x, weight), a["outputGrad"].float())


def coalesce_sparse(a: Arguments, outs: Outputs) -> Any:
    """Values of equal indices added; the indices of each, by the order that is given."""
    inverse = a["uniqueIndices"].long()
    values = torch.zeros(outs[1].shape, dtype=torch.float32).index_add_(0, inverse, a["values"].float())
    indices = torch.zeros(outs[0].shape, dtype=a["indices"].dtype)
    indices[inverse] = a["indices"]
    return indices, values


def rms_norm_quant(a: Arguments, outs: Outputs) -> Any:
    """RMS norm, then int8 by a scale; ``divMode`` divides by it."""
    x = a["x"].float()
    rstd = (x.square().mean(-1, keepdim=True) + a["epsilon"]).rsqrt()
    y = x * rstd * a["gamma"].float()
    y = y if a["beta"] is None else y + a["beta"].float()
    scale = a["scale"].float()
    y = y / scale if a["divMode"] else y * scale
    y = y if a["offset"] is None else y + a["offset"].float()
    return y.round().clamp(-128, 127).to(outs[0].dtype), rstd.squeeze(-1) if a["outputRstd"] else None


def rotate_quant(a: Arguments, outs: Outputs) -> Any:
    """Rows times a rotation, rounded to the type of x; then int8 with a scale for each row."""
    if a["roundMode"] != "rint" or _given(a["alpha"]) or a["trans"] or outs[0].dtype is not torch.int8:
        raise refuse("RotateQuant other than to int8 with roundMode 'rint'")
    x, rotation = a["x"], a["rotation"].float()
    y = (x.float().view(-1, rotation.shape[0]) @ rotation).to(x.dtype).float().view(x.shape)
    top = y.abs().amax(-1, keepdim=True)
    return (y * (127 / top)).round().nan_to_num().to(torch.int8), (top / 127).squeeze(-1)


def anti_mx_quant(a: Arguments, outs: Outputs) -> Any:
    """An 8-bit float times a power of two for every 32 elements of the last dimension."""
    x = a["x"]
    if a["axis"] not in (-1, x.dim() - 1):
        raise refuse(f"AntiMxQuant along axis {a['axis']} of {x.dim()}")
    scale = a["mxscale"].float().flatten(-2).repeat_interleave(32, -1)[..., : x.shape[-1]]
    return x.float() * scale


def quantize(a: Arguments, outs: Outputs) -> Any:
    """x / scale + zero point, rounded."""
    points = a["zeroPoints"] if _given(a["zeroPoints"]) else None
    return quant.quantize(a["x"], a["scales"], points, dtype=str(outs[0].dtype), axis=a["axis"])


def qkv_rms_norm_rope_cache(a: Arguments, outs: Outputs) -> Any:
    """RMS norm and rotary embedding of query and key heads; key and value into caches of tiles, by their slots."""
    if a["cacheMode"] != "PA_NZ":
        raise refuse(f"QkvRmsNormRopeCache with cacheMode {a['cacheMode']!r}")
    size = a["qkvSize"][-1]
    counts = a["headNums"]
    x = a["qkv"].float().view(a["qkv"].shape[0], sum(counts), size)
    q, k, v = x.split(counts, 1)
    cos, sin = a["cos"].float().unsqueeze(1), a["sin"].float().unsqueeze(1)

    def turned(t: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        n = t * (t.square().mean(-1, keepdim=True) + a["epsilon"]).rsqrt() * gamma.float()
        first, second = n.chunk(2, -1)
        return n * cos + torch.cat((-second, first), -1) * sin

    q, k = turned(q, a["qGamma"]), turned(k, a["kGamma"])
    rows = torch.nonzero(a["index"] >= 0).squeeze(-1)
    slots = a["index"].long()[rows]
    caches = []
    for value, name, scale, offset in ((k, "kCacheRef", "kScale", "kOffset"), (v, "vCacheRef", "vScale", "vOffset")):
        cache = a[name].clone()
        block, width = cache.shape[2], cache.shape[3]
        if _given(a[scale]):
            value = value / a[scale].float() + (a[offset].float() if _given(a[offset]) else 0)
        if not cache.dtype.is_floating_point:
            value = value.round().clamp(-128, 127)
        tiles = value.flatten(1).view(len(value), -1, width).to(cache.dtype)
        cache[slots // block, :, slots % block] = tiles[rows]
        caches.append(cache)
    return q.flatten(1), *caches, q.flatten(1), k.flatten(1), v.flatten(1)


def _expert_order(routing: torch.Tensor) -> torch.Tensor:
    """Of each pair of a token and one of its experts, token by token, its place when sorted by expert."""
    experts = torch.nonzero(routing)[:, 1]
    return experts.argsort(stable=True).argsort()


def _padded_tokens(routing: torch.Tensor, capacity: int) -> torch.Tensor:
    """The tokens of each expert, those that chose it first, filled to its capacity."""
    return routing.int().t().argsort(dim=-1, descending=True, stable=True)[:, :capacity].reshape(-1)


def permute_by_map(a: Arguments, _: Outputs) -> Any:
    """A copy of each token for each of its experts, sorted by expert, with its weight."""
    routing, tokens, probs = a["routingMap"].bool(), a["tokens"], a["probsOptional"]
    if a["dropAndPad"]:
        capacity = a["numOutTokens"] // routing.shape[1]
        chosen = _padded_tokens(routing, capacity)
        weights = None if probs is None else probs.t().gather(1, chosen.view(routing.shape[1], capacity)).reshape(-1)
        return tokens[chosen], weights, chosen.int()
    places = _expert_order(routing)
    if len(places) != a["numOutTokens"]:
        raise refuse(f"MoeTokenPermuteWithRoutingMap: the map has {len(places)} pairs, not {a['numOutTokens']}")
    rows = torch.nonzero(routing)[:, 0]
    order = torch.empty_like(places)
    order[places] = torch.arange(len(places))
    weights = None if probs is None else probs.t()[routing.t()]
    return tokens[rows[order]], weights, places.int()


def permute_by_map_grad(a: Arguments, outs: Outputs) -> Any:
    """Each token gets the sum of its copies' gradients."""
    grad, routing = a["permutedTokenOutputGrad"].float(), a["routingMapOptional"].bool()
    places, weights = a["sortedIndices"].long(), a["permutedProbsOutputGradOptional"]
    tokens = torch.zeros(outs[0].shape, dtype=torch.float32)
    given = None if weights is None else torch.zeros(routing.shape[1], routing.shape[0])
    if a["dropAndPad"]:
        tokens.index_add_(0, places, grad)
        if given is not None:
            given.scatter_(1, places.view(routing.shape[1], -1), weights.float().view(routing.shape[1], -1))
    else:
        tokens.index_add_(0, torch.nonzero(routing)[:, 0], grad[places])
        if given is not None:
            given[routing.t()] = weights.float()
    return tokens, None if given is None else given.t()


# -- hyper-connections: several residual streams, mixed by small matrices ----------------------------------------------


def mhc_post(a: Arguments, _: Outputs) -> Any:
    """The next streams: the old ones mixed, and a layer's output given to each by its share."""
    x, out, share = a["x"].float(), a["hOut"].float(), a["hPost"].float()
    given = share.unsqueeze(-1) * out.unsqueeze(-2)
    return given + (x if a["hRes"] is None else a["hRes"].float().mT @ x)


def mhc_post_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of all operands."""
    names = [n for n in ("x", "hRes", "hOut", "hPost") if a[n] is not None]
    leaves = {n: a[n].float().requires_grad_() for n in names}
    with torch.enable_grad():
        y = mhc_post({**a, **leaves}, [])
    found = dict(zip(names, torch.autograd.grad(y, list(leaves.values()), a["gradY"].float())))
    return [found.get(n) for n in ("x", "hRes", "hOut", "hPost")]


def mhc_sinkhorn(a: Arguments, outs: Outputs) -> Any:
    """Matrices whose rows and columns have the sum 1, nearly."""
    if any(o is not None and o.numel() for o in outs[1:]):
        raise refuse("MhcSinkhorn with its steps (out_flag)")
    if not 1 <= a["numIters"] <= 100:
        raise refuse(f"MhcSinkhorn of {a['numIters']} steps; the documentation has 1 to 100")
    y = a["x"].float().softmax(-1) + a["eps"]
    y = y / (y.sum(-2, keepdim=True) + a["eps"])
    for _ in range(a["numIters"] - 1):
        y = y / (y.sum(-1, keepdim=True) + a["eps"])
        y = y / (y.sum(-2, keepdim=True) + a["eps"])
    return y, None, None


def scaled_masked_softmax_backward(a: Arguments, _: Outputs) -> Any:
    """Gradient of the softmax of scaled scores; what a mask takes out gets none."""
    grad, y = a["gradOutput"].float(), a["y"].float()
    dx = (grad - (grad * y).sum(-1, keepdim=True)) * y * a["scale"]
    return dx.masked_fill(a["mask"].bool(), 0) if _given(a["mask"]) else dx


def lstm_backward(a: Arguments, _: Outputs) -> Any:
    """Gradients of an LSTM."""
    given = {**a, "dropout": 0.0, "train": False, "batchSizes": a["batchSizesOptional"]}
    dx, states, parameters = _recurrent_grad(given, lambda b: lstm(b, [])[:3], [a["dy"], a["dh"], a["dc"]])
    return [dx, *states, *parameters]
