"""A custom operator from its torch schema into the GE graph, in one file, on any laptop.

    python example_custom_op_register_in_one_file.py

The GE operator that it becomes, Add, exists already; `new_custom_op.py` beside this file brings an operator of its own.
"""

import torch
from torch.library import Library, impl

import torchair
from torchair import ge, register_fx_node_ge_converter
from torchair._ge_concrete_graph.fx2ge_converter import dtype_promote
from torchair.ge_concrete_graph.ge_graph import Tensor, TensorSpec

# 1. The torch operator: schema, implementation, Meta function. On a device the implementation is registered for
#    "PrivateUse1"; here it serves every backend, so that eager mode can be compared.
library = Library("npu_define", "DEF")
library.define("custom_op(Tensor input1, Tensor input2) -> Tensor")


@impl(library, "custom_op", "CompositeExplicitAutograd")
def custom_op(x, y):
    return x + y


@impl(library, "custom_op", "Meta")
def custom_op_meta(x, y):
    return torch.empty_like(x)


# 2. The converter: parameters named as in the schema, dtypes made equal because GE does not promote.
@register_fx_node_ge_converter(torch.ops.npu_define.custom_op.default)
def convert_custom_op(input1: Tensor, input2: Tensor, meta_outputs: TensorSpec = None):
    input1, input2 = dtype_promote(input1, input2, target_dtype=meta_outputs.dtype)
    return ge.Add(input1, input2)


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.npu_define.custom_op(x, y) * 2


def main():
    model = Model()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    torch.testing.assert_close(compiled(x, y), model(x, y))
    print("custom_op runs in the GE graph and equals eager")


if __name__ == "__main__":
    main()
