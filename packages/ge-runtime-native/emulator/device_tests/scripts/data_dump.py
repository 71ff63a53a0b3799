import os

import torch, torch_npu, torchair


class Model(torch.nn.Module):
    def forward(self, x, y):
        x = x + 1
        x = x + y
        x = x * 2
        return x - 1


os.mkdir("./test")
config = torchair.CompilerConfig()
# Eager模式下数据dump功能
config.debug.data_dump.type = "npy"
config.debug.data_dump.path = "./test"
# 若只dump'add_1'和'sub'算子，n.name为Node类实例化的name属性
config.debug.data_dump.filter = lambda n: n if n.name in ['add_1', 'sub'] else None
npu_backend = torchair.get_npu_backend(compiler_config=config)
model = Model().npu()
opt_model = torch.compile(model, backend=npu_backend)
for step in range(2):
    x, y = torch.full((2, 3), float(step)).npu(), torch.arange(6.).reshape(2, 3).npu()
    opt_model(x, y)
