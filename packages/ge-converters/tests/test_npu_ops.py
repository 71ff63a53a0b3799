"""torch_npu's operators against the formulas of their documentation, in eager PyTorch.

torch_npu is not needed: the operators are defined here with its schemas (``npu_schemas.txt``), and a formula serves as
kernel and Meta function. With torch_npu installed its own operators and Meta functions are taken.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ge_converters.base import torch_compat
from ge_converters.base.errors import Refusal
from ge_converters.decompose.formulas import other_names
from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering import lower
from ge_converters.ops.npu import refused
from ge_converters.registry import REGISTRY
from ge_converters.report import smoke

# What torch_npu's own Meta functions cannot do without a device, or at all.
_META_FAILS = {
    "npu_fusion_attention": "asks the device for its version",
    "npu_geglu_grad": "takes no defaults",
    "npu_scatter_list": "takes no mask left out",
}
_META_LOSES = {"npu_fusion_attention_grad bias": "gives no gradient of the bias"}


def _beside(name: str) -> Any:
    """A module that stands beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# Proven by tests of their own: it has no result to compare; they need a group of processes, here one of one process
# (two are in torchair's tests of collectives). What a rank gets, for the shapes:
_NO_RESULT = ("npu_prefetch",)
_BETWEEN_PROCESSES = {
    "npu_mm_all_reduce_base": lambda x1, x2, hcom, **_: x1.new_empty(x1.shape[0], x2.shape[1]),
    "npu_all_gather_base_mm": lambda input, x2, hcom, world_size, **_: (
        input.new_empty(input.shape[0] * world_size, x2.shape[1]),
        input.new_empty(input.shape[0] * world_size, input.shape[1]),
    ),
    "npu_mm_reduce_scatter_base": lambda input, x2, hcom, world_size, **_: input.new_empty(
        input.shape[0] // world_size, x2.shape[1]
    ),
}

_FILES = (
    "npu_formulas",
    "npu_attention_formulas",
    "npu_expert_formulas",
    "npu_serving_formulas",
    "npu_serving_cases",
    "npu_training_formulas",
    "npu_step_formulas",
    "npu_written_formulas",
)
MODULES = [module for module in map(_beside, _FILES) if hasattr(module, "CASES")]
CASES = [case for module in MODULES for case in module.CASES]
HALVES = MODULES[0].HALVES
_SCHEMAS = Path(__file__).with_name("npu_schemas.txt")
_REAL = importlib.util.find_spec("torch_npu") is not None


def _schemas() -> dict[str, str]:
    lines = _SCHEMAS.read_text(encoding="utf-8").splitlines()
    return {line.partition("(")[0]: line for line in lines if line}


def _tags(name: str, schema: str) -> Any:
    """What torch itself says of an operator that writes its first argument and returns it, or writes ``out``."""
    first = schema.partition("(")[2].startswith("Tensor(a!)")
    if first and schema.endswith("-> Tensor(a!)") and hasattr(torch.Tag, "inplace"):
        return (torch.Tag.inplace,)
    return (torch.Tag.out,) if schema.endswith("-> Tensor(a!)") and hasattr(torch.Tag, "out") else ()


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[Any]:
    """``torch.ops.npu``."""
    if _REAL:
        import torch_npu  # noqa: F401

        yield torch.ops.npu
        return
    library = torch.library.Library("npu", "DEF")
    formulas = {c.op: c.formula for c in CASES}
    for name, schema in _schemas().items():
        library.define(schema, tags=_tags(name, schema))
        if name in formulas:
            library.impl(name, formulas[name], "CPU")
            library._register_fake(name, formulas[name])
        elif name in _BETWEEN_PROCESSES:
            library._register_fake(name, _BETWEEN_PROCESSES[name])
        elif name in _NO_RESULT:
            library._register_fake(name, lambda *_, **__: None)
    yield torch.ops.npu
    library._destroy()


def _compiler(engine: Any) -> Any:
    """A compiler of AOTAutograd: the converters and the embedded engine."""

    def emit(gm: torch.fx.GraphModule, _: Any) -> Any:
        low = lower(gm)
        return make_boxed_func(lambda *args: smoke.execute(low, engine, list(args)))

    return emit


@pytest.fixture
def compiled(engine: Any) -> Any:
    """``compiled(fn)``: a function that goes through dynamo, AOTAutograd, the converters and the embedded engine."""

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(gm, inputs, fw_compiler=_compiler(engine), decompositions=decomposition_table())

    def compile_(fn: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)

    return compile_


def _run(op: Any, args: Any, keywords: Any, picked: Any, engine: Any, dynamic: bool) -> list[torch.Tensor]:
    """The picked results of one call; its graph is made by hand, since dynamo, which leaves an op as it is, costs most.

    ``picked``: their positions, None if the op has one result.
    """
    graph, mode = torch.fx.Graph(), torch_compat.fake_mode(dynamic=dynamic, only=op)
    fakes: list[Any] = []
    given: list[torch.Tensor] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        node = graph.placeholder(f"arg{len(fakes)}")
        fakes.append(mode.from_tensor(leaf, source=torch_compat.input_source(node.name)))
        given.append(leaf)
        return node

    placed: Any = pytree.tree_map(place, (tuple(args), keywords))
    call = graph.call_function(op, *placed)
    graph.output([call] if picked is None else [graph.call_function(operator.getitem, (call, i)) for i in picked])
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        run = aot_module_simplified(
            torch.fx.GraphModule({}, graph), fakes, fw_compiler=_compiler(engine), decompositions=decomposition_table()
        )
    return list(run(*given))


def overload(ops: Any, name: str) -> Any:
    operator, _, which = name.partition(".")
    return getattr(getattr(ops, operator), which or "default")


def _ids(case: Any) -> str:
    return f"{case.op} {case.tag}".strip()


PROOFS = [
    pytest.param(
        c,
        d,
        dynamic,
        id=f"{_ids(c)} {str(d)[6:]} {'symbolic' if dynamic else 'static'}",
        marks=[pytest.mark.slow] if dynamic or d != c.dtypes[0] else [],
    )
    for c in CASES
    for dynamic in (False, True)
    for d in c.dtypes
    if (c.dynamic or not dynamic) and (d == c.dtypes[0] or not dynamic)
]


@pytest.mark.parametrize(("case", "dtype", "dynamic"), PROOFS)
def test_as_the_formula(case: Any, dtype: torch.dtype, dynamic: bool, ops: Any, engine: Any) -> None:
    why = _META_FAILS.get(case.op) or _META_LOSES.get(_ids(case))
    if _REAL and why and not (case.op == "npu_scatter_list" and case.tag == "mask"):
        pytest.skip(f"the Meta function of torch_npu {why}")
    MODULES[0].RANDOM.manual_seed(3)
    args, keywords = case.make(dtype)
    with torch.no_grad():
        results = case.formula(*args, **keywords)
        picked = None
        declared = overload(ops, case.op)._schema.returns
        if isinstance(results, tuple):  # torch reads as many as are declared, whether they are there or not
            assert len(results) == len(declared)
        if isinstance(results, (tuple, list)):
            picked = range(len(results)) if case.outputs is None else case.outputs
        picked = () if results is None else picked  # all it does is in its arguments
        expected = [results] if picked is None else [results[i] for i in picked]
        MODULES[0].RANDOM.manual_seed(3)
        written = pytree.tree_leaves((args, keywords))
        args, keywords = case.make(dtype)  # anew: a formula may write its arguments
        got = _run(overload(ops, case.op), args, keywords, picked, engine, dynamic)
    loose = {"rtol": case.tolerance, "atol": case.tolerance} if case.tolerance and dtype in HALVES else {}
    if dtype in HALVES and not loose:
        loose = {"rtol": 2e-2 if dtype == torch.bfloat16 else 2e-3, "atol": 8e-3 if dtype == torch.bfloat16 else 1e-3}
    arguments = [(g, e) for g, e in zip(pytree.tree_leaves((args, keywords)), written) if isinstance(e, torch.Tensor)]
    for g, e in (*zip(got, expected, strict=True), *arguments):
        assert g.dtype == e.dtype
        if g.dtype.is_floating_point and g.itemsize == 1:
            assert g.shape == e.shape
            assert torch.equal(g.view(torch.uint8), e.view(torch.uint8))
            continue
        torch.testing.assert_close(g, e, **loose)


def _attention(ops: Any, q: torch.Tensor, **keywords: Any) -> Any:
    return ops.npu_fusion_attention(q, q, q, 4, "BNSD", **keywords)[0]


REFUSED = {
    "dropout": (lambda ops, q: _attention(ops, q, keep_prob=0.9), "argument 'keep_prob' is 0.9"),
    "sink": (lambda ops, q: _attention(ops, q, sink=q[0, :, 0, 0]), "argument 'sink' is a tensor"),
    "float32": (
        lambda ops, q: ops.npu_fused_infer_attention_score(q, q, q, num_heads=4, input_layout="BNSD")[0],
        "query' of FusedInferAttentionScore is DT_FLOAT",
    ),
    "quarter": (lambda ops, q: ops.npu_rotary_mul(q, q, q, "quarter"), "argument 'rotary_mode' is 'quarter'"),
    "formula": (
        lambda ops, q: ops.npu_swiglu_quant(q.half(), quant_mode=0)[0],
        "its formula declines: argument 'quant_mode' is 0; expected 1",
    ),
    "sizes": (lambda ops, q: ops.npu_bmmV2(q, q.mT, [2, 4, 5, 5]), "argument 'output_sizes' is"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_form_that_ge_has_no_words_for_is_refused(form: str, ops: Any, compiled: Any) -> None:
    if _REAL and form in ("dropout", "sink"):
        pytest.skip(f"the Meta function of torch_npu {_META_FAILS['npu_fusion_attention']}")
    run, reason = REFUSED[form]
    with pytest.raises(Exception, match="GE2001") as caught:
        compiled(lambda q: run(ops, q))(torch.randn(2, 4, 5, 16))
    assert reason in str(caught.value)


def _infer(ops: Any, q: torch.Tensor, layout: str, heads: int, **lengths: Any) -> Any:
    return ops.npu_fused_infer_attention_score(q, q, q, num_heads=heads, input_layout=layout, **lengths)[0]


def _packed(ops: Any, **lengths: Any) -> Any:
    rows = torch.randn(7, 2, 16, dtype=torch.float16)
    return lambda q: _infer(ops, q, "TND", 2, **lengths), (rows,)


def _group_size(ops: Any, size: int, k: int) -> Any:
    weight, scale = torch.ones(k, 16, dtype=torch.int8), torch.ones(k // size, 16, dtype=torch.float16)
    call = ops.npu_weight_quant_batchmatmul
    operands = torch.randn(2, k, dtype=torch.float16), weight, scale
    return lambda *tensors: call(*tensors, antiquant_group_size=size), operands


def _whole(ops: Any, **lengths: Any) -> Any:
    return lambda q: _infer(ops, q, "BNSD", 2, **lengths), (torch.randn(3, 2, 6, 16, dtype=torch.float16),)


def _groups(ops: Any, ends: list[int]) -> Any:
    weight = torch.randn(2, 16, 8, dtype=torch.float16)
    call = ops.npu_grouped_matmul.List
    operands = torch.randn(5, 16, dtype=torch.float16), weight
    return lambda x, w: call([x], [w], group_list=ends, split_item=3, group_type=0)[0], operands


# What GE refuses of constant numbers: the call, and words of the refusal.
LIMITS: dict[str, tuple[Any, str]] = {
    "fewer lengths than sequences": (lambda o: _whole(o, actual_seq_lengths=[3, 4]), "2 lengths for 3 sequences"),
    "a length beyond the rows": (lambda o: _whole(o, actual_seq_lengths_kv=[3, 4, 7]), "have 0 to 6 rows"),
    "the last sum is not the rows": (
        lambda o: _packed(o, actual_seq_lengths=[3, 6], actual_seq_lengths_kv=[3, 7]),
        "ends with 6; in layout TND the last running sum is the number of rows of 'query', which is 7",
    ),
    "sums that fall": (
        lambda o: _packed(o, actual_seq_lengths=[5, 3, 7], actual_seq_lengths_kv=[3, 5, 7]),
        "running sums, which never fall",
    ),
    "groups beyond the rows": (lambda o: _groups(o, [3, 6]), "ends with 6; x has 5 rows"),
    "groups that fall": (lambda o: _groups(o, [4, 3]), "never fall"),
    "a group size that is not aligned": (lambda o: _group_size(o, 48, 144), "multiple of 32 from 32 to 143"),
    "a group as large as k": (lambda o: _group_size(o, 128, 128), "multiple of 32 from 32 to 127"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_ge_refuses_of_constant_numbers(name: str, ops: Any) -> None:
    make, words = LIMITS[name]
    run, operands = make(ops)
    with torch.no_grad():
        traced = make_fx(run, tracing_mode="fake")(*operands)
    with pytest.raises(Exception, match="GE2001") as caught:
        lower(traced)
    assert words in str(caught.value)


def test_every_schema_has_a_converter(ops: Any) -> None:
    served = {str(e.target) for e in REGISTRY.entries()} | {name for name, _ in REGISTRY.awaited()}
    served |= {f"npu.{name}.default" for name in other_names.FORMULAS}
    pure = [name for name, schema in _schemas().items() if "!)" not in schema]
    written = {f"npu.{name}" + ("" if "." in name else ".default") for name in pure}
    assert {n for n in written if not n.removesuffix(".default").endswith("_")} <= served


def test_every_converter_is_proven() -> None:
    served = {name for name, _ in REGISTRY.awaited()} | {str(e.target) for e in REGISTRY.entries()}
    served |= {f"npu.{name}.default" for name in other_names.FORMULAS}
    proven = {f"npu.{c.op}" + ("" if "." in c.op else ".default") for c in CASES}
    proven |= {refused.full_name(op) for op in (*refused.REFUSED, *_NO_RESULT, *_BETWEEN_PROCESSES)}
    assert {name for name in served if name.startswith("npu.")} <= proven


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[str]:
    """The name of a group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield "hccl_world_group"
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", HALVES)
def test_products_between_processes(dtype: torch.dtype, one_process: str, ops: Any, engine: Any) -> None:
    """All ports that float operands have, from the op's arguments to the kernel's."""
    rand = MODULES[0].rand
    x, w, bias, more = rand(4, 6).to(dtype), rand(6, 5).to(dtype), rand(5).to(dtype), rand(4, 5).to(dtype)
    plain = x.float() @ w.float()
    close = functools.partial(torch.testing.assert_close, check_dtype=False, rtol=2e-2, atol=2e-2)
    (reduced,) = _run(
        ops.npu_mm_all_reduce_base.default, (x, w, one_process), {"bias": bias, "x3": more}, None, engine, False
    )
    close(reduced, plain + bias.float() + more.float())
    (of_int8,) = _run(
        ops.npu_mm_all_reduce_base.default,
        (x, (w * 9).to(torch.int8), one_process),
        {"antiquant_scale": bias, "antiquant_offset": more[0]},
        None,
        engine,
        False,
    )
    close(
        of_int8, x.float() @ (((w * 9).to(torch.int8).float() + more[0].float()) * bias.float()), rtol=4e-2, atol=4e-2
    )
    y, gathered = _run(ops.npu_all_gather_base_mm.default, (x, w, one_process, 1), {}, (0, 1), engine, False)
    close(y, plain)
    close(gathered, x)
    (scattered,) = _run(
        ops.npu_mm_reduce_scatter_base.default, (x, w, one_process, 1), {"bias": bias}, None, engine, False
    )
    close(scattered, plain + bias.float())


@pytest.mark.skipif(not _REAL, reason="torch_npu is not installed; its operators on a device are functional by itself")
def test_operators_in_place_become_functional(ops: Any, compiled: Any) -> None:
    cache, at, new = torch.zeros(2, 3, 6, 8), torch.tensor([1, 4]), torch.randn(2, 3, 1, 8)

    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        ops.scatter_update_(cache, at, new, -2)
        return cache + 1

    got = compiled(fn)(cache, at, new)
    expected = torch.zeros(2, 3, 6, 8)
    expected[0, :, 1], expected[1, :, 4] = new[0, :, 0], new[1, :, 0]
    torch.testing.assert_close(cache, expected)
    torch.testing.assert_close(got, expected + 1)


def _clients() -> list[str]:
    """Operators of torch_npu that public programs call in compiled code, and all that its own torchair converts."""
    here = Path(__file__)
    lists = [here.with_name(n).read_text(encoding="utf-8").split() for n in ("npu_client_ops.txt", "npu_peer_ops.txt")]
    return sorted({op for listed in lists for op in listed})


# What a program calls, and the converter that serves it: torch_npu makes its ops in place functional, or decomposes.
_THROUGH = {
    "npu_scatter_nd_update_": "npu_scatter_nd_update",
    "scatter_update_": "scatter_update",
    "npu_scatter_pa_kv_cache": "npu_scatter_pa_kv_cache_functional",
    "npu_gather_pa_kv_cache": "npu_gather_pa_kv_cache_functional",
    "npu_kv_rmsnorm_rope_cache_v2": "npu_kv_rmsnorm_rope_cache_v2_functional",
}


def test_every_operator_of_clients_is_converted_or_refused_with_its_reason() -> None:
    served = {name for name, _ in REGISTRY.awaited()} | {str(e.target) for e in REGISTRY.entries()}
    bare = {name.split(".")[1] for name in served if name.startswith("npu.")} | set(other_names.FORMULAS)
    missing = [op for op in _clients() if _THROUGH.get(op, op) not in bare]
    assert not missing
    assert not [op for op in _THROUGH if op in bare], "a row that is not needed"


@pytest.mark.parametrize("op", sorted(refused.REFUSED))
def test_a_refused_operator_says_why(op: str) -> None:
    entry = next((e for e in REGISTRY.entries() if str(e.target) == refused.full_name(op)), None)
    call = entry.fn if entry is not None else dict(REGISTRY.awaited())[refused.full_name(op)]
    with pytest.raises(Refusal) as caught:
        call()
    assert refused.REFUSED[op] in str(caught.value)


def test_prefetch_stays_behind_its_dependency(ops: Any, engine: Any) -> None:
    """It has no result, so its proof is the graph: there, with its numbers, after its dependency, and kept."""
    graphs = []

    def emit(gm: torch.fx.GraphModule, _: Any) -> Any:
        low = lower(gm)
        graphs.append(low.graph)
        return make_boxed_func(lambda *args: smoke.execute(low, engine, list(args)))

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(gm, inputs, fw_compiler=emit, decompositions=decomposition_table())

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ops.npu_prefetch(weight, y, 64, 8)
        ops.npu_prefetch(weight, None, 32)
        return y @ weight

    torch.fx.node.has_side_effect(ops.npu_prefetch.default)  # as the backend does
    x, weight = torch.randn(2, 3), torch.randn(3, 4)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(fn, backend=backend, fullgraph=True)(x, weight), (x * 2) @ weight)
    (graph,) = graphs
    near = [n for n in graph.nodes if n.op == "Cmo"]
    assert [(n.attr("max_size"), n.attr("offset")) for n in near] == [(64, 8), (32, 0)]
    assert [len(n.control) for n in near] == [1, 0]
    assert near[0].control[0].op in ("Mul", "Muls")
    assert all(n in graph.output_control for n in near), "nothing else keeps them"
