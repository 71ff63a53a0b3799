import sys

import torch
import torch_npu
import torchair


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        return torch.add(self.linear(x), y, alpha=2).relu()


model = Model().npu()
x, y = torch.randn(2, 4).npu(), torch.randn(2, 3).npu()
with torch.no_grad():
    eager = model(x, y)
    for kind in ("txt", "pbtxt", "py"):
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        config.debug.graph_dump.type = kind  # ['txt', 'pbtxt', 'py']
        npu_backend = torchair.get_npu_backend(compiler_config=config)
        compiled = torch.compile(model, backend=npu_backend)
        print(kind, "largest difference", (compiled(x, y) - eager).abs().max().item())

    # torch_npu提供的"npu"后端
    torch._dynamo.reset()
    named = torch.compile(model, backend="npu")
    print("npu largest difference", (named(x, y) - eager).abs().max().item())

    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.debug.fx_summary.type = "csv"
    npu_backend = torchair.get_npu_backend(compiler_config=config)
    summed = torch.compile(model, backend=npu_backend)
    print("csv largest difference", (summed(x, y) - eager).abs().max().item())

print("torchair of", torchair.__file__)
