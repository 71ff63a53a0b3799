"""Names that existing programs import, and what they are good for."""

import importlib
import pickle

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified

import torchair
from ge_graph.errors import ArchiveError, ConfigError, EngineError, GeError

PATHS = {
    "npugraph_ex": [
        "CompilerConfig",
        "compile_fx",
        "get_compiler",
        "get_npu_backend",
        "inference",
        "logger",
        "npu_fx_compiler",
        "register_replacement",
        "scope",
    ],
    "npugraph_ex.configs.compiler_config": ["CompilerConfig", "_process_kwargs_options"],
    "npugraph_ex.configs.npugraphex_config": ["_process_kwargs_options"],
    "npugraph_ex.core._concrete_graph": ["_is_symlist"],
    "npugraph_ex.core.utils": ["logger"],
    "npugraph_ex.inference": ["cache_compile", "readable_cache"],
    "npugraph_ex.npu_fx_compiler": [
        "_CompiledFxArtifacts",
        "_CompiledFxGraph",
        "_NpuFxCompiler",
        "_NpuGraphConverter",
        "_optimize_fx",
        "_unpack_meta_list",
    ],
    "npugraph_ex.patterns.pattern_pass_manager": ["register_replacement"],
    "npugraph_ex.scope": ["deterministic", "limit_core_num"],
    "torchair": ["inference", "llm_datadist", "logger", "npu_fx_compiler", "patch_for_hcom"],
    "torchair._contrib.custom_torch_ops": [],
    "torchair._ge_concrete_graph.hcom_utils": ["get_group_name_and_record"],
    "torchair._utils": ["get_npu_default_decompositions"],
    "torchair._utils.adjust_implicit_decomposition": [],
    "torchair.configs.compiler_config": ["_DebugConfig", "_GEConfig", "_ExperimentalConfig"],
    "torchair.core._backend": ["initialize_graph_engine"],
    "torchair.core._concrete_graph": ["ValuePack", "_is_symlist"],
    "torchair.experimental.inference": ["use_internal_format_weight"],
    "torchair.ge_concrete_graph.fx2ge_converter": ["declare_supported", "register_fx_node_ge_converter"],
    "torchair.ge_concrete_graph.ge_apis": ["Cast", "Const", "Fill"],
    "torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce": [],
    "torchair.inference": ["cache_compile", "readable_cache", "set_dim_gears"],
    "torchair.llm_datadist": ["create_npu_tensors"],
    "torchair.npu_fx_compiler": [
        "_CompiledFxArtifacts",
        "_CompiledFxGraph",
        "_NpuFxCompiler",
        "_NpuGraphConverter",
        "_optimize_fx",
        "_unpack_meta",
        "_unpack_meta_list",
    ],
    "torchair.ops": [
        "NpuStreamSwitch",
        "npu_create_tagged_event",
        "npu_fused_infer_attention_score",
        "npu_fused_infer_attention_score_v2",
        "npu_print",
        "npu_record_tagged_stream",
        "npu_tagged_event_record",
        "npu_tagged_event_wait",
        "npu_wait_tensor",
        "record",
        "wait",
    ],
    "torchair.scope._scope": ["limit_core_num", "npu_stream_switch", "npu_wait_tensor", "super_kernel"],
}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_there(path):
    module = importlib.import_module(path)
    for name in PATHS[path]:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        ("torchair", "get_npu_backends", "get_npu_backend"),
        ("torchair", "_torchair", "tair doctor"),
        ("torchair", "_exception", "GeError"),
        ("torchair.ops", "npu_waite_tensor", "npu_wait_tensor"),
        ("npugraph_ex", "get_backend", "docs/compatibility.md|get_npu_backend"),
        ("torchair.npu_fx_compiler", "nothing_like_it", "docs/compatibility.md"),
        ("torchair.configs.compiler_config", "CompileConfig", "CompilerConfig"),
    ],
)
def test_names_that_are_not_there_say_where_to_go(module, name, hint):
    module = importlib.import_module(module)
    assert not hasattr(module, name)
    with pytest.raises(GeError, match=rf"(?s)GE1066.*({hint})"):
        getattr(module, name)


def f(x):
    return x * 2 + 1


BACKENDS = {
    "npu": ("npu", {"experimental_config.frozen_parameter": True}),
    "get_npu_backend": (lambda: torchair.get_npu_backend(), {"topology_sorting_strategy": "BFS"}),
    "npugraph_ex": ("npugraph_ex", {"clone_input": False}),
    "npugraph_ex.get_npu_backend": (
        lambda: importlib.import_module("npugraph_ex").get_npu_backend(),
        {"force_eager": True, "inplace_pass": True},
    ),
}


@pytest.mark.parametrize("name", BACKENDS)
def test_options_beside_every_backend(name):
    backend, options = BACKENDS[name]
    backend = backend() if callable(backend) else backend
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(f, backend=backend, options=options)(x), f(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="GE1001"):
        torch.compile(f, backend=backend, options={"no_such_option": 1})(x)


def test_flat_options_reach_the_capture(monkeypatch):
    from torchair.runtime import reduce_overhead

    seen = []
    original = reduce_overhead.plan_capture
    monkeypatch.setattr(
        reduce_overhead,
        "plan_capture",
        lambda gm, device, options, **more: seen.append(options) or original(gm, device, options, **more),
    )
    import npugraph_ex

    config = npugraph_ex.CompilerConfig()
    config.clone_output = True
    backend = npugraph_ex.get_npu_backend(compiler_config=config)
    torch.compile(f, backend=backend, options={"capture_limit": 3})(torch.randn(3))
    assert seen[0].clone_output.value is True
    assert seen[0].capture_limit.value == 3
    with pytest.raises(ConfigError, match="GE1011"):
        npugraph_ex.get_npu_backend(compiler_config=3)


def kept_by(compiler):
    """A backend of the user's own, which keeps what the compiler made."""
    kept = []

    def backend(gm, example_inputs):
        def forward(graph, inputs):
            kept.append(compiler(graph, inputs))
            return kept[-1]

        return aot_module_simplified(gm, example_inputs, fw_compiler=forward)

    return backend, kept


def test_artifacts_of_a_compiled_graph():
    backend, kept = kept_by(torchair.get_compiler())
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(f, backend=backend, dynamic=True)(x), f(x))
    artifacts = pickle.loads(pickle.dumps(kept[0].dump_artifacts()))  # programs keep them so, their own
    load = importlib.import_module("torchair.npu_fx_compiler")._CompiledFxGraph.load_artifacts
    again = load(artifacts)
    x = torch.randn(5, 4)
    arguments = [5, 4, x]
    torch.testing.assert_close(again(*arguments)[0], f(x))
    torch.testing.assert_close(again(arguments)[0], f(x))
    assert arguments == []
    with pytest.raises(ConfigError, match="GE1011"):
        load(b"bytes")
    for spoilt in (artifacts.content[:100], b"", artifacts.content.replace(b"Mul", b"Add")):
        with pytest.raises(ArchiveError, match="GE502"):
            load(type(artifacts)(spoilt))
    config = torchair.CompilerConfig()
    config.experimental_config.topology_sorting_strategy = "BFS"
    with pytest.raises(ArchiveError, match="GE5050"):
        load(artifacts, config)


def test_compile_fx_in_a_backend_of_ones_own():
    import npugraph_ex

    backend, kept = kept_by(npugraph_ex.compile_fx)
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(f, backend=backend)(x), f(x))
    again = type(kept[0]).load_artifacts(kept[0].dump_artifacts(), kept[0]._config)
    torch.testing.assert_close(again(x)[0], f(x))


def test_compiled_graphs_kept_as_text_by_a_client(tmp_path, monkeypatch):
    """As serving programs do it: they take ``get_code`` where the compiler passes by, and give it back later."""
    import npugraph_ex
    import npugraph_ex.npu_fx_compiler as compiling

    own, kept = compiling._NpuFxCompiler._get_compiled_gm, tmp_path / "kept"

    def taking(self, graph, example_inputs):
        made = own(self, graph, example_inputs)
        kept.write_text(made.get_code())
        return made

    config = npugraph_ex.CompilerConfig()
    config.force_eager = False
    x = torch.randn(3, 4)
    with monkeypatch.context() as patched:
        patched.setattr(compiling._NpuFxCompiler, "_get_compiled_gm", taking)
        backend = npugraph_ex.get_npu_backend(compiler_config=config)
        torch.testing.assert_close(torch.compile(f, backend=backend, dynamic=True)(x), f(x))
    artifacts = compiling._CompiledFxArtifacts()
    artifacts.py_code = kept.read_text()
    again = compiling._CompiledFxGraph.load_artifacts(artifacts)
    x = torch.randn(5, 4)
    torch.testing.assert_close(again(5, 4, x)[0], f(x))
    for text in ("", "print()", '{"form": "another"}', kept.read_text()[:-9]):
        with pytest.raises(ArchiveError, match="GE502"):
            compiling._CompiledFxArtifacts().py_code = text
    with pytest.raises(ArchiveError, match="GE502"):
        compiling._CompiledFxGraph.load_artifacts(compiling._CompiledFxArtifacts())


def test_deterministic_scope():
    import npugraph_ex

    with npugraph_ex.scope.deterministic(1):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ConfigError, match="GE1030"), npugraph_ex.scope.deterministic(7):
        pass


def test_helpers():
    from torchair.core._backend import initialize_graph_engine
    from torchair.core._concrete_graph import ValuePack, _is_symlist

    initialize_graph_engine()
    initialize_graph_engine({"ge.jit_compile": "2"})
    with pytest.raises(ConfigError, match="GE1011"):
        initialize_graph_engine({"a": 1})
    assert ValuePack(3).meta == 3
    assert not _is_symlist([1, 2])
    table = importlib.import_module("torchair._utils").get_npu_default_decompositions()
    assert torch.ops.aten.silu_backward.default in table or len(table) > 100


def test_memory_of_others_needs_a_device():
    create = torchair.llm_datadist.create_npu_tensors
    with pytest.raises(EngineError, match="GE4031"):
        create([2, 3], torch.float16, [4096])
    for wrong in (([-1], torch.float16, [1]), ([1], "half", [1]), ([1], torch.float16, [0])):
        with pytest.raises(ConfigError, match="GE1011"):
            create(*wrong)


def test_groups_by_their_ranks():
    from torchair._ge_concrete_graph.hcom_utils import get_group_name_and_record

    with pytest.raises(ConfigError, match="GE1011"):
        get_group_name_and_record("", [0, 1], 2)
