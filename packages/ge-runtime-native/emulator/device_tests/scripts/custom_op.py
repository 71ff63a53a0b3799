import auto_generated_ge_raw_custom_ops as raw
import torch
import torch_npu
from torch.library import Library, impl

import torchair
from torchair import register_fx_node_ge_converter
from torchair._ge_concrete_graph.fx2ge_converter import dtype_promote
from torchair.ge_concrete_graph.ge_graph import Tensor

# 实例化torch.library，完成"custom_op"自定义算子在"npu_define"的namespace的注册
m = Library("npu_define", "DEF")
m.define("custom_op(Tensor input1, Tensor input2) -> Tensor")


@impl(m, "custom_op", "PrivateUse1")
def plug_custom_op(
    x: torch.Tensor,
    y: torch.Tensor,
):
    return x + y


@impl(m, "custom_op", "Meta")
def custom_op_meta(x, y):
    return torch.empty_like(x)


@register_fx_node_ge_converter(torch.ops.npu_define.custom_op.default)
def conveter_custom_op(input1: Tensor, input2: Tensor, out: Tensor = None, meta_outputs=None):
    # 将输入的数据类型提升至与输出一致
    input1, input2 = dtype_promote(input1, input2, target_dtype=meta_outputs.dtype)
    # 调用ge构图api
    return raw.Add(input1, input2)


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.npu_define.custom_op(x, y) * 2


config = torchair.CompilerConfig()
config.debug.graph_dump.type = "txt"
npu_backend = torchair.get_npu_backend(compiler_config=config)
model = Model().npu()
x, y = torch.randn(2, 2).npu(), torch.randn(2, 2).npu()
eager = model(x, y)
compiled = torch.compile(model, backend=npu_backend, fullgraph=True)(x, y)
print("largest difference", (compiled - eager).abs().max().item())
