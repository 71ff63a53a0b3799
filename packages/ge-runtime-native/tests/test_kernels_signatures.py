"""Every kernel of the neural-network families takes the ports and attributes that the operator's schema has."""

from __future__ import annotations

import inspect

import pytest

from ge_graph import schema
from ge_runtime.cpu.registry import Kernel, parameters, registered

FAMILIES = [
    "matmul",
    "conv",
    "pool",
    "norm",
    "batch_norm",
    "softmax",
    "attention",
    "infer_attention",
    "rotary",
    "activation_grad",
    "loss",
    "embedding",
    "resize",
    "sampling",
    "optimizer",
    "quant",
    "moe",
    "foreach",
]

# Attributes that not every toolkit has; the kernels' defaults are the meaning of those that lack them.
NEWER = {
    "MoeGatingTopKSoftmaxV2": {"output_softmax"},
    "BatchNorm": {"exponential_avg_factor"},
    "BatchNorm3D": {"exponential_avg_factor"},
    "DynamicQuantV2": {"is_symmetrical", "quant_mode"},
    "GeluQuant": {"dst_type"},
    "GroupNormSilu": {"activate_silu"},
    "GroupedMatmul": {"act_type", "group_list_type"},
    "GroupedMatmulFinalizeRouting": {"tuning_config"},
    "QuantUpdateScatter": {"reciprocal_scale"},
    "ResizeBicubic": {"scales"},
    "ResizeBicubicGrad": {"scales"},
    "ResizeBilinearV2": {"scales"},
    "ResizeBilinearV2Grad": {"scales"},
    "ResizeNearestNeighborV2": {"scales"},
    "ResizeNearestNeighborV2Grad": {"scales"},
}

# Attributes whose default alone is computed; the engine refuses any other value.
DEFAULT_ONLY = {
    "DequantSwigluQuant": {"activate_dim", "dst_type", "round_mode"},
    "GeluQuant": {"round_mode"},
    "QuantUpdateScatter": {"quant_axis", "round_mode"},
    "ScatterPaKvCache": {"offsets", "strides"},
    "FusedInferAttentionScore": {"query_quant_mode", "out_dtype", "pse_type"},
    "ResizeD": {"exclude_outside"},
    "ResizeGradD": {"exclude_outside"},
    "AddRmsNormQuant": {"div_mode", "dst_type"},
    "BatchNormGrad": {"output_mask"},
    "ClippedSwiglu": {"clamp_mode"},
    "DynamicQuantV2": {"dst_type_max"},
    "FusedMatMul": {"inner_precise"},
    "FlashAttentionScore": {"offset", "out_dtype", "seed", "softmax_out_layout"},
    "FlashAttentionScoreGrad": {"offset", "out_dtype", "seed", "softmax_in_layout"},
    "LayerNormGradV3": {"output_mask"},
    "QuantBatchMatmulV3": {"group_size"},
    "RingAttentionUpdate": {"input_softmax_layout"},
}


def kernels() -> dict[str, Kernel]:
    return {op: k for op, k in registered().items() if k.run.__module__.rpartition(".")[2] in FAMILIES}


def test_kernels_fit_their_schemas():
    wrong = []
    for op, k in kernels().items():
        found = schema.get(op)
        if found is None:
            wrong.append(f"{op}: no schema")
            continue
        ports, attrs = [p.name for p in found.inputs], {a.name for a in found.attrs}
        positional, keywords = parameters(k.run)
        open_ended = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(k.run).parameters.values())
        if not open_ended and len(positional) < len(ports):
            wrong.append(f"{op}: takes {positional}, the ports are {ports}")
        if keywords is None:
            continue
        in_place = attrs & set(positional)  # a D form: an attribute stands for the port of its name
        missing = attrs - keywords - in_place - set(k.ignores) - DEFAULT_ONLY.get(op, set())
        unknown = keywords - attrs - NEWER.get(op, set()) - {"channel"}
        if missing or unknown:
            wrong.append(f"{op}: does not take {sorted(missing)}, takes {sorted(unknown)} that the schema lacks")
        if not {*k.host, *k.updates} <= {*ports, *in_place}:
            wrong.append(f"{op}: host or updates name a port that is not there")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", sorted(kernels()))
def test_kernels_say_where_their_definition_comes_from(op):
    assert kernels()[op].source
