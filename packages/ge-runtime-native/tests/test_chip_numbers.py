"""Where ``engine.numerics`` rounds, by GE's options of precision; the truth is the published formula in float64."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import EngineError, Graph, building, ops
from ge_graph.dtypes import BY_TORCH_NAME, DataType
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine
from ge_runtime.cpu.engine import CpuExecutable
from ge_runtime.cpu.formats import hf32, hif8

A2 = {"engine.numerics": "ascend910b"}
A5 = {"engine.numerics": "ascend950"}


def compiled(build: Callable[..., Any], *feeds: torch.Tensor, **options: str) -> CpuExecutable:
    graph = Graph("case")
    with building(graph):
        data = [
            ops.Data(index=i, dtype=BY_TORCH_NAME[str(x.dtype).removeprefix("torch.")], shape=tuple(x.shape))
            for i, x in enumerate(feeds)
        ]
        found = build(*data)
        graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    return CpuEngine().compile(graph, options)


def run(options: dict[str, str], build: Callable[..., Any], *feeds: torch.Tensor) -> torch.Tensor:
    return compiled(build, *feeds, **options).run(list(feeds))[0]


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether a float32 product is the float64 one of the same rounded operands, and not that of others."""
    return torch.allclose(got.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def matmul(a: Any, b: Any, bias: Any = None) -> Any:
    return ops.MatMulV2(a, b, bias)


def conv(x: Any, w: Any) -> Any:
    return ops.Conv2D(x, w, strides=[1, 1, 1, 1], pads=[0, 0, 0, 0], dilations=[1, 1, 1, 1], data_format="NCHW")


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(16, 64), torch.randn(64, 8)


@pytest.fixture
def image() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)


def exact(a: torch.Tensor, b: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return rounded(a).double() @ rounded(b).double()


def test_without_the_option_nothing_rounds(pair: Any) -> None:
    a, b = pair
    made = compiled(matmul, a, b, **{"ge.exec.allow_hf32": "11"})
    assert not made.rounded
    assert torch.equal(made.run([a, b])[0], a @ b)


@pytest.mark.parametrize(("value", "rounds"), [("", False), ("00", False), ("10", False), ("01", True), ("11", True)])
def test_allow_hf32_of_products(value: str, rounds: bool, pair: Any) -> None:
    a, b = pair
    got = run({**A2, **({"ge.exec.allow_hf32": value} if value else {})}, matmul, a, b)
    wanted = exact(a, b, lambda x: hf32(x, away=True)) if rounds else exact(a, b, lambda x: x)
    assert close(got, wanted)
    assert not close(got, exact(a, b, lambda x: x if rounds else hf32(x, away=True)))


@pytest.mark.parametrize(("value", "rounds"), [("", True), ("00", False), ("10", True), ("01", False), ("11", True)])
def test_convolutions_are_hf32_by_default(value: str, rounds: bool, image: Any) -> None:
    x, w = image
    got = run({**A2, **({"ge.exec.allow_hf32": value} if value else {})}, conv, x, w)
    as_hf32 = torch.conv2d(hf32(x).double(), hf32(w).double())
    plain = torch.conv2d(x.double(), w.double())
    assert close(got, as_hf32 if rounds else plain)
    assert not close(got, plain if rounds else as_hf32)


def test_a_bias_is_added_in_float32(pair: Any) -> None:
    a, b = pair
    bias = torch.randn(8)
    got = run({**A2, "ge.exec.allow_hf32": "01"}, matmul, a, b, bias)
    assert close(got, exact(a, b, lambda x: hf32(x, away=True)) + bias.double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_accumulate_in_float32_and_round_once(dtype: torch.dtype, pair: Any) -> None:
    a, b = (torch.randn(4, 4096).to(dtype), torch.randn(4096, 4).to(dtype))
    assert torch.equal(run(A2, matmul, a, b), (a.float() @ b.float()).to(dtype))


def test_fp16_rounds_operands_and_results_of_all(pair: Any) -> None:
    a, b = pair
    options = {**A2, "ge.exec.precision_mode_v2": "fp16"}
    made = compiled(lambda x, y: ops.Exp(matmul(x, y)), a, b, **options)
    assert [r.node.op for r in made.rounded] == ["MatMulV2", "Exp"]
    inner = (a.half().double() @ b.half().double()).half()
    got = made.run([a, b])[0]
    assert got.dtype is torch.float32
    assert torch.equal(got.half().float(), got)
    torch.testing.assert_close(got, inner.float().exp().half().float(), rtol=2e-3, atol=1e-3)


def test_fp16_overflows_to_infinity_or_saturates() -> None:
    x = torch.tensor([12.0, 2.0])
    options = {**A2, "ge.exec.precision_mode_v2": "fp16"}
    assert run(options, ops.Exp, x)[0].item() == torch.inf
    half = torch.tensor([12.0, 2.0], dtype=torch.float16)
    # the page of INF_NAN_MODE_ENABLE has this very example
    saturated = run({"engine.numerics": "ascend910b:saturation"}, ops.Exp, half)
    assert saturated[0].item() == 65504.0
    assert run(A2, ops.Exp, half)[0].item() == torch.inf


def test_saturation_in_fp16_ends_at_the_limit_of_float16() -> None:
    options = {"engine.numerics": "ascend910b:saturation", "ge.exec.precision_mode_v2": "fp16"}
    assert run(options, ops.Exp, torch.tensor([12.0]))[0].item() == 65504.0


def test_cube_fp16in_fp32out(pair: Any) -> None:
    a, b = pair
    options = {**A2, "ge.exec.precision_mode_v2": "cube_fp16in_fp32out"}
    made = compiled(lambda x, y: ops.Exp(matmul(x, y)), a, b, **options)
    assert [r.node.op for r in made.rounded] == ["MatMulV2"]
    assert close(made.run([a, b])[0], exact(a, b, lambda x: x.half()).exp())


def test_the_older_option_means_the_same(pair: Any) -> None:
    a, b = pair
    for older, newer in (
        ("force_fp16", "fp16"),
        ("force_fp32", "cube_fp16in_fp32out"),
        ("must_keep_origin_dtype", "origin"),
    ):
        old = run({**A2, "ge.exec.precision_mode": older}, matmul, a, b)
        assert torch.equal(old, run({**A2, "ge.exec.precision_mode_v2": newer}, matmul, a, b)), older


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cube_hif8(dtype: torch.dtype, pair: Any) -> None:
    a, b = (x.to(dtype) for x in pair)
    got = run({**A5, "ge.exec.precision_mode_v2": "cube_hif8"}, matmul, a, b)
    wanted = exact(a.float(), b.float(), hif8).float().to(dtype)
    torch.testing.assert_close(got, wanted, rtol=1e-5 if dtype is torch.float32 else 1e-2, atol=1e-5)


def test_hif8_needs_ascend950(pair: Any) -> None:
    with pytest.raises(EngineError, match=r"GE4007[\s\S]*cube_hif8[\s\S]*ascend910b") as caught:
        compiled(matmul, *pair, **A2, **{"ge.exec.precision_mode_v2": "cube_hif8"})
    assert caught.value.code == "GE4007"


def mixed(x: Any, y: Any) -> Any:
    return ops.Exp(ops.Sigmoid(matmul(x, y)))


def test_mixed_precision_and_its_lists(pair: Any, tmp_path: Path) -> None:
    a, b = pair
    file = tmp_path / "lists.json"
    file.write_text(json.dumps({"white-list": {"to-add": ["Exp"]}, "black-list": {"to-add": ["MatMulV2"]}}))
    options = {**A2, "ge.exec.precision_mode_v2": "mixed_float16"}
    with pytest.warns(UserWarning, match="lists of mixed precision stand in an installed CANN"):
        assert [r.node.op for r in compiled(mixed, a, b, **options).rounded] == ["MatMulV2"]
    with pytest.warns(UserWarning, match="lists of mixed precision"):
        made = compiled(mixed, a, b, **options, **{"ge.exec.modify_mixlist": str(file)})
    assert [r.node.op for r in made.rounded] == ["Exp"]
    got = made.run([a, b])[0]
    assert torch.equal(got, (a @ b).sigmoid().half().float().exp().half().float())


def test_lists_without_mixed_precision_are_reported(pair: Any, tmp_path: Path) -> None:
    file = tmp_path / "lists.json"
    file.write_text("{}")
    with pytest.warns(UserWarning, match="modify_mixlist needs a mixed precision mode"):
        compiled(matmul, *pair, **A2, **{"ge.exec.modify_mixlist": str(file)})


def test_mixed_bfloat16(pair: Any) -> None:
    a, b = pair
    with pytest.warns(UserWarning, match="lists of mixed precision"):
        got = run({**A2, "ge.exec.precision_mode_v2": "mixed_bfloat16"}, matmul, a, b)
    assert torch.equal(got.bfloat16().float(), got)
    torch.testing.assert_close(got, exact(a, b, lambda x: x.bfloat16()).float(), rtol=4e-3, atol=1e-2)


def test_16_bit_operators_that_keep_their_type_are_reported(pair: Any) -> None:
    a, b = (x.bfloat16() for x in pair)
    with pytest.warns(UserWarning, match="1 operators of 16-bit types keep their type"):
        got = run({**A2, "ge.exec.precision_mode_v2": "fp16"}, matmul, a, b)
    assert torch.equal(got, (a.float() @ b.float()).bfloat16())


def test_precision_by_operator(pair: Any, tmp_path: Path) -> None:
    a, b = pair
    file = tmp_path / "precision.ini"
    plain, rounded = exact(a, b, lambda x: x), exact(a, b, lambda x: hf32(x, away=True))
    hi, fp32 = "enable_hi_float_32_execution", "enable_float_32_execution"

    def product(text: str, **more: str) -> torch.Tensor:
        file.write_text(text)
        return run({**A2, **more, "ge.exec.op_precision_mode": str(file)}, matmul, a, b)

    allowed, denied = {"ge.exec.allow_hf32": "01"}, {"ge.exec.allow_hf32": "00"}
    assert close(product(f"MatMulV2={hi}\n"), rounded)
    assert close(product(f"[ByOpType]\nMatMulV2={hi}\n"), rounded)
    assert close(product(f"[ByOpType]\nMatMulV2={hi}\n", **denied), plain)  # allow_hf32 counts more
    assert close(product(f"[ByNodeName]\nMatMulV2={hi}\n", **denied), rounded)  # and a name more than that
    assert close(product(f"[ByNodeName]\nMatMulV2={fp32}\n", **allowed), plain)
    with pytest.warns(UserWarning, match="op_precision_mode MatMulV2 = high_precision: only a device shows it"):
        product("MatMulV2=high_precision\n")
    with pytest.warns(UserWarning, match="op_precision_mode Exp = .*: HF32 concerns products and convolutions only"):
        product(f"Exp={hi}\n")


def test_types_by_operator(pair: Any, tmp_path: Path) -> None:
    a, b = pair
    file = tmp_path / "types.cfg"
    file.write_text("OpType::MatMulV2:InputDtype:float16,bfloat16,OutputDtype:float32\n")
    options = {**A2, "ge.customizeDtypes": str(file), "ge.exec.allow_hf32": "11"}
    assert close(run(options, matmul, a, b), a.half().double() @ b.bfloat16().double())
    # a name counts more than a type; what no operator is called is reported
    file.write_text(
        "OpType::MatMulV2:InputDtype:float16,float16\nMatMulV2::InputDtype:float,float,OutputDtype:float16\n"
    )
    assert torch.equal(run(options, matmul, a, b), (a @ b).half().float())
    file.write_text("Elsewhere::InputDtype:float16\n")
    with pytest.warns(UserWarning, match="no operator of graph 'case' is Elsewhere, which customize_dtypes names"):
        compiled(matmul, a, b, **options)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ge.exec.modify_mixlist", "[1]"),
        ("ge.exec.modify_mixlist", '{"white-list": ["Exp"]}'),
        ("ge.exec.modify_mixlist", '{"grey": {}}'),
        ("ge.exec.op_precision_mode", "[Elsewhere]\nExp=high_precision\n"),
        ("ge.exec.op_precision_mode", "Exp\n"),
        ("ge.customizeDtypes", "MatMulV2::InputDtype:float17\n"),
        ("ge.customizeDtypes", "MatMulV2\n"),
        ("ge.customizeDtypes", "MatMulV2::InputDtype:int8,int8,OutputDtype:int32\n"),
        ("ge.customizeDtypes", "MatMulV2::InputDtype:float,float,float,float,float,float\n"),
    ],
)
def test_a_bad_file_is_refused(key: str, text: str, pair: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(EngineError, match="GE4007"):
        compiled(matmul, *pair, **A2, **{key: str(file)})
    with pytest.raises(EngineError, match="GE4007"):
        compiled(matmul, *pair, **A2, **{key: str(tmp_path / "missing")})


@pytest.mark.parametrize(
    "options",
    [
        {"engine.numerics": "ascend310"},
        {"engine.numerics": "ascend950:saturation"},
        {**A2, "ge.exec.allow_hf32": "1"},
        {**A2, "ge.exec.precision_mode_v2": "fp8"},
        {**A2, "engine.numerics_of": "MatMulV2"},
        {"engine.numerics_of": '["MatMulV2"]'},
    ],
)
def test_a_bad_option_is_refused(options: dict[str, str], pair: Any) -> None:
    with pytest.raises(EngineError, match="GE4007"):
        compiled(matmul, *pair, **options)


def test_casts_to_integers_end_at_the_limits() -> None:
    x = torch.tensor([3e9, -3e9, torch.nan, torch.inf, -torch.inf, 2.9, -2.9, 2147483520.0, -2147483648.0, 32768.0])
    for kind, dtype in (
        (DataType.DT_INT32, torch.int32),
        (DataType.DT_INT16, torch.int16),
        (DataType.DT_INT64, torch.int64),
    ):
        info = np.iinfo(str(dtype).removeprefix("torch."))
        wanted = [
            0 if v != v else max(info.min, min(info.max, int(v) if abs(v) < 2e18 else int(np.sign(v)) * 2**64))
            for v in x.tolist()
        ]
        assert run(A2, lambda t, kind=kind: ops.Cast(t, dst_type=int(kind)), x).tolist() == wanted, dtype


def test_only_named_operators_round(pair: Any) -> None:
    a, b = pair
    options = {**A2, "ge.exec.precision_mode_v2": "fp16"}
    made = compiled(mixed, a, b, **options, **{"engine.numerics_of": '["Exp"]'})
    assert [(r.path, r.text) for r in made.rounded] == [("Exp", "operands and results as float16")]
    assert torch.equal(made.run([a, b])[0], (a @ b).sigmoid().half().float().exp().half().float())
    assert not compiled(mixed, a, b, **options, **{"engine.numerics_of": "[]"}).rounded


def test_inductor_leaves_casts_out_and_is_not_used(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    with pytest.raises(EngineError, match=r"GE4007[\s\S]*engine.program"):
        compiled(matmul, a, b, **A2, **{"engine.program": "inductor"})
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "inductor")
    got = run({**A2, "ge.exec.precision_mode_v2": "fp16"}, matmul, a, b)
    assert torch.equal(got.half().float(), got)


def test_an_operator_of_a_list_of_operands() -> None:
    x, w = torch.randn(4, 8).half(), torch.randn(8, 6).half()
    got = run(A2, lambda a, b: ops.GroupedMatmul([a], [b], [], [], [], [], [], size_of_y=1)[0], x, w)
    assert torch.equal(got, (x.float() @ w.float()).half())


def test_integers_in_the_cube_do_not_round() -> None:
    x, w = torch.randint(-9, 9, (4, 8), dtype=torch.int8), torch.randint(-9, 9, (8, 6), dtype=torch.int8)
    made = compiled(matmul, x, w, **A2, **{"ge.exec.allow_hf32": "11", "ge.exec.precision_mode_v2": "fp16"})
    assert not made.rounded
    assert torch.equal(made.run([x, w])[0], x.int() @ w.int())


def test_branches_round_too() -> None:
    inner = Graph("inner")
    with building(inner):
        x = ops.Data(index=0, dtype=DataType.DT_FLOAT, shape=(4,))
        inner.outputs = [ops.Exp(x)]
    graph = Graph("outer")
    with building(graph):
        data = ops.Data(index=0, dtype=DataType.DT_FLOAT, shape=(4,))
        graph.outputs = list(ops.PartitionedCall([data], f=inner, size_of_output=1))
    options = {**A2, "ge.exec.precision_mode_v2": "fp16"}
    made = CpuEngine().compile(graph, options)
    (rule,) = made.rounded
    assert rule.path == "PartitionedCall/f/Exp"
    given = torch.randn(4)
    assert torch.equal(made.run([given])[0], given.half().float().exp().half().float())
    none = CpuEngine().compile(graph, {**options, "engine.numerics_of": '["Exp"]'})
    assert not none.rounded


def test_nothing_is_said_when_all_is_honoured(pair: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(matmul, *pair, **A2, **{"ge.exec.allow_hf32": "11", "ge.exec.precision_mode_v2": "origin"})
