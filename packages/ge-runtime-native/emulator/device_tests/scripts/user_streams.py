import torch
import torch_npu
import torchair
import logging
from torchair import logger
# 设置Debug日志级别
logger.setLevel(logging.DEBUG)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        mm = torch.mm(x, x)
        abs = torch.abs(mm)
        add = torch.add(abs, 1)
        sub = torch.sub(x, mm)
        return add, sub

# 自定义Pass修改FX图
def _custom_pre_pass(gm, example_inputs, config: torchair.CompilerConfig):
    fx_graph = gm.graph
    for node in fx_graph.nodes:        
        if node.op == "call_function" and node.target == torch.ops.aten.mm.default:
            with fx_graph.inserting_before(node):
                # 在torch.ops.aten.mm.default节点前加入torch.ops.air.scope_enter.default节点
                # torch.ops.air.scope_enter和torch.ops.air.scope_exit范围内的节点将在新的流stream_1上执行
                fx_graph.call_function(torch.ops.air.scope_enter.default, args=(
                    ["_user_stream_label"], ["stream_1"]))

        if node.op == "call_function" and node.target == torch.ops.aten.abs.default:
            with fx_graph.inserting_after(node):
                # 在torch.ops.aten.abs.default节点(对应脚本中的torch.abs算子)后插入torch.ops.air.record.default节点
                record_node = fx_graph.call_function(torch.ops.air.record.default, args=())
            with fx_graph.inserting_after(record_node):
                fx_graph.call_function(torch.ops.air.scope_exit.default, args=())

        # 在torch.ops.aten.sub.Tensor节点(对应脚本中的torch.sub算子)前插入torch.ops.air.wait.default节点
        # 表示需要等待torch.ops.air.record.default前的节点执行完，torch.ops.aten.sub.Tensor才能执行
        if node.op == "call_function" and node.target == torch.ops.aten.sub.Tensor:
            with fx_graph.inserting_before(node):
                fx_graph.call_function(torch.ops.air.wait.default, args=([record_node],))

config = torchair.CompilerConfig()
# 将自定义Pass注册到TorchAir中
config.post_grad_custom_pre_pass = _custom_pre_pass
# 可选，在TorchAir已有的FX图优化Pass执行后 再执行自定义Pass
# config.post_grad_custom_post_pass = _custom_pre_pass

# 可选，使用reduce-overhead模式执行
# config.mode = "reduce-overhead" 

# 可选，max-autotune模式下 dump图结构到./test目录
config.debug.graph_dump.type = "pbtxt"
config.debug.graph_dump.path = "./graph_dump"
# 可选，max-autotune模式下关闭算子融合功能，方便在Profiling文件中观测分流及时序控制结果
config.ge_config.optimization_switch = "AutomaticUbFusion:off"

npu_backend = torchair.get_npu_backend(compiler_config=config)
model = Model().npu()
opt_model = torch.compile(model, backend=npu_backend)
x = torch.randn([3, 3]).npu()
opt_model(x)

# 可选，打印Profiling文件到./prof目录
experimental_config = torch_npu.profiler._ExperimentalConfig(
            profiler_level=torch_npu.profiler.ProfilerLevel.Level2)
with torch_npu.profiler.profile(
        activities=[torch_npu.profiler.ProfilerActivity.NPU,
                    torch_npu.profiler.ProfilerActivity.CPU],
        with_stack=True,
        record_shapes=False,
        profile_memory=False,
        schedule=torch_npu.profiler.schedule(wait=0, warmup=0, active=1, repeat=1,
                                            skip_first=0),
        experimental_config=experimental_config,
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./prof")) as prof:

        opt_model(x)

prof.step()
