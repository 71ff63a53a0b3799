"""A user's operator whose GE operator has no kernel runs by the user's own CPU implementation, as eager does."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch.aot_autograd import aot_module_simplified

import torchair
from ge_converters.registry import REGISTRY
from ge_graph import attrs, schema
from ge_graph.custom import custom_op
from ge_runtime.cpu import kernel, registry

FLOATS = "f32,f16,bf16"
ROWS: dict[str, dict[str, Any]] = {
    "OwnScale": {"in": ["x"], "out": ["y"], "attr": [["k", "Float", 1.0]]},
    "OwnBlend": {"in": ["x", "mask?", "y"], "out": ["z", "sum"], "attr": []},
    "OwnUpdate": {"in": ["total", "x"], "out": ["total", "y"], "attr": []},
}


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    for name, row in ROWS.items():
        ports = {side: [f"{port} {FLOATS}" for port in row[side]] for side in ("in", "out")}
        schema.register_schema({"op": name, **ports, "attr": row["attr"]})

    @torch.library.custom_op("own::scale", mutates_args=())
    def scale(x: torch.Tensor, k: float) -> torch.Tensor:
        return x * k

    @torch.library.custom_op("own::blend", mutates_args=())
    def blend(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return x - y if mask is None else (x - y) * mask, x + y

    @torch.library.custom_op("own::update", mutates_args=("total",))
    def update(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total += x
        return x * 2

    @torch.library.custom_op("own::device_only", mutates_args=(), device_types="cuda")
    def device_only(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    scale.register_fake(lambda x, k: torch.empty_like(x))
    blend.register_fake(lambda x, y, mask=None: (torch.empty_like(x), torch.empty_like(x)))
    update.register_fake(lambda total, x: torch.empty_like(x))
    device_only.register_fake(torch.empty_like)

    @torchair.register_fx_node_ge_converter(torch.ops.own.scale.default)
    def scale_converter(x: Any, k: float, meta_outputs: Any = None) -> Any:
        return custom_op("OwnScale", inputs={"x": x}, outputs=["y"], attrs={"k": attrs.Float(k)})

    @torchair.register_fx_node_ge_converter(torch.ops.own.blend.default)
    def blend_converter(x: Any, y: Any, mask: Any = None, meta_outputs: Any = None) -> Any:
        return custom_op("OwnBlend", inputs={"x": x, "mask": mask, "y": y}, outputs=["z", "sum"])

    @torchair.register_fx_node_ge_converter(torch.ops.own.update.default)
    def update_converter(total: Any, x: Any, meta_outputs: Any = None) -> Any:
        new, y = custom_op("OwnUpdate", inputs={"total": total, "x": x}, outputs=["total", "y"])
        return y, new

    @torchair.register_fx_node_ge_converter(torch.ops.own.device_only.default)
    def device_only_converter(x: Any, meta_outputs: Any = None) -> Any:
        return custom_op("OwnScale", inputs={"x": x}, outputs=["y"], attrs={"k": attrs.Float(1.0)})

    yield torch.ops.own
    for name in ("scale", "blend", "update", "device_only"):
        REGISTRY.unregister(getattr(torch.ops.own, name).default)


def _compiled(fn: Any, dynamic: bool = False) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_users_implementation_computes(ops: Any, dtype: torch.dtype, dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = ops.blend(x, y + 1)
        c, _ = ops.blend(y, x, a)
        return ops.scale(a, 2.5), b, c

    x, y = torch.rand(3, 4).to(dtype), torch.rand(3, 4).to(dtype)
    with pytest.warns(UserWarning, match="has no kernel on the embedded engine: the CPU implementation of own"):
        got = _compiled(fn, dynamic)(x, y)
    torch.testing.assert_close(got, fn(x, y))


def test_one_tensor_given_several_times(ops: Any) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ops.blend(x, x), ops.blend(y, x, x), ops.blend(x, x, x)

    x, y = torch.rand(3, 4), torch.rand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(_compiled(fn)(x.clone(), y), fn(x.clone(), y))


def test_what_the_operator_writes_reaches_the_callers_tensor(ops: Any) -> None:
    def fn(total: torch.Tensor, x: torch.Tensor) -> Any:
        y = ops.update(total, x)
        return y + total

    totals, x = [torch.ones(3), torch.ones(3)], torch.rand(3)
    compiled = _compiled(fn)
    with pytest.warns(UserWarning, match=r"OwnUpdate has no kernel .* own.update"):
        got = compiled(totals[0], x)
    torch.testing.assert_close([got, totals[0]], [fn(totals[1], x), totals[1]])
    torch.testing.assert_close([compiled(totals[0], x), totals[0]], [fn(totals[1], x), totals[1]])


def test_a_kernel_wins_and_says_nothing(ops: Any) -> None:
    kernel("OwnScale")(lambda x, *, k: x * k + 100)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = _compiled(lambda x: ops.scale(x, 2.0))(torch.ones(2))
    finally:
        registry.unregister("OwnScale")
    assert got.tolist() == [102.0, 102.0]


def _notices(backends: list[Any], calls: list[Any], anew: bool = True, **settings: Any) -> list[str]:
    """What is told of own operators while each call is compiled by each backend, forward and backward."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for backend in backends:
            for call in calls:
                if anew:
                    torch._dynamo.reset()
                torch.compile(call, backend=backend, **settings)(torch.ones(2), torch.ones(2))
    return [str(w.message).split()[0] for w in caught if "the CPU implementation of own." in str(w.message)]


def test_one_notice_for_all_graphs_of_a_backend(ops: Any) -> None:
    def broken(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = ops.scale(x, 2.0)
        torch._dynamo.graph_break()
        return ops.scale(ops.scale(a, 3.0), 4.0)

    def branches(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda v: ops.scale(v, 2.0), lambda v: ops.blend(v, v)[0], (x,))

    calls = [broken, lambda x, y: ops.scale(x, 5.0), lambda x, y: ops.blend(x, y), branches]
    assert _notices([torchair.get_npu_backend()], calls) == ["OwnScale", "OwnBlend"]
    assert _notices([torchair.get_npu_backend(), torchair.get_npu_backend()], calls) == ["OwnScale", "OwnBlend"] * 2


def test_one_notice_of_a_backend_by_name_and_its_options(ops: Any) -> None:
    def calls() -> list[Any]:
        return [lambda x, y: ops.scale(x, 5.0), lambda x, y: ops.scale(y, 6.0) + x, lambda x, y: ops.blend(x, y)]

    torch._dynamo.reset()
    assert _notices(["npu", "npu"], calls(), anew=False) == ["OwnScale", "OwnBlend"]
    assert _notices(["npu"], calls(), anew=False) == []
    assert _notices(["npu"], calls(), anew=False, options={"fallback": "split"}) == ["OwnScale", "OwnBlend"]
    assert _notices(["npu"], calls()[:2]) == ["OwnScale"] * 2  # torch forgets between them


def test_a_backend_by_name_is_pickled_by_it() -> None:
    backend = lookup_backend("npu")
    assert pickle.loads(pickle.dumps(backend)) is copy.deepcopy(backend) is backend


def test_one_notice_of_a_compiler_of_ones_own(ops: Any) -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        return aot_module_simplified(gm, inputs, fw_compiler=compiler)

    compiler = torchair.get_compiler()
    calls = [lambda x, y: ops.scale(x, 5.0), lambda x, y: ops.scale(y, 6.0) + x]
    assert _notices([backend], calls) == ["OwnScale"]


def test_without_a_cpu_implementation_it_is_refused(ops: Any) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="GE4003"):
        _compiled(lambda x: ops.device_only(x))(torch.ones(2))


def test_such_a_graph_is_not_kept_in_a_file(
    ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return ops.scale(x, 3.0) + 1

    for _ in range(2):
        assert _compiled(fn)(torch.ones(2)).tolist() == [4.0, 4.0]
    assert not list(tmp_path.rglob("*.air"))
    assert "compiled anew" not in caplog.text
