"""Collectives in compiled graphs: two processes with gloo, each compared with eager in the same group."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.utils import _pytree as pytree

import torchair
from ge_converters.registry import REGISTRY
from ge_graph.errors import EngineError
from tair_debug.observer import observing
from tair_testing.compiling import compiled
from tair_testing.ranks import WORLD, Cases, close, values

case = CASES = Cases()


# --- what the processes do -------------------------------------------------------------------------------------------


def same(fn, *inputs, grad=False, tolerance=None, **options):
    """Results, written inputs and gradients of a compiled function are those of eager."""
    ours, theirs = (
        pytree.tree_map(lambda v: v.clone().requires_grad_(grad and v.is_floating_point()), inputs) for _ in range(2)
    )
    want, got = fn(*theirs), compiled(fn, **options)(*ours)
    close(got, want, **(tolerance or {}))
    if grad:
        for result in (want, got):
            sum(
                (r * torch.arange(1.0, r.numel() + 1).reshape(r.shape)).sum() for r in pytree.tree_leaves(result)
            ).backward()
        close([x.grad for x in ours], [x.grad for x in theirs], **(tolerance or {}))
    else:
        close(ours, theirs, **(tolerance or {}))


def numbers(*shape, dtype=torch.float32):
    """Different on each rank."""
    made = torch.Generator().manual_seed(17 + dist.get_rank())
    if dtype is torch.bool:
        return torch.rand(shape, generator=made) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=made).to(dtype)
    return torch.randint(0, 9, shape, generator=made, dtype=dtype)


def all_reduce(x):
    dist.all_reduce(x)
    return x + 1


def all_reduce_max(x):
    y = x * 1
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    return y


def all_reduce_min(x):
    return fc.all_reduce(x, "min", dist.group.WORLD)


def all_reduce_product(x):
    return fc.all_reduce(x, "product", dist.group.WORLD)


def all_reduce_coalesced(x):
    return [y * 2 for y in fc.all_reduce_coalesced([x, x + x], "sum", dist.group.WORLD)]


def all_gather_into_tensor(x):
    y = x.new_empty((x.shape[0] * 2, *x.shape[1:]))
    dist.all_gather_into_tensor(y, x)
    return y


def all_gather(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts


def all_gather_dim_1(x):
    return fc.all_gather_tensor(x, 1, dist.group.WORLD)


def all_gather_coalesced(x):
    return fc.all_gather_into_tensor_coalesced([x, x.t().contiguous()], dist.group.WORLD)


def reduce_scatter_tensor(x):
    y = x.new_empty((x.shape[0] // 2, *x.shape[1:]))
    dist.reduce_scatter_tensor(y, x)
    return y


def reduce_scatter_dim_1(x):
    return fc.reduce_scatter_tensor(x, "max", 1, dist.group.WORLD)


def reduce_scatter_coalesced(x):
    return fc.reduce_scatter_tensor_coalesced([x, x + x], "sum", [0, 0], dist.group.WORLD)


def all_to_all_single(x):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    return y


def broadcast(x):
    return fc.broadcast(x, 1, dist.group.WORLD)


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
NUMBERS = (*FLOATS, torch.int64, torch.int32, torch.float64, torch.uint8)
TABLE = [
    (NUMBERS, (all_reduce, all_reduce_max, all_reduce_min, all_reduce_product, all_reduce_coalesced)),
    ((*NUMBERS, torch.bool), (all_gather_into_tensor, all_gather, all_gather_dim_1, all_gather_coalesced)),
    (NUMBERS, (reduce_scatter_tensor, reduce_scatter_dim_1, reduce_scatter_coalesced)),
    ((*NUMBERS, torch.bool), (all_to_all_single, broadcast)),
]
for _dtypes, _functions in TABLE:
    for _fn in _functions:
        for _dtype in _dtypes:
            for _dynamic in (False, True) if _dtype is torch.float32 else (False,):
                _name = f"{_fn.__name__}-{str(_dtype)[6:]}{'-dynamic' if _dynamic else ''}"
                CASES[_name] = lambda f=_fn, t=_dtype, d=_dynamic: same(f, numbers(6, 4, dtype=t), dynamic=d)


@case()
def gathering_a_scalar():
    """Gloo's eager gather knows no scalars."""
    x = numbers(3)
    want = fc.all_gather_tensor(x.sum().reshape(1), 0, dist.group.WORLD)
    close(compiled(lambda x: torch.ops._c10d_functional.all_gather_into_tensor(x.sum(), 2, "0"))(x), want)


@case()
def reducing_a_scalar_of_float64():
    same(lambda x: fc.all_reduce(x.sum(), "sum", dist.group.WORLD), numbers(3, dtype=torch.float64))


@case()
def average():
    x = numbers(6, 4)
    want = fc.all_reduce(x, "sum", dist.group.WORLD) / 2
    close(compiled(lambda x: fc.all_reduce(x, "avg", dist.group.WORLD))(x), want)
    scattered = compiled(lambda x: fc.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD))(x)
    close(scattered, values(want).chunk(2)[dist.get_rank()])


@case(False, name="uneven_splits")
@case(True, name="uneven_splits_dynamic")
def uneven_splits(dynamic):
    """Rank r sends r + 1 rows to rank 0 and 3 to rank 1; the lengths of rows are static or symbolic."""
    rank = dist.get_rank()
    sends, receives = [rank + 1, 3], [[1, 2], [3, 3]][rank]

    def f(x, weights):
        y = x.new_empty((sum(receives), *x.shape[1:]))
        dist.all_to_all_single(y, x, receives, sends)
        return y * weights

    same(f, numbers(sum(sends), 2, 3), numbers(2, 3), dynamic=dynamic)
    same(f, numbers(sum(sends)), numbers(1), dynamic=dynamic)


@case()
def splits_from_sizes():
    """Splits are sizes of the input: another size does not compile again, and rows may be missing."""
    seen = torch._dynamo.testing.CompileCounterWithBackend(torchair.get_npu_backend())

    def f(x, a, b):
        sends = [a.shape[0], b.shape[0]]
        y = x.new_empty((2 * (a.shape[0] if dist.get_rank() == 0 else b.shape[0]), x.shape[1]))
        dist.all_to_all_single(y, x, [y.shape[0] // 2] * 2, sends)
        return y + 1

    torch._dynamo.reset()
    compiled_f = torch.compile(f, backend=seen, fullgraph=True, dynamic=True)
    for a, b in ((2, 3), (4, 3), (5, 7)):
        given = numbers(a + b, 4), torch.zeros(a), torch.zeros(b)
        close(compiled_f(*given), f(*given))
    assert seen.frame_count == 1


@case()
def splits_from_data():
    """A mixture of experts: how many rows go where is known when the graph runs."""

    def f(x, counts):
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sends, receives = counts.tolist(), received.tolist()
        return fc.all_to_all_single(x, receives, sends, dist.group.WORLD) * 2

    x = numbers(5, 4)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for first in (2 + dist.get_rank(), 0, 5):
            counts = torch.tensor([first, 5 - first])
            close(compiled(f)(x, counts), f(x, counts))


@case()
def gradients():
    group = dist.group.WORLD
    same(lambda x: fc.all_gather_tensor_autograd(x * x, 0, group) * 3, numbers(4, 2), grad=True)
    same(lambda x: fc.reduce_scatter_tensor_autograd(x * x, "sum", 0, group) * 3, numbers(4, 2), grad=True)
    same(lambda x: fc.all_to_all_single_autograd(x * x, None, None, group) * 3, numbers(4, 2), grad=True)
    same(lambda x: fc.all_reduce(x * x, "sum", group) * 3, numbers(4, 2), grad=True)


@case()
def order_is_kept():
    """Collectives that do not read each other, in an order that differs from that of their readers."""

    def f(x, y):
        a = fc.all_reduce(x, "sum", dist.group.WORLD)
        b = fc.all_gather_tensor(y, 0, dist.group.WORLD)
        c = fc.all_reduce(y, "max", dist.group.WORLD)
        return c + 1, b + 1, a + 1

    config = torchair.CompilerConfig()
    inputs = numbers(3, 2), numbers(3, 2) + 1
    for strategy in ("BFS", "DFS", "RDFS", "StableRDFS"):
        config.experimental_config.topology_sorting_strategy = strategy
        torch._dynamo.reset()
        graphs = []
        with observing(Graphs(graphs)):
            got = torch.compile(f, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)(*inputs)
        close(got, f(*inputs))
        found = [n.attr("reduction") for n in graphs[-1].nodes if n.op.startswith("Hcom")]
        assert found == ["sum", None, "max"], (strategy, found)


class Graphs:
    def __init__(self, kept):
        self.kept = kept

    def dynamo_graph(self, *args):
        pass

    fx_graph = output_code = dynamo_graph

    def ge_graph(self, stage, label, graph):
        self.kept.append(graph)


@case()
def unread_results_still_take_part():
    """One rank throws the result away, the other needs it: both must enter."""
    rank = dist.get_rank()

    def f(x):
        y = fc.wait_tensor(fc.all_reduce(x, "sum", dist.group.WORLD))
        return y * 2 if rank == 0 else x * 2

    x = numbers(3)
    for _ in range(2):
        got = compiled(f)(x)
    close(got, f(x))


@case()
def twice_the_same_runs_twice():
    """Two equal collectives on this rank, two different ones on the other: neither is merged."""
    rank = dist.get_rank()

    def f(x, z):
        return fc.all_reduce(x, "sum", dist.group.WORLD) + fc.all_reduce(z if rank else x, "sum", dist.group.WORLD)

    same(f, numbers(3), numbers(3) * 5)


@case()
def ranks_in_eager_mode():
    """Ranks need not compile: what one brings in eager mode meets what the other brings in a graph."""
    x = numbers(4, 3)
    want = values(fc.all_reduce(x, "sum", dist.group.WORLD)) + 1
    net = compiled(lambda x: fc.all_reduce(x, "sum", dist.group.WORLD) + 1)
    for turn in range(4):
        own = values(fc.all_reduce(x, "sum", dist.group.WORLD)) + 1 if turn % 2 == dist.get_rank() else net(x)
        close(own, want)
    shape = (12,) if dist.get_rank() else (4, 3)  # as many elements are enough
    close(compiled(lambda x: fc.all_reduce(x, "sum", dist.group.WORLD) + 1)(x.reshape(shape)), want.reshape(shape))


@case()
def subgroups():
    """A group of one: rank 0 of the group is rank 1 of the world."""
    alone = [dist.new_group([r]) for r in range(WORLD)][dist.get_rank()]
    both = dist.new_group([0, 1])

    def f(x):
        return (
            fc.broadcast(x, 0, alone),
            fc.all_reduce(x, "sum", alone),
            fc.all_gather_tensor(x, 0, alone),
            fc.broadcast(x, 1, both),
            fc.reduce_scatter_tensor(x, "sum", 0, both),
        )

    same(f, numbers(4, 3))


@case()
def captured_mode():
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    x = numbers(4, 3)
    got = torch.compile(all_reduce, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)(x.clone())
    close(got, all_reduce(x.clone()))


@case()
def result_of_eager_as_input():
    """What eager has not waited for yet."""
    x = numbers(4, 3)
    inflight = fc.all_reduce(x, "sum", dist.group.WORLD)
    assert isinstance(inflight, fc.AsyncCollectiveTensor)
    want = values(fc.all_reduce(x, "sum", dist.group.WORLD)) + 1
    close(compiled(lambda y: y + 1)(inflight), want)


@case()
def breaks_as_plain_compile():
    """What dynamo does not capture breaks the graph, and runs in eager mode between the parts."""

    def f(x):
        y = x * 2
        dist.broadcast(y, 1)
        return y + 1

    x = numbers(3)
    torch._dynamo.reset()
    close(torch.compile(f, backend=torchair.get_npu_backend())(x), f(x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f)(x)


@case()
def patched():
    """What torch captures only after ``patch_for_hcom``."""
    torchair.patch_for_hcom()
    torchair.patch_for_hcom()
    rank = dist.get_rank()
    alone = [dist.new_group([r]) for r in range(WORLD)][rank]

    def f(x):
        y, z = x * 2, x * 3
        dist.broadcast(y, 1)
        dist.broadcast(z, src=rank, group=alone)
        parts = [torch.empty(3), torch.empty(2, 2)] if rank == 0 else [torch.empty(2), torch.empty(1)]
        dist.all_to_all(parts, [x[0], x[0, :2]] if rank == 0 else [x[1:3, :2].contiguous(), x[0, 0:1]])
        return y, z, parts

    # gloo has no all_to_all of lists in eager mode
    x = numbers(4, 3)
    y, z, parts = compiled(f)(x)
    other = torch.randn(4, 3, generator=torch.Generator().manual_seed(18 - rank))
    both = [x, other] if rank == 0 else [other, x]
    close(y, both[1] * 2)
    close(z, x * 3)
    close(parts, [both[0][0], both[1][1:3, :2]] if rank == 0 else [both[0][0, :2], both[1][0, 0:1]])


@case(torch.float32, name="send_and_receive")
@case(torch.bool, name="send_and_receive_bool")
def send_and_receive(dtype):
    torchair.patch_for_hcom()
    rank = dist.get_rank()

    def f(x):
        y = torch.empty_like(x)
        if rank == 0:
            dist.send(x, 1, tag=3)
            dist.recv(y, 1)
        else:
            dist.recv(y, 0, tag=3)
            dist.send(x, 0)
        return y

    for dynamic in (False, True):
        same(f, numbers(4, 3, dtype=dtype), dynamic=dynamic)


@case()
def refusals():
    with pytest.raises(Exception, match=r"argument 'reduce_op' is 'avg' on DT_INT64.*cast the input"):
        compiled(lambda x: fc.all_reduce(x, "avg", dist.group.WORLD))(torch.ones(3, dtype=torch.int64))
    with pytest.raises(Exception, match=r"argument 'reduce_op' is 'bor'.*HCCL reduces by sum"):
        compiled(lambda x: fc.all_reduce(x, "bor", dist.group.WORLD))(torch.ones(3, dtype=torch.int64))


@case()
def operators_that_no_converter_emits():
    """Kernels by their definitions: blocks of different sizes, and a reduction that one rank reads."""
    from ge_graph import DataType, Graph, builder, building
    from ge_graph import ops as ge
    from ge_runtime.cpu.engine import CpuEngine

    rank, name = dist.get_rank(), dist.group.WORLD.group_name
    x, y = numbers(rank + 1, 2), numbers(5, 2)
    with building(Graph("g")) as graph:
        a, b = (
            builder.data(graph, index=i, dtype=DataType.DT_FLOAT, shape=tuple(v.shape)) for i, v in enumerate((x, y))
        )
        ge.HcomAllReduce(b, reduction="sum", group=name)  # nobody reads it, the other rank waits all the same
        graph.outputs += [
            ge.HcomAllGatherV(a, rank + 1, [1, 2], group=name),
            ge.HcomReduceScatterV(b, [3, 2][rank], [3, 2], reduction="max", group="hccl_world_group"),
            ge.HcomReduce(b, root_rank=1, reduction="sum", group=name),
        ]
    gathered, scattered, reduced = CpuEngine().compile(graph, {}).run([x, y])
    everyone = [torch.Generator().manual_seed(17 + r) for r in range(WORLD)]
    xs = [torch.randn(r + 1, 2, generator=g) for r, g in enumerate(everyone)]
    ys = [torch.randn(5, 2, generator=torch.Generator().manual_seed(17 + r)) for r in range(WORLD)]
    close(gathered, torch.cat(xs))
    close(scattered, torch.maximum(*ys).split([3, 2])[rank])
    if rank == 1:
        close(reduced, ys[0] + ys[1])


@case()
def products_with_an_exchange():
    """One operator computes and exchanges: as torch has it of everyone's operands."""
    from ge_graph import DataType, Graph, builder, building
    from ge_graph import ops as ge
    from ge_runtime.cpu.engine import CpuEngine

    rank, name = dist.get_rank(), dist.group.WORLD.group_name
    x, w, bias = (numbers(*shape, dtype=torch.bfloat16) for shape in ((4, 6), (6, 5), (5,)))
    with building(Graph("g")) as graph:
        a, b, c = (
            builder.data(graph, index=i, dtype=DataType.DT_BF16, shape=tuple(v.shape))
            for i, v in enumerate((x, w, bias))
        )
        graph.outputs += [
            ge.MatmulAllReduce(a, b, c, group=name),
            *ge.AllGatherMatmul(a, b, c, group=name, rank_size=WORLD),
            ge.MatmulReduceScatter(a, b, c, group=name, rank_size=WORLD),
        ]
    reduced, product, gathered, scattered = CpuEngine().compile(graph, {}).run([x, w, bias])
    xs, ws, cs = (  # each from the seed of its rank, as ``numbers`` makes them
        [torch.randn(shape, generator=torch.Generator().manual_seed(17 + r)).bfloat16().float() for r in range(WORLD)]
        for shape in ((4, 6), (6, 5), (5,))
    )
    whole = sum(x @ w + c for x, w, c in zip(xs, ws, cs))
    loose = {"rtol": 2e-2, "atol": 4e-2, "check_dtype": False}
    for got, want in (
        (reduced, whole),
        (gathered, torch.cat(xs)),
        (product, torch.cat(xs) @ w.float() + bias.float()),
        (scattered, whole.chunk(WORLD)[rank]),
    ):
        close(got, want, **loose)


# --- two processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name, ranks):
    ranks.check(name)


# --- one process -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_rank(folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_group_that_is_gone(tmp_path):
    """A graph outlives its process group: the error says what to do."""
    with one_rank(tmp_path):
        net = compiled(lambda x: fc.all_reduce(x, "sum", dist.group.WORLD))
        x = torch.ones(3)
        close(net(x), x)
        graphs = []
        with observing(Graphs(graphs)):
            compiled(lambda x: fc.all_reduce(x, "sum", dist.group.WORLD))(x)
    from ge_runtime.cpu.engine import CpuEngine

    executable = CpuEngine().compile(graphs[-1], {})
    with pytest.raises(EngineError, match=r"(?s)GE4011.*not initialised.*init_process_group"):
        executable.run([torch.ones(3)])


def test_collectives_have_no_other_operators(tmp_path):
    """Waiting is not an operator, and nothing is reshaped without need."""
    graphs = []
    with one_rank(Path(tmp_path)), observing(Graphs(graphs)):
        compiled(lambda x: fc.all_gather_tensor(x, 0, dist.group.WORLD))(torch.ones(4, 2))
    assert [n.op for n in graphs[-1].nodes] == ["Data", "HcomAllGather"]
    assert graphs[-1].output_control == [graphs[-1].nodes[1]]


def hcom_ops(fn, *inputs):
    graphs = []
    with observing(Graphs(graphs)):
        compiled(fn)(*inputs)
    return [n.op for n in graphs[-1].nodes if n.op.startswith("Hcom")]


def twice(x):
    return fc.all_reduce(x, "sum", dist.group.WORLD) * x + fc.all_reduce(x, "sum", dist.group.WORLD)


def test_equal_collectives_stay_two(tmp_path):
    with one_rank(tmp_path):
        assert hcom_ops(twice, torch.ones(3)) == ["HcomAllReduce"] * 2


@pytest.mark.xfail(
    reason="AOTAutograd's partitioner merges equal nodes of a training graph, collectives too", strict=True
)
def test_equal_collectives_stay_two_in_training(tmp_path):
    with one_rank(tmp_path):
        assert hcom_ops(twice, torch.ones(3, requires_grad=True)) == ["HcomAllReduce"] * 2


def test_no_converter_without_a_case():
    """They declare no forms, so the cases above are their only proof."""
    registered = {e.name.split(".")[1] for e in REGISTRY.entries() if e.name.startswith("_c10d") and not e.refuses}
    assert registered == {
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all_single",
        "broadcast",
        "irecv",
        "isend",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "wait_tensor",
    }
