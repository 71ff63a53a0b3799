"""A serving engine's start: compiles a model piece by piece, or loads the pieces that an earlier start has kept.

python piecewise_server.py MODE FOLDER; MODE is ``captured`` or ``ge``. Prints how many pieces were compiled and loaded,
and the largest difference from eager.

The classes have the shape of published engines. A backend of ``torch.compile`` cuts dynamo's graph at attention. Each
other piece goes to a compiler with ``compile(graph, example_inputs, compiler_config, runtime_shape, key)``, which gives
a callable and a handle for a list that the engine keeps, and ``load(handle, graph, example_inputs, graph_index,
runtime_shape)``, which gives the callable of a later start.
"""

import copy
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.passes.split_module import split_module

import torchair
from npugraph_ex.npu_fx_compiler import _CompiledFxArtifacts, _CompiledFxGraph, compile_fx
from torchair.npu_fx_compiler import NpuFxCompiler

LAYERS = 3


def with_tuple(graph):
    """The graph, copied, with a tuple as its result, and whether it had one."""
    made = copy.deepcopy(graph)
    output = next(iter(reversed(made.graph.nodes)))
    single = not isinstance(output.args[0], (tuple, list))
    if single:
        output.args = ((output.args[0],),)
        made.recompile()
    return made, single


class Compiler:
    """Keeps each compiled piece as a text in a folder of its own."""

    def __init__(self, mode):
        self.mode = mode
        self.folder = None

    def initialize_cache(self, cache_dir, disable_cache=False):
        self.folder = Path(cache_dir)

    def compile(self, graph, example_inputs, compiler_config, runtime_shape=None, key=None):
        kept = []

        def compiled(gm, inputs):
            made = compile_fx(gm, inputs) if self.mode == "captured" else NpuFxCompiler(compiler_config)(gm, inputs)
            kept.append(made)
            return made

        graph, single = with_tuple(graph)
        run = aot_module_simplified(graph, example_inputs, fw_compiler=compiled)
        path = self.folder / f"{key}.json"
        path.write_text(kept[0].get_code())
        return (lambda *args: run(*args)[0] if single else run(*args)), (key, path.name)

    def load(self, handle, graph, example_inputs, graph_index, runtime_shape=None):
        artifacts = _CompiledFxArtifacts()
        artifacts.py_code = (self.folder / handle[1]).read_text()
        made = _CompiledFxGraph.load_artifacts(artifacts)
        _, single = with_tuple(graph)

        def call(*args):
            results = made(list(args))
            return results[0] if single else tuple(results)

        return call


class Engine:
    """The backend: cuts, compiles or loads each piece, and keeps the list of handles."""

    def __init__(self, compiler, folder):
        self.compiler, self.list = compiler, Path(folder) / "handles.json"
        compiler.initialize_cache(folder)
        self.handles = json.loads(self.list.read_text()) if self.list.exists() else {}
        self.compiled = self.loaded = 0

    def __call__(self, graph, example_inputs):
        number, parts = 0, {}
        for node in graph.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            cut = "scaled_dot_product_attention" in str(node.target)
            number += cut
            parts[node] = number
            number += cut
        whole = split_module(graph, graph, lambda node: parts[node], keep_original_order=True)
        calls = dict(whole.named_children())

        class Runs(torch.fx.Interpreter):
            def call_module(this, target, args, kwargs):
                piece, at = calls[target], int(target.rpartition("_")[2])
                if at % 2 == 0:
                    name = f"piece_{at}"
                    if name not in self.pieces:
                        self.pieces[name] = self.piece(name, piece, list(args))
                    return self.pieces[name](*args)
                return piece(*args, **kwargs)

        self.pieces = {}
        return lambda *args: Runs(whole).run(*args)

    def piece(self, name, graph, inputs):
        if name in self.handles:
            self.loaded += 1
            return self.compiler.load(self.handles[name], graph, inputs, 0)
        self.compiled += 1
        call, self.handles[name] = self.compiler.compile(graph, inputs, torchair.CompilerConfig(), None, name)
        self.list.write_text(json.dumps(self.handles))
        return call


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x):
        y = self.norm(x)
        y = nn.functional.scaled_dot_product_attention(y[None], y[None], y[None])[0]
        return x + self.b(torch.relu(self.a(y)))


def main(mode, folder):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()
    engine = Engine(Compiler(mode), folder)
    call = torch.compile(copy.deepcopy(model), backend=engine, fullgraph=True, dynamic=False)
    worst = 0.0
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 8)
            worst = max(worst, float((call(x) - model(x)).abs().max()))
    print(json.dumps({"compiled": engine.compiled, "loaded": engine.loaded, "worst": worst}))


if __name__ == "__main__":
    main(*sys.argv[1:])
