"""What graphs cost: sizes, operations, bytes, lifetimes, figures of chips, times and measurements, by definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge_graph import Graph, building
from ge_graph.attrs import Attr, Kind
from ge_graph.cost import Memory, Shapes, attention, bind, chips, measured, network, number, symbols, time, work
from ge_graph.cost.memory import placed
from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError
from ge_graph.ir import Node, Tensor

F32, F16, BF16, I8, I64 = (
    DataType.DT_FLOAT,
    DataType.DT_FLOAT16,
    DataType.DT_BF16,
    DataType.DT_INT8,
    DataType.DT_INT64,
)


def data(graph: Graph, shape: tuple[Any, ...], dtype: DataType = F32) -> Tensor:
    index = len(graph.inputs)
    return graph.add("Data", (None,), {"index": Attr(Kind.INT, index)}, [(dtype, shape)]).outputs[0]


def node(
    graph: Graph, op: str, inputs: list[Any], *shapes: tuple[Any, ...] | None, dtype: DataType = F32, **attrs: Any
) -> Node:
    def typed(value: Any) -> Attr:
        kind = {bool: Kind.BOOL, int: Kind.INT, str: Kind.STRING, list: Kind.LIST_INT}[type(value)]
        return Attr(kind, tuple(value) if isinstance(value, list) else value)

    return graph.add(op, inputs, {k: typed(v) for k, v in attrs.items()}, [(dtype, s) for s in shapes])


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0", 7),
        ("2*s0 + 1", 15),
        ("((s0 + 7)//8)", 1),
        ("Max(1, s0 - 9)", 1),
        ("FloorDiv(s0, 2)*s1", 9),
        ("Mod(s0, 4)", 3),
        ("PowByNatural(s1, 2)", 9),
        ("s1**2", 9),
        ("CeilDiv(s0, 2)", 4),
        ("-s0 + 8", 1),
        ("ModularIndexing(s0, 2, 2)", 1),
        (12, 12),
        (-1, None),
        ("s9", None),
        ("s0 - 9", None),
        ("__import__('os').getpid()", None),
        ("s0.real", None),
        ("(lambda: 1)()", None),
        ("s0 if s0 else 1", None),
        ("9**9**9**9", None),
        ("(" * 500 + "1", None),
        ("1+" * 5000 + "1", None),
        ("s0//0", None),
        ("", None),
    ],
)
def test_a_size_is_read_as_arithmetic_and_nothing_else(text: Any, value: int | None) -> None:
    assert number(text, {"s0": 7, "s1": 3}) == value


def test_symbols_get_their_values_from_the_sizes_of_the_inputs() -> None:
    graph = Graph()
    data(graph, ("s0", 4)), data(graph, ("s1", "s0"))
    assert symbols(graph) == ["s0", "s1"]
    assert bind(graph, [(2, 4), (3, 2)]) == {"s0": 2, "s1": 3}
    for wrong in ([(2, 4)], [(2, 4), (3, 5)], [(2, 4), (3,)], [(2, 5), (3, 2)]):
        with pytest.raises(GraphError, match="GE3072"):
            bind(graph, wrong)


def test_results_without_recorded_sizes_follow_from_the_operands() -> None:
    graph = Graph()
    x, y = data(graph, (2, "s0", 8)), data(graph, (8,))
    total = node(graph, "Add", [x, y], None).outputs[0]
    shape = node(graph, "Shape", [x], None, dtype=I64).outputs[0]
    with building(graph):
        sizes = graph.add("Const", (), {"value": Attr(Kind.TENSOR, np.array([-1, 4, -1], np.int64))}, [(I64, (3,))])
    one = data(graph, (2, 1, 8))
    wide = node(graph, "BroadcastTo", [one, sizes.outputs[0]], None).outputs[0]
    high = node(graph, "Unsqueeze", [x], None, axes=[0, -1]).outputs[0]
    opaque = node(graph, "NonZero", [x], None).outputs[0]
    inputs = [data(graph, (2, 1, 5, 3)), data(graph, (4, 5, 7)), None, None]
    product = node(graph, "BatchMatMulV2", inputs, None, adj_x1=True, adj_x2=False).outputs[0]
    window = [data(graph, (2, 3, 9, 9)), data(graph, (4, 3, 3, 3)), None, None]
    strides = {"strides": [1, 1, 2, 2], "pads": [1, 1, 0, 0], "dilations": [1, 1, 1, 2]}
    convolved = node(graph, "Conv2D", window, None, data_format="NCHW", **strides).outputs[0]
    shapes = Shapes(graph, {"s0": 3})
    found = [shapes.of(t) for t in (total, shape, wide, high, product, convolved)]
    assert found == [(2, 3, 8), (3,), (2, 4, 8), (1, 2, 3, 8, 1), (2, 4, 3, 7), (2, 4, 5, 3)]
    assert shapes.unknown == [opaque]
    assert shapes.bytes(total) == 4 * 48


# -- operations and bytes ----------------------------------------------------------------------------------------------


def _matmul(graph: Graph) -> Node:
    return node(
        graph,
        "MatMulV2",
        [data(graph, (5, 3)), data(graph, (5, 7)), None, None],
        (3, 7),
        transpose_x1=True,
        transpose_x2=False,
    )


def _batched(graph: Graph) -> Node:
    return node(
        graph,
        "BatchMatMulV2",
        [data(graph, (2, 1, 3, 5)), data(graph, (4, 5, 7)), None, None],
        (2, 4, 3, 7),
        adj_x1=False,
        adj_x2=False,
    )


def _quantised(graph: Graph) -> Node:
    return node(
        graph,
        "QuantBatchMatmulV3",
        [data(graph, (3, 5), I8), data(graph, (5, 7), I8), data(graph, (7,)), None, None, None],
        (3, 7),
        dtype=F16,
        transpose_x1=False,
        transpose_x2=False,
    )


def _grouped(graph: Graph) -> Node:
    rows, weights = (data(graph, (12, 5)),), (data(graph, (4, 5, 7)),)
    inputs = [rows, weights, (), (), (), (), (), data(graph, (4,), I64), None]
    return node(graph, "GroupedMatmul", inputs, (12, 7), group_type=0, transpose_weight=False)


def _convolution(graph: Graph) -> Node:
    return node(graph, "Conv2D", [data(graph, (2, 6, 8, 8)), data(graph, (4, 3, 3, 3)), None, None], (2, 4, 6, 6))


def _depthwise(graph: Graph) -> Node:
    return node(
        graph, "DepthwiseConv2D", [data(graph, (2, 4, 8, 8)), data(graph, (4, 1, 3, 3)), None, None], (2, 4, 6, 6)
    )


def _transposed(graph: Graph) -> Node:
    inputs = [data(graph, (4,), I64), data(graph, (2, 4, 6, 6)), data(graph, (4, 3, 3, 3)), None, None]
    return node(graph, "Conv2DTranspose", inputs, (2, 3, 8, 8))


def _input_gradient(graph: Graph) -> Node:
    inputs = [data(graph, (4,), I64), data(graph, (4, 3, 3, 3)), data(graph, (2, 4, 6, 6))]
    return node(graph, "Conv2DBackpropInput", inputs, (2, 3, 8, 8))


def _filter_gradient(graph: Graph) -> Node:
    inputs = [data(graph, (2, 3, 8, 8)), data(graph, (4,), I64), data(graph, (2, 4, 6, 6))]
    return node(graph, "Conv2DBackpropFilter", inputs, (4, 3, 3, 3))


def _attention(layout: str, q: tuple[int, ...], k: tuple[int, ...]) -> Callable[[Graph], Node]:
    def made(graph: Graph) -> Node:
        inputs = [data(graph, q), data(graph, k), data(graph, k), *[None] * 9]
        return node(graph, "FlashAttentionScore", inputs, None, None, None, q, input_layout=layout, head_num=4)

    return made


def _cached(graph: Graph) -> Node:
    """One row of 4 heads of 16 against a cache of blocks: 3 blocks of 32 rows at most."""
    q, cache = data(graph, (2, 4, 1, 16)), data(graph, (9, 32, 2 * 16))
    inputs: list[Any] = [q, (cache,), (cache,), *[None] * 11, data(graph, (2, 3), I64), *[None] * 16]
    return node(
        graph,
        "FusedInferAttentionScore",
        inputs,
        (2, 4, 1, 16),
        None,
        input_layout="BNSD",
        num_heads=4,
        num_key_value_heads=2,
        block_size=32,
    )


@pytest.mark.parametrize(
    ("made", "flops"),
    [
        (_matmul, 2 * 3 * 5 * 7),
        (_batched, 2 * 2 * 4 * 3 * 5 * 7),
        (_quantised, 2 * 3 * 5 * 7),
        (_grouped, 2 * 12 * 5 * 7),
        (_convolution, 2 * 2 * 4 * 36 * 3 * 9),
        (_depthwise, 2 * 2 * 4 * 36 * 9),
        (_transposed, 2 * 2 * 4 * 36 * 3 * 9),
        (_input_gradient, 2 * 2 * 4 * 36 * 3 * 9),
        (_filter_gradient, 2 * 2 * 4 * 36 * 3 * 9),
        (_attention("BNSD", (2, 4, 6, 16), (2, 2, 10, 16)), 4 * 2 * 4 * 6 * 10 * 16),
        (_attention("BSND", (2, 6, 4, 16), (2, 10, 2, 16)), 4 * 2 * 4 * 6 * 10 * 16),
        (_attention("BSH", (2, 6, 64), (2, 10, 32)), 4 * 2 * 4 * 6 * 10 * 16),
        (_attention("SBH", (6, 2, 64), (10, 2, 64)), 4 * 2 * 4 * 6 * 10 * 16),
        (_cached, 4 * 2 * 4 * 1 * 96 * 16),
    ],
)
def test_operations_are_those_of_the_definition(made: Callable[[Graph], Node], flops: int) -> None:
    each = made(Graph())
    done = work.of(Shapes(each.graph), each)
    assert (done.flops, done.unit) == (flops, "cube")


@pytest.mark.parametrize(
    ("attrs", "pairs"),
    [
        ({}, 60),
        ({"sparse_mode": 2}, 21),
        ({"sparse_mode": 3}, 21 + 24),
        ({"sparse_mode": 1, "next_tockens": 0}, 60),
        ({"next_tockens": 0}, 21),
        ({"pre_tockens": 0, "next_tockens": 0}, 6),
        ({"sparse_mode": 5}, 0),
    ],
)
def test_a_bound_counts_only_the_pairs_that_the_mask_can_show(attrs: dict[str, Any], pairs: int) -> None:
    """6 rows of the query against 10 of the key."""
    graph = Graph()
    q, k = data(graph, (2, 4, 6, 16), F16), data(graph, (2, 4, 10, 16), F16)
    inputs = [q, k, k, *[None] * 9]
    each = node(
        graph, "FlashAttentionScore", inputs, None, None, None, (2, 4, 6, 16), input_layout="BNSD", head_num=4, **attrs
    )
    done = work.of(Shapes(graph), each)
    assert (done.flops, done.least) == (4 * 2 * 4 * 60 * 16, 4 * 2 * 4 * pairs * 16)


def test_an_attention_with_a_layout_that_nobody_knows_has_unknown_operations() -> None:
    assert attention.read("BXYZ", 4, (2, 4, 6, 16), (2, 4, 6, 16), (2, 4, 6, 16)) is None
    each = _attention("NBSD_BNSD", (2, 4, 6), (2, 4, 6))(Graph())
    assert work.of(Shapes(each.graph), each).flops is None


def test_products_without_a_formula_are_unknown_and_not_nothing() -> None:
    for op in ("SparseFlashAttention", "DeformableConv2D", "MlaPrologV3", "AlltoAllvGroupedMatMul"):
        graph = Graph()
        each = node(graph, op, [data(graph, (4, 8), F16)], (4, 8), dtype=F16)
        done = work.of(Shapes(graph), each)
        assert (done.flops, done.unit) == (None, "cube")
        assert time.of(done, chips.figures("ascend910b"), each).how == "unknown"
    assert not work.is_uncounted("GemmaRmsNorm")
    assert not work.is_uncounted("AttentionUpdate")


def test_bytes_are_what_the_definition_reads_and_writes() -> None:
    graph = Graph()
    x, table, index = data(graph, (4, 8), F16), data(graph, (100, 8)), data(graph, (3,), I64)
    axis = graph.add("Const", (), {"value": Attr(Kind.TENSOR, np.array(0))}, [(I64, ())]).outputs[0]
    shapes_of = {
        "add": node(graph, "Add", [x, x], (4, 8), dtype=F16),  # both ports are read
        "gather": node(graph, "GatherV2", [table, index, axis], (3, 8)),
        "scatter": node(graph, "ScatterUpdate", [table, index, data(graph, (3, 8))], (100, 8)),
        "view": node(graph, "Reshape", [x, index], (32,), dtype=F16),
        "fill": node(graph, "ZerosLike", [x], (4, 8), dtype=F16),
    }
    shapes = Shapes(graph)
    found = {name: work.of(shapes, n) for name, n in shapes_of.items()}
    assert {k: (w.read, w.written) for k, w in found.items()} == {
        "add": (128, 64),
        "gather": (96 + 24 + 8, 96),
        "scatter": (24 + 96, 96),
        "view": (0, 0),
        "fill": (0, 64),
    }
    assert [found[k].unit for k in found] == ["vector", "move", "move", "none", "move"]
    assert found["add"].elements == 32
    assert found["gather"].elements == 0


def test_a_cache_is_not_read_and_written_as_a_whole() -> None:
    graph = Graph()
    key, cache, slots = data(graph, (4, 8), F16), data(graph, (1000, 8), F16), data(graph, (4,), I64)
    each = node(graph, "ScatterPaKvCache", [key, cache, slots, key, cache], (1000, 8), (1000, 8), dtype=F16)
    done = work.of(Shapes(graph), each)
    assert done.bytes is not None
    assert done.bytes < 1000


# -- memory ------------------------------------------------------------------------------------------------------------


def _chain(graph: Graph, start: Tensor, count: int, shape: tuple[Any, ...]) -> Tensor:
    for _ in range(count):
        start = node(graph, "Relu", [start], shape).outputs[0]
    return start


def test_a_chain_needs_two_blocks_and_without_reuse_all_of_them() -> None:
    graph = Graph()
    end = _chain(graph, data(graph, ("s0", 128)), 5, ("s0", 128))
    graph.outputs = [end]
    memory = Memory(graph)
    plan = memory.at({"s0": 10})
    block = 10 * 512
    assert (plan.arguments, plan.outputs, plan.peak, plan.packed) == (block, block, 2 * block, 2 * block)
    assert plan.unreused == 5 * block
    assert memory.at({"s0": 20}).peak == 4 * block
    assert Memory(graph, reuse=False).at({"s0": 10}).packed == 5 * block
    assert memory.largest([{"s0": 1}, {"s0": 30}, {"s0": 8}]).peak == 2 * 30 * 512


def test_blocks_begin_at_multiples_of_512_bytes() -> None:
    graph = Graph()
    graph.outputs = [_chain(graph, data(graph, (1,)), 1, (1,))]
    assert Memory(graph).at().peak == 512


def test_views_and_updates_in_place_have_no_memory_of_their_own() -> None:
    graph = Graph()
    cache, index = data(graph, (1024,)), data(graph, (3,), I64)
    flat = node(graph, "Reshape", [cache, index], (32, 32)).outputs[0]
    written = node(graph, "ScatterUpdate", [flat, index, data(graph, (3, 32))], (32, 32)).outputs[0]
    graph.outputs = [written]
    plan = Memory(graph).at()
    assert (plan.peak, plan.outputs, plan.aliased, plan.updated) == (0, 0, 4096, 4096)


def test_memory_is_not_shared_across_streams() -> None:
    def planned(label: str) -> int:
        graph = Graph()
        x = data(graph, (128,))
        a = _chain(graph, x, 3, (128,))
        other = node(graph, "Relu", [x], (128,), **({"_user_stream_label": label} if label else {})).outputs[0]
        graph.outputs = [node(graph, "Add", [a, other], (128,)).outputs[0]]
        return Memory(graph).at().packed

    assert planned("other") == planned("") + 512 or planned("other") >= planned("")
    assert planned("other") > 3 * 512 - 1


def test_an_unread_result_lives_while_its_node_runs() -> None:
    graph = Graph()
    pair = node(graph, "TopKV2", [data(graph, (1024,)), data(graph, (), I64)], (512,), (512,))
    graph.outputs = [pair.outputs[0]]
    assert Memory(graph).at().peak == 2 * 2048


def test_packed_blocks_of_one_time_do_not_overlap_whatever_their_length() -> None:
    """A block that lives through everything stands beside a thousand short ones, which share one place."""
    graph = Graph()
    x = data(graph, (128,))
    kept = node(graph, "Relu", [x], (128,)).outputs[0]
    graph.outputs = [node(graph, "Add", [_chain(graph, x, 1000, (128,)), kept], (128,)).outputs[0]]
    plan = Memory(graph).at()
    assert (plan.peak, plan.packed, plan.unreused) == (3 * 512, 3 * 512, 1002 * 512)


def test_packing_never_overlaps_and_never_needs_less_than_the_bound() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        graph = Graph()
        tensors = [data(graph, (256,))]
        for _ in range(40):
            size = int(random.integers(1, 4000))
            inputs = [tensors[i] for i in random.integers(0, len(tensors), 2)]
            tensors.append(node(graph, "Concat", inputs, (size,)).outputs[0])
        graph.outputs = [tensors[-1]]
        memory = Memory(graph)
        plan, blocks = memory.at(), memory.blocks(Shapes(graph))
        spots = placed(blocks)
        for (a, one), (b, other) in itertools.combinations(spots, 2):
            apart = a + one.size <= b or b + other.size <= a
            assert apart or one.last < other.first or other.last < one.first
        assert plan.packed == max(a + block.size for a, block in spots)
        assert plan.peak <= plan.packed <= plan.unreused
        assert plan.packed <= 1.5 * plan.peak


# -- chips and time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("soc", "model", "peak", "vector"),
    [
        # 353.9 T, 22 T: white paper and configuration, quoted in cann/ops-transformer issue 5487
        ("Ascend910B2", "ascend910b2", 353.9e12, 11.06e12),
        ("ascend910b", "ascend910b2", 353.9e12, 11.06e12),
        ("ascend910b3", "ascend910b3", 294.9e12, 9.2e12),
        ("A3", "ascend910_9382", 353.9e12, 11.06e12),
        ("ascend950", "ascend950pr", 432e12, 27e12),
        ("ascend950pr_957b", "ascend950pr_957b", 378e12, 23.65e12),
    ],
)
def test_peaks_follow_from_cores_and_clocks(soc: str, model: str, peak: float, vector: float) -> None:
    figures = chips.figures(soc)
    assert figures.chip == model
    assert figures.cube_peak(F16) == pytest.approx(peak, rel=0.002)
    assert figures.vector_peak(F16) == pytest.approx(vector, rel=0.02)
    assert figures.cube_peak(I8) == pytest.approx(2 * peak, rel=0.002)
    assert figures.cube_peak(F16, 2) == pytest.approx(2 * peak / figures.values["cube_cores"], rel=0.002)


def test_every_figure_has_a_source_and_what_nobody_says_is_unknown() -> None:
    for model in chips.models():
        figures = chips.figures(model)
        assert figures.values.keys() == figures.sources.keys()
        assert all(len(s) > 10 for s in figures.sources.values())
    assert chips.figures("ascend310p").cube_peak(F32) is None
    assert chips.figures("ascend910b1").cube_peak(F32) is None
    for wrong in ("gpu", "ascend910b9x", ""):
        with pytest.raises(GraphError, match="GE3073"):
            chips.figures(wrong)


def _product_of(size: int, dtype: DataType = F16, **attrs: Any) -> Node:
    graph = Graph()
    x = data(graph, (size, size), dtype)
    return node(graph, "MatMulV2", [x, x, None, None], (size, size), dtype=dtype, **attrs)


def test_the_bound_is_the_roofline_and_the_estimate_is_never_below_it() -> None:
    figures = chips.figures("ascend910b2")
    for size, limit in ((8192, "cube"), (32, "cache")):
        each = _product_of(size)
        done = work.of(Shapes(each.graph), each)
        spent = time.of(done, figures, each)
        assert spent.limit == limit
        assert spent.how == "estimate"
        assert spent.value is not None
        assert spent.value >= spent.bound
        if limit == "cube":
            assert spent.bound == pytest.approx(2 * size**3 / 353.9e12, rel=0.002)
            assert spent.value == pytest.approx(spent.bound / 0.7 + 5e-6, rel=0.002)


def test_limits_of_cores_make_the_bound_longer() -> None:
    figures = chips.figures("ascend910b2")
    plain, scoped = _product_of(8192), _product_of(8192, _op_aicore_num="6")
    done = work.of(Shapes(plain.graph), plain)
    whole, of_node = time.of(done, figures, plain), time.of(done, figures, scoped)
    of_graph = time.of(done, figures, plain, limits=(12, 24))
    assert of_node.bound == pytest.approx(4 * whole.bound)
    assert of_graph.bound == pytest.approx(2 * whole.bound)


def test_what_has_no_published_figure_has_no_estimate() -> None:
    each = _product_of(512, F32)
    done = work.of(Shapes(each.graph), each)
    spent = time.of(done, chips.figures("ascend310p"), each)
    assert (spent.value, spent.how) == (None, "unknown")
    assert spent.bound > 0
    assert time.of(done, chips.figures("ascend910b2"), each, unit="aicpu").how == "unknown"


# -- measurements ------------------------------------------------------------------------------------------------------

HEAD = "Op Name,OP Type,Task Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types\n"


def test_a_measured_time_comes_before_the_estimate(tmp_path: Path) -> None:
    file = tmp_path / "op_summary_1.csv"
    rows = [
        'a,MatMulV3,170.4,"""512,512;512,512""",DT_BF16;DT_BF16,"""512,512""",DT_BF16',
        'b,MatMulV3,180.4,"""512,512;512,512""",DT_BF16;DT_BF16,"""512,512""",DT_BF16',
        "c,N/A,1,,,,",
    ]
    file.write_text(HEAD + "\n".join(rows) + "\n")
    times = measured.read(file)
    each = _product_of(512, BF16)
    shapes = Shapes(each.graph)
    seconds = times.seconds(each, shapes.of)
    assert seconds == pytest.approx(175.4e-6)
    assert times.seconds(_product_of(256, BF16), Shapes(_product_of(256).graph).of) is None
    spent = time.of(work.of(shapes, each), chips.figures("ascend910b"), each, measured=seconds)
    assert (spent.value, spent.how) == (seconds, "measured")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        HEAD,
        HEAD + "a,Add,xx,1,F,1,F\n",
        HEAD + 'a,Add,1,"1;x",F,1,F\n',
        HEAD + 'a,"Add\n',
        "\x00" * 9,
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(GraphError, match="GE3074"):
        measured.read(tmp_path / "t.csv")
    with pytest.raises(GraphError, match="GE3074"):
        measured.read(tmp_path / "absent.csv")


def test_calibration_finds_the_shares_that_made_the_numbers() -> None:
    samples = [measured.Sample("cube", c, c / 10, c / 0.8 + 4e-6) for c in np.linspace(1e-9, 1e-3, 200)]
    samples += [measured.Sample("move", 0.0, c, c / 0.5 + 2e-6) for c in np.linspace(1e-9, 1e-3, 200)]
    found = measured.calibrate(samples)
    assert found["cube_share"] == pytest.approx(0.8, rel=0.1)
    assert found["memory_share"] == pytest.approx(0.5, rel=0.1)
    assert measured.calibrate([]) == {}


# -- the network -------------------------------------------------------------------------------------------------------


def collective(op: str, x: tuple[int, ...], *shapes: tuple[int, ...], **attrs: Any) -> tuple[Graph, Node]:
    graph = Graph()
    return graph, node(graph, op, [data(graph, x, F16)], *shapes, dtype=F16, group="g", **attrs)


# nccl-tests, PERFORMANCE.md: bytes over a link are the size of the operation times this factor
FACTORS = {
    "HcomAllGather": ((4, 1024), (32, 1024), lambda n: 32 * 1024 * 2 * (n - 1) / n),
    "HcomReduceScatter": ((32, 1024), (4, 1024), lambda n: 32 * 1024 * 2 * (n - 1) / n),
    "HcomAllReduce": ((32, 1024), (32, 1024), lambda n: 32 * 1024 * 2 * 2 * (n - 1) / n),
    "HcomAllToAll": ((32, 1024), (32, 1024), lambda n: 32 * 1024 * 2 * (n - 1) / n),
    "HcomReduce": ((32, 1024), (32, 1024), lambda n: 32 * 1024 * 2),
}


@pytest.mark.parametrize("op", FACTORS)
def test_a_collective_exchanges_what_nccl_tests_count(op: str) -> None:
    x, y, bytes_of = FACTORS[op]
    graph, made = collective(op, x, y, rank_size=8)
    done = work.of(Shapes(graph), made)
    assert done.unit == "network"
    assert done.traffic.usual == bytes_of(8)
    assert 0 < done.traffic.least <= done.traffic.usual
    figures = chips.figures("Ascend910B2")
    spent = time.of(done, figures, made)
    assert spent.how == "estimate"
    assert spent.limit == "network"
    # 196 GB/s in a server and 25 GB/s out of it, of which 0.7 are reached; a launch of 10 us
    assert spent.value == pytest.approx(bytes_of(8) / (196e9 * 0.7) + 10e-6)
    assert spent.bound == pytest.approx(done.traffic.least / (196e9 + 25e9))


def test_a_group_beyond_the_server_has_the_network_of_servers() -> None:
    graph, made = collective("HcomAllGather", (4, 1024), (64, 1024), rank_size=16)
    spent = time.of(work.of(Shapes(graph), made), chips.figures("Ascend910B3"), made)
    assert spent.value == pytest.approx(60 * 1024 * 2 / (25e9 * 0.7) + 10e-6)
    assert chips.figures("Ascend910B4").link_to(16) is None  # a card on PCIe: nobody says what leads out


def test_the_size_of_a_group_comes_from_another_collective_of_it() -> None:
    graph, made = collective("HcomAllReduce", (32, 1024), (32, 1024))
    assert work.of(Shapes(graph), made).traffic == network.Traffic(65536, 131072, 0)
    node(graph, "HcomAllGather", [made.outputs[0]], (128, 1024), dtype=F16, group="g", rank_size=4)
    assert work.of(Shapes(graph), made).traffic == network.Traffic(65536, 98304, 4)


@pytest.mark.parametrize(
    ("op", "soc"), [("HcomAllReduce", "ascend950"), ("HcomRemoteRead", "ascend910b"), ("MoeDistributeDispatch", "a3")]
)
def test_an_exchange_that_nobody_can_tell_has_no_estimate(op: str, soc: str) -> None:
    graph, made = collective(op, (32, 1024), (32, 1024))
    spent = time.of(work.of(Shapes(graph), made), chips.figures(soc), made)
    assert (spent.how, spent.value) == ("unknown", None)


def test_a_product_with_an_exchange_takes_the_longer_of_both() -> None:
    graph = Graph()
    x, w = data(graph, (4096, 64), F16), data(graph, (64, 4096), F16)
    made = node(graph, "MatmulAllReduce", [x, w], (4096, 4096), dtype=F16, group="g", rank_size=8)
    done = work.of(Shapes(graph), made)
    assert done.unit == "cube"
    assert done.flops == 2 * 4096 * 4096 * 64
    exchanged = 4096 * 4096 * 2 * 2 * 7 / 8
    assert done.traffic.usual == exchanged
    assert time.of(done, chips.figures("a2"), made).value == pytest.approx(exchanged / (196e9 * 0.7) + 5e-6)


# -- attention with chosen keys, and what leads to it ------------------------------------------------------------------


def test_operations_of_the_latent_attention_are_those_of_its_products_in_eager() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    tokens, hidden, low, heads, width, latent, rope, keys = 6, 64, 48, 4, 16, 32, 8, 5
    x, w_dq, w_uq = torch.ones(tokens, hidden), torch.ones(hidden, low), torch.ones(low, heads * (width + rope))
    w_uk, w_dkv = torch.ones(heads, width, latent), torch.ones(hidden, latent + rope)
    graph = Graph()
    operands = [data(graph, tuple(t.shape)) for t in (x, w_dq, w_uq, w_uk, w_dkv)]
    prolog = node(graph, "MlaPrologV2", operands, (tokens, heads, latent), (tokens, heads, rope))
    with FlopCounterMode(display=False) as eager:
        both = (x @ w_dq @ w_uq).unflatten(-1, (heads, width + rope))
        query = torch.bmm(both[..., :width].transpose(0, 1), w_uk).transpose(0, 1)
        x @ w_dkv
    assert work.of(Shapes(graph), prolog).flops == eager.get_total_flops()

    chosen, chosen_rope = torch.ones(tokens, keys, latent), torch.ones(tokens, keys, rope)
    with FlopCounterMode(display=False) as eager:
        scores = torch.bmm(query, chosen.mT) + torch.bmm(both[..., width:], chosen_rope.mT)
        torch.bmm(scores, chosen)
    q, k, places = data(graph, (tokens, heads, latent)), data(graph, (99, 1, latent)), data(graph, (tokens, 1, keys))
    ropes = [data(graph, (tokens, heads, rope)), data(graph, (99, 1, rope))]
    sparse = node(
        graph,
        "SparseFlashAttention",
        [q, k, k, places, None, None, None, *ropes, None],
        (tokens, heads, latent),
        layout_query="TND",
        layout_kv="TND",
    )
    assert work.of(Shapes(graph), sparse).flops == eager.get_total_flops()
    assert work.of(Shapes(graph), sparse).least == 0

    with FlopCounterMode(display=False) as eager:
        torch.bmm(torch.ones(2, 3 * heads, width), torch.ones(2, width, 7))
    query_4d, key_4d = data(graph, (2, 3, heads, width)), data(graph, (2, 7, 1, width))
    indexer = node(
        graph, "LightningIndexer", [query_4d, key_4d, data(graph, (2, 3, heads)), None, None, None], (2, 3, 1, 4)
    )
    assert work.of(Shapes(graph), indexer).flops == eager.get_total_flops()
