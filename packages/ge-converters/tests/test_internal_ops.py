"""Every operator that torch's decompositions and layers call by an internal name is served, or refused with a reason.

The list is derived from torch: all functional overloads of ``prims``, and of ``aten`` under a name that begins with an
underscore, which a CPU can run.
"""

import re

import pytest
import torch
import torch._prims

from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering.graph_lowering import handled_by_walk
from ge_converters.registry import REGISTRY

# What no graph of this backend holds, by name, and why.
UNREACHABLE = {
    r"sparse|_cslt|_coalesced|csr|_spdiags": "sparse tensors, which are refused as inputs",
    r"nested|jagged": "nested tensors, which tracing takes apart into dense ones",
    r"mkldnn|nnpack|_slow_conv2d|cudnn|_mps|vulkan": "kernels of one library, chosen below what is traced",
    r"quantiz|_q_|_empty_affine|_empty_per_channel": "quantised tensors, a type that tracing does not know",
    r"inductor_|_low_memory_max_pool|prepare_softmax_online": "written by inductor's own passes",
    r"_test_|_foobar": "torch's own tests",
    r"_make_token|_sink_tokens|_print|_has_same_storage|_resize_output|_pin_memory": "effects on memory or the screen",
    r"_fw_primal|_make_dual|_new_zeros_with_same_feature": "forward-mode differentiation, done when torch traces",
    r"_fused_sdp_choice|prims.m..imum_value": "gives a number, which is known when torch traces",
    r"prims.xor_sum": "part of hash_tensor, which is refused whole",
    r"_ctc_loss": "torch has no shape function of it: no backend can trace it",
}


def functional(namespace):
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith(f"{namespace}::"):
            continue
        packet = getattr(getattr(torch.ops, namespace), schema.name.partition("::")[2], None)
        op = getattr(packet, schema.overload_name or "default", None)
        if isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable:
            yield op


def has_kernel(op, *keys):
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), k) for k in keys)
    except RuntimeError:  # the name is reserved, there is no operator
        return False


def internal():
    found = {*functional("prims"), *(o for o in functional("aten") if str(o).startswith("aten._"))}
    runs = (o for o in found if has_kernel(o, "CPU", "CompositeExplicitAutograd"))
    return sorted((o for o in runs if not has_kernel(o, "CompositeImplicitAutograd")), key=str)


def served(op):
    return REGISTRY.find(op) is not None or op in decomposition_table() or handled_by_walk(op)


def reason(op):
    return next((why for pattern, why in UNREACHABLE.items() if re.search(pattern, str(op))), "")


OPS = internal()


def test_the_list_is_torch_s():
    names = {str(o) for o in OPS}
    assert names >= {"prims.div.default", "aten._fused_adam.default", "aten._transformer_encoder_layer_fwd.default"}
    assert len(OPS) > 300


@pytest.mark.parametrize("op", OPS, ids=str)
def test_is_served_or_out_of_reach(op):
    assert served(op) or reason(op)


@pytest.mark.parametrize("pattern", UNREACHABLE)
def test_a_reason_is_needed(pattern):
    assert any(re.search(pattern, str(op)) and not served(op) for op in OPS)
