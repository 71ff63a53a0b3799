"""A new operator as a module of its own: import it before the model is compiled, and the operator enters the graph.

`auto_generated_ge_raw_custom_ops.py` was made from `custom_reg_op.h`:

    python -m ge_graph.codegen custom_reg_op.h -o auto_generated_ge_raw_custom_ops.py
"""

import torch
from auto_generated_ge_raw_custom_ops import ScaleShift
from torch.library import Library, impl

from ge_runtime.cpu import kernel
from torchair import register_fx_node_ge_converter
from torchair._ge_concrete_graph.fx2ge_converter import dtype_promote
from torchair.ge_concrete_graph.ge_graph import Tensor, TensorSpec

library = Library("npu_define_new", "DEF")
library.define("scale_shift(Tensor x, Tensor? shift=None, *, float scale=1.0) -> Tensor")


@impl(library, "scale_shift", "CompositeExplicitAutograd")
def scale_shift(x, shift=None, *, scale=1.0):
    return x * scale if shift is None else x * scale + shift


@impl(library, "scale_shift", "Meta")
def scale_shift_meta(x, shift=None, *, scale=1.0):
    return torch.empty_like(x)


@register_fx_node_ge_converter(torch.ops.npu_define_new.scale_shift.default)
def convert_scale_shift(x: Tensor, shift: Tensor = None, *, scale: float = 1.0, meta_outputs: TensorSpec = None):
    if shift is not None:
        shift = dtype_promote(shift, target_dtype=meta_outputs.dtype)
    return ScaleShift(x, shift, scale=scale)


# What the operator computes, for the embedded engine; a device has the operator's own kernel.
kernel("ScaleShift")(lambda x, shift, *, scale=1.0: x * scale if shift is None else x * scale + shift)
