"""torch's own checks of custom operators: over ours, over operators as users write them, and over its own database."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.library import opcheck
from torch.testing._internal.custom_op_db import custom_op_db

import torchair
from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from torchair.oplib.norm_ops import own_rms_norm


def x() -> torch.Tensor:
    return torch.tensor([[0.5, -1.0], [2.0, 3.0]])


def leaf() -> torch.Tensor:
    return x().requires_grad_()


# Operator -> sets of arguments. An operator without a row is an error.
OURS: dict[str, list[tuple[Any, ...]]] = {
    "air::after": [(x(), x()), (torch.ones(2, dtype=torch.int64), leaf())],
    "air::print": [([x(), leaf()], "a \0 b \0", 3, True), ([], "nothing", -1, False)],
    "air::record": [()],
    "air::wait": [([x()],), ([],), ([leaf()],)],
    "air::wait_tensor": [(x(), leaf()), (leaf(), x())],
    "air::scope_enter": [(["_a", "_b"], ["1", ""]), ([], [], True)],
    "air::scope_exit": [()],
    "air::stream_in": [("tag",), ("tag", 1)],
    "air::stream_out": [()],
    "air::tagged_event_record": [("tag",)],
    "air::tagged_event_wait": [("tag",)],
    "air::record_tagged_stream": [(x(), "tag"), (leaf(), "tag")],
    "air::record_tagged_stream_": [(x(), "tag")],
    "torchair::_fused_rms_norm": [(x(), [2], torch.ones(2), 1e-5), (x().half(), [2, 2], None, None)],
}
OURS |= {
    f"npugraph_ex::{n}": OURS[f"air::{n}"]
    for n in (
        "record",
        "wait",
        "scope_enter",
        "scope_exit",
        "tagged_event_record",
        "tagged_event_wait",
        "record_tagged_stream",
        "record_tagged_stream_",
    )
}

# Operator -> test -> part of what it says. FX passes put ``after`` into graphs that are functional already; no user's
# function has it, so that AOTAutograd never meets it.
GAPS: dict[str, dict[str, str]] = {"air::after": {"test_aot_dispatch_dynamic": "output has alias annotations"}}

# Operators that exist in graphs only: eager raises GE4032.
IN_GRAPHS_ONLY = {"torchair::npu_fused_infer_attention_score", "torchair::npu_fused_infer_attention_score_v2"}


def overload(name: str) -> Any:
    space, _, op = name.partition("::")
    return getattr(getattr(torch.ops, space), op).default


def test_every_operator_of_ours_has_a_row():
    import npugraph_ex  # noqa: F401 - defines its operators
    import torchair.oplib.attention_ops  # noqa: F401 - likewise

    own_rms_norm()
    schemas = {s.name for s in torch._C._jit_get_all_schemas()}
    ours = {n for n in schemas if n.partition("::")[0] in ("air", "npugraph_ex", "torchair")}
    assert ours == set(OURS) | IN_GRAPHS_ONLY


@pytest.mark.parametrize("name", OURS)
def test_ours(name):
    own_rms_norm()
    gaps = GAPS.get(name, {})
    for args in OURS[name]:
        found = opcheck(overload(name), args, raise_exception=False)
        wrong = {test: str(said) for test, said in found.items() if said != "SUCCESS"}
        assert wrong.keys() == gaps.keys(), wrong
        assert all(gaps[test] in said for test, said in wrong.items())


@pytest.mark.parametrize("name", sorted(IN_GRAPHS_ONLY))
def test_ours_that_exist_in_graphs_only(name):
    import torchair.oplib.attention_ops  # noqa: F401 - defines it

    q = torch.ones(1, 2, 3, 4, dtype=torch.float16)
    with pytest.raises(EngineError, match="GE4032"):
        overload(name)(q, q, q, input_layout="BNSD")
    out, _ = overload(name)(*(q.to("meta"),) * 3, input_layout="BNSD")
    assert out.shape == q.shape


# --- as users write them ---------------------------------------------------------------------------------------------


@torch.library.custom_op("test_opcheck::scaled", mutates_args=())
def scaled(x: torch.Tensor, other: torch.Tensor | None, by: float = 2.0) -> torch.Tensor:
    """With an optional tensor, a number, and a gradient."""
    return x * by if other is None else x * by + other


@scaled.register_fake
def _(x, other, by=2.0):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, g: (g * ctx.by, g if ctx.added else None, None),
    setup_context=lambda ctx, inputs, output: (
        setattr(ctx, "by", inputs[2]),
        setattr(ctx, "added", inputs[1] is not None),
    )[0],
)


@torch.library.custom_op("test_opcheck::extremes", mutates_args=())
def extremes(xs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a list, with two results."""
    return torch.minimum(xs[0], xs[1]), torch.maximum(xs[0], xs[1])


@extremes.register_fake
def _(xs):
    return torch.empty_like(xs[0]), torch.empty_like(xs[0])


@torch.library.custom_op("test_opcheck::grow", mutates_args={"x"})
def grow(x: torch.Tensor, by: torch.Tensor) -> None:
    """Writes its argument."""
    x.add_(by)


@grow.register_fake
def _(x, by):
    return None


USERS = {
    scaled: [(leaf(), None), (leaf(), leaf(), 3.0), (x(), x()[:, :1].expand(2, 2), -1.0)],
    extremes: [([x(), x().t()],)],
    grow: [(x(), x() * 2), (x().t(), x())],
}


@pytest.fixture
def converters():
    def scaled_(x, other, by=2.0, *, meta_outputs):
        product = ge.Mul(x, ge.Const(by, dtype=x.dtype))
        return product if other is None else ge.Add(product, other)

    def extremes_(xs, *, meta_outputs):
        return ge.Minimum(*xs), ge.Maximum(*xs)

    def grow_(x, by, *, meta_outputs=None):
        return ge.Add(x, by)

    made = {scaled: scaled_, extremes: extremes_, grow: grow_}
    for op, converter in made.items():
        register_fx_node_ge_converter(op._opoverload)(converter)
    yield
    for op in made:
        REGISTRY.unregister(op._opoverload)


@pytest.mark.parametrize("op", USERS, ids=lambda op: op._name)
def test_users_operators_compiled(op, converters):
    """Correct by torch's checks, and compiled by us as in eager: results, written arguments, gradients, two sizes."""

    def program(args):
        result = op(*args)
        return args[0] * 2 if result is None else torch.utils._pytree.tree_map(lambda t: t + 1, result)

    compiled = torch.compile(program, backend=torchair.get_npu_backend(), fullgraph=True)
    for args in USERS[op]:
        opcheck(op, args)
        for size in (1, 3):
            want, got = (run(program, args, size), run(compiled, args, size))
            torch.testing.assert_close(got, want)


def run(call: Any, args: Any, repeat: int) -> list[Any]:
    """Results, arguments afterwards and gradients, with ``repeat`` times the rows."""
    tree = torch.utils._pytree
    given = tree.tree_map_only(
        torch.Tensor, lambda t: t.detach().repeat(repeat, 1).clone().requires_grad_(t.requires_grad), args
    )
    results = tree.tree_leaves(call(given))
    leaves = [t for t in tree.tree_leaves(given) if isinstance(t, torch.Tensor)]
    grads: list[Any] = []
    if any(r.requires_grad for r in results):
        wanted = [t for t in leaves if t.requires_grad]
        grads = list(torch.autograd.grad(sum((r * r).sum() for r in results), wanted))
    return [t.detach() for t in (*results, *leaves, *grads)]


# --- torch's database ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("info", custom_op_db, ids=lambda info: info.name)
def test_torchs_operators_between_graphs(info):
    """Operators without converter run between GE graphs, results that only data size among them."""
    config = torchair.CompilerConfig()
    config.fallback = "split"
    done = 0
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        if done == 2:
            break

        def program(first, *args, op=info.op, kwargs=sample.kwargs):
            results = op(torch.utils._pytree.tree_map(lambda t: t * 1.5, first), *args, **kwargs)
            return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t + t, results)

        torch._dynamo.reset()
        want = program(sample.input, *sample.args)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(program, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
            torch.testing.assert_close(compiled(sample.input, *sample.args), want)
        done += 1
    assert done
