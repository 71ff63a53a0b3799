"""Real models saved, loaded and called equal eager; all sizes that the model serves; the documented tree."""

import json
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

import torchair
from ge_graph import serde
from ge_graph.errors import ArchiveError, ConfigError, LoweringError
from ge_graph.rules.in_place import CONSTANTS
from ge_graph.verify import verify
from tair_testing import warm
from tools import models

ATOL = RTOL = 1e-4


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def assert_same(got, want):
    got = list(got) if isinstance(got, tuple) else [got]
    want = list(want) if isinstance(want, tuple) else [want]
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, atol=ATOL, rtol=RTOL)


# Sizes are symbols for a decoder, a network of images, and an encoder with a decoder; how all models lower with symbols
# is test_models.py's.
DYNAMIC = ("llama", "resnet50", "t5")


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in models.ZOO if n not in DYNAMIC])
def test_static(name, tmp_path):
    case = models.ZOO[name]("tiny")
    torchair.CompiledModel.save_graph(case.model, tuple(case.inputs), save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    with torch.no_grad():
        want = case.model(*case.inputs)
    assert_same(loaded(*case.inputs), want)
    assert_same(loaded(*case.inputs), want)


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic(name, tmp_path):
    case = models.ZOO[name]("tiny")
    torchair.CompiledModel.save_graph(case.model, tuple(case.inputs), dynamic=True, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    with torch.no_grad():
        for inputs in (case.inputs, *(case.resize(size) for size in (5, 9, 14) if case.free)):
            assert_same(loaded(*inputs), case.model(*inputs))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ModuleList([torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)])

    def forward(self, x, y):
        return self.layer[1](torch.relu(self.layer[0](x))) + y, x * 2


@pytest.fixture
def net():
    return Net().eval(), torch.randn(3, 4), torch.randn(3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("model_first", [False, True])
def test_export_tree(net, tmp_path, monkeypatch, model_first):
    monkeypatch.chdir(tmp_path)
    model, x, y = net
    if model_first:
        torchair.dynamo_export(model, x, y)
    else:
        torchair.dynamo_export(x, y=y, model=model)
    assert {"dynamo.pbtxt", "export.air"} <= set(os.listdir("export_file"))
    graph = serde.from_bytes((tmp_path / "export_file/export.air").read_bytes())
    assert [n.name for n in graph.inputs] == ["x", "y"]
    assert {n.name for n in graph.nodes if n.op == "Const"} >= {
        "layer.0.weight",
        "layer.0.bias",
        "layer.1.weight",
        "layer.1.bias",
    }
    assert 'op: "Const"' in (tmp_path / "export_file/dynamo.pbtxt").read_text()
    loaded = torchair.CompiledModel.load_graph("export_file")
    assert_same(loaded(x, y=y), model(x, y))


@pytest.mark.slow
def test_export_with_weight_files(net, tmp_path, monkeypatch):
    """Above the limit each parameter is a file called like it, and the graph names it by the path given."""
    monkeypatch.setattr("tair_export.export.weight_files.EXPORT_INLINE_BYTES", 100)
    monkeypatch.setattr(
        "tair_export.export.write_export.__kwdefaults__",
        {**torchair.dynamo_export.__globals__["write_export"].__kwdefaults__, "inline_bytes": 100},
    )
    monkeypatch.chdir(tmp_path)
    model, x, y = net
    torchair.dynamo_export(x, y, model=model, export_path="exp", export_name="net", dynamic=True)
    parameters = dict(model.named_parameters())
    assert set(os.listdir("exp")) == {"dynamo.pbtxt", "net.air", "net.manifest.json", *parameters}
    for name, value in parameters.items():
        assert (tmp_path / "exp" / name).read_bytes() == value.detach().numpy().tobytes()
    graph = serde.from_bytes((tmp_path / "exp/net.air").read_bytes())
    assert {n.attr("file_path") for n in graph.nodes if n.op == "FileConstant"} == {f"exp/{n}" for n in parameters}
    loaded = torchair.CompiledModel.load_graph("exp")
    for rows in (1, 3, 8):
        x, y = torch.randn(rows, 4), torch.randn(rows, 2)
        assert_same(loaded(x, y), model(x, y))
    from tair_export import load_air

    assert_same(load_air("exp/net.air")(x, y), model(x, y))


@pytest.mark.slow
def test_export_options(net, tmp_path):
    model, x, y = net
    config = torchair.CompilerConfig()
    config.export.experimental.enable_record_nn_module_stack = True
    config.export.experimental.auto_atc_config_generated = True
    torchair.dynamo_export(x, y, model=model, export_path=tmp_path, config=config)
    graph = serde.from_bytes((tmp_path / "export.air").read_bytes())
    stacks = {
        n.attr("nn_module_stack") for n in graph.nodes if n.op in ("MatMulV2", "Add") and "nn_module_stack" in n.attrs
    }
    assert any("layer.0: " in s or "layer.slice" in s or "layer.0" in s for s in stacks)
    relation = json.loads((tmp_path / "model_relation_config.json").read_text())
    assert relation["deploy_config"] == [{"submodel_name": "export.air", "deploy_device_id_list": "0:0:0"}]
    assert relation["comm_group"] == []
    assert json.loads((tmp_path / "numa_config.json").read_text())["cluster"][0]["cluster_nodes"][0]["node_id"] == 0
    assert_same(torchair.CompiledModel.load_graph(tmp_path)(x, y), model(x, y))


def test_export_refuses_what_excludes_it(net, tmp_path):
    model, x, y = net
    for path, value in (
        ("experimental_config.frozen_parameter", True),
        ("debug.run_eagerly", True),
        ("mode", "reduce-overhead"),
    ):
        config = torchair.CompilerConfig()
        *groups, name = path.split(".")
        target = config
        for group in groups:
            target = getattr(target, group)
        setattr(target, name, value)
        with pytest.raises(ConfigError, match="GE1008"):
            torchair.dynamo_export(x, y, model=model, export_path=tmp_path / "e", config=config)
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.dynamo_export(x, y, export_path=tmp_path / "e")
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.dynamo_export(x, y, model=model, export_path=tmp_path / "e", config="fast")
    assert not (tmp_path / "e").exists()


class Branch(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Measured(torch.nn.Module):
    def forward(self, x):
        return x + float(x.numpy().mean())


@pytest.mark.parametrize("model", [Branch(), Measured()])
def test_only_whole_graphs(model, tmp_path):
    with pytest.raises(Exception, match="GE1032"):
        torchair.dynamo_export(torch.ones(3), model=model, export_path=tmp_path / "e")
    assert not (tmp_path / "e").exists()


class Scoped(torch.nn.Module):
    def forward(self, x):
        with torchair.scope.npu_stream_switch("second"):
            y = x + 1
        return y * 2


@pytest.mark.slow
def test_scopes_reach_the_file(tmp_path):
    torchair.dynamo_export(torch.ones(3), model=Scoped(), export_path=tmp_path)
    graph = serde.from_bytes((tmp_path / "export.air").read_bytes())
    marked = {n.op for n in graph.nodes if n.attr("_user_stream_label") == "second"}
    assert "Add" in marked or "Adds" in marked
    assert "Mul" not in marked
    torch.testing.assert_close(torchair.CompiledModel.load_graph(tmp_path)(torch.ones(3)), torch.full((3,), 4.0))


class Pair(NamedTuple):
    first: torch.Tensor
    rest: dict


class Mixed(torch.nn.Module):
    """Every kind of argument, result and state."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.tied = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.tied.weight = self.inner.weight
        self.conv = torch.nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)
        self.register_buffer("cache", torch.zeros(4))
        self.register_buffer("scratch", torch.full((2,), 7.0), persistent=False)
        self.plain = torch.tensor([1.5])

    def forward(self, batch, scale, *, flag=True, name="x"):
        self.cache.add_(batch["x"].float().sum(0))
        batch["z"].mul_(2)
        y = self.tied(self.inner(batch["x"])) * scale
        out = self.conv(batch["image"])
        return Pair(
            y if flag else -y,
            {
                "out": [out, None, name],
                "n": batch["x"].shape[0],
                "same": batch["x"],
                "cache": self.cache,
                "w": self.plain + self.scratch.sum(),
            },
        )


def mixed_inputs(rows):
    return {"x": torch.randn(rows, 4, dtype=torch.bfloat16), "image": torch.randn(rows, 2, 5, 5), "z": torch.ones(3)}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("inline", [0, 1 << 30])
def test_every_kind_of_value(tmp_path, monkeypatch, dynamic, inline):
    import copy

    monkeypatch.setattr("tair_export.export.weight_files.GRAPH_INLINE_BYTES", inline)
    model = Mixed().eval()
    reference = copy.deepcopy(model)
    torchair.CompiledModel.save_graph(model, (mixed_inputs(3), 2), dynamic=dynamic, save_path=tmp_path, name="abc")
    assert model.cache.eq(0).all()
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    if not inline:
        saved = sorted(os.listdir(tmp_path / "weights"))
        assert [n for n in saved if n.endswith("weight")] == ["conv.weight", "inner.weight"]
    for rows in (3, 3, 1, 7) if dynamic else (3, 3):
        batch = mixed_inputs(rows)
        mine = {k: v.clone() for k, v in batch.items()}
        want = reference(batch, 2, name="abc")
        got = loaded(mine, 2, name="abc")
        torch.testing.assert_close(got.first, want.first)
        torch.testing.assert_close(got.rest["out"][0], want.rest["out"][0])
        assert got.rest["out"][0].stride() == want.rest["out"][0].stride()
        assert got.rest["out"][1:] == [None, "abc"]
        assert got.rest["n"] == rows
        assert got.rest["same"] is mine["x"]
        torch.testing.assert_close(got.rest["cache"], want.rest["cache"])
        torch.testing.assert_close(got.rest["w"], want.rest["w"])
        torch.testing.assert_close(mine["z"], batch["z"])
    with pytest.raises(ArchiveError, match="GE5040.*'name' is 'other'"):
        loaded(mine, 2, name="other")
    if dynamic:
        assert_same(
            loaded(mine, 5, name="abc").first, reference({k: v.clone() for k, v in batch.items()}, 5, name="abc").first
        )


class Anything(torch.nn.Module):
    def forward(self, *inputs, **more):
        return inputs[0] + inputs[1] * more["scale"] + more["shift"]["by"]


@dataclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


torch.export.register_dataclass(Point)


class Moves(torch.nn.Module):
    def forward(self, point):
        return Point(point.x + 1, point.y * 2)


@pytest.mark.slow
def test_variable_arguments_and_dataclasses(tmp_path):
    x, more = torch.ones(3, 2), {"scale": torch.ones(2), "shift": {"by": torch.ones(3, 1)}}
    torchair.CompiledModel.save_graph(Anything(), (x, x), True, save_path=tmp_path / "a", **more)
    loaded = torchair.CompiledModel.load_graph(tmp_path / "a")
    big = {"scale": torch.full((2,), 3.0), "shift": {"by": torch.ones(5, 1)}}
    torch.testing.assert_close(loaded(x.repeat(2, 1)[:5], torch.ones(5, 2), **big), torch.full((5, 2), 5.0))
    point = Point(torch.ones(3), torch.ones(4))
    torchair.CompiledModel.save_graph(Moves(), (point,), True, save_path=tmp_path / "b")
    loaded = torchair.CompiledModel.load_graph(tmp_path / "b")
    for value in (Point(torch.ones(7), torch.ones(5)), {"x": torch.ones(7), "y": torch.ones(5)}):
        moved = loaded(value)
        assert (moved._type, moved.keys()) == ("Point", ("x", "y"))
        torch.testing.assert_close(moved.x, torch.full((7,), 2.0))
        torch.testing.assert_close(moved.y, torch.full((5,), 2.0))


class Squeezes(torch.nn.Module):
    def forward(self, x):
        return x.squeeze() * 2


@pytest.mark.slow
def test_size_one_is_refused_where_the_result_would_have_another_form(tmp_path):
    """torch traces as if no free size were 1; where that matters, a saved graph must not serve 1."""
    torchair.CompiledModel.save_graph(Squeezes(), (torch.ones(4, 3),), dynamic=True, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    assert loaded(torch.ones(5, 2)).shape == (5, 2)
    with pytest.raises(ArchiveError, match="GE5040"):
        loaded(torch.ones(1, 3))


@pytest.mark.slow
def test_sizes_that_belong_together_are_checked(net, tmp_path):
    model, x, y = net
    torchair.CompiledModel.save_graph(model, (x, y), dynamic=True, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    with pytest.raises(ArchiveError, match="GE5040.*dimension 0 of input 'y' is 2, dimension 0 of input 'x' is 3"):
        loaded(x, y[:2])


@pytest.mark.slow
def test_model_outputs_become_records(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = transformers.BertModel(config).eval()
    ids = torch.arange(10)[None]
    torchair.CompiledModel.save_graph(model, (), save_path=tmp_path, input_ids=ids)
    got = torchair.CompiledModel.load_graph(tmp_path)(input_ids=ids)
    with torch.no_grad():
        want = model(input_ids=ids)
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state, atol=ATOL, rtol=RTOL)
    torch.testing.assert_close(got["pooler_output"], want[1], atol=ATOL, rtol=RTOL)
    assert got._type == type(want).__name__
    arrays = torchair.CompiledModel.load_graph(tmp_path)(input_ids=ids.numpy())
    np.testing.assert_allclose(arrays[0], want[0].numpy(), atol=ATOL, rtol=RTOL)


class Unsupported(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x)


@pytest.mark.slow
def test_what_has_no_converter_is_an_error_and_no_file(tmp_path):
    with pytest.raises(LoweringError, match="GE2001"):
        torchair.dynamo_export(torch.eye(3), model=Unsupported(), export_path=tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(net, tmp_path):
    model, x, y = net
    for folder in "ab":
        torchair.CompiledModel.save_graph(model, (x, y), dynamic=True, save_path=tmp_path / folder)
        torch._dynamo.reset()
    for name in ("compiled_graph.air", "compiled_graph.manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_internal_format_says_that_it_does_nothing_on_the_cpu(net):
    model, x, y = net
    want = model(x, y)
    with pytest.warns(UserWarning, match="use_internal_format_weight: 4 of 4 parameters are not on a device"):
        torchair.use_internal_format_weight(model)
    assert_same(model(x, y), want)
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.use_internal_format_weight(x)


RANK = """
import sys, torch, torchair
import torch.distributed as dist
rank, world, folder = int(sys.argv[1]), 2, sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{folder}/rendezvous")
torch.manual_seed(rank)
model, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
config = torchair.CompilerConfig()
config.export.experimental.auto_atc_config_generated = True
torchair.dynamo_export(x, model=model, export_path=f"{folder}/exp", export_name="mp_rank", config=config)
torchair.CompiledModel.save_graph(model, (x,), save_path=f"{folder}/saved")
dist.barrier()
for path in ("exp", "saved"):
    torch.testing.assert_close(torchair.CompiledModel.load_graph(f"{folder}/{path}")(x), model(x).detach())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_several_ranks(tmp_path):
    running = [warm.Fork("-c", RANK, str(r), tmp_path) for r in range(2)]
    assert [p.end().returncode for p in running] == [0, 0]
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found - {"rendezvous"} == {
        "exp/mp_rank0.air",
        "exp/mp_rank0.manifest.json",
        "exp/mp_rank1.air",
        "exp/mp_rank1.manifest.json",
        "exp/model_relation_config.json",
        "exp/numa_config.json",
        "exp/rank_0/dynamo.pbtxt",
        "exp/rank_1/dynamo.pbtxt",
        *(f"saved/rank_{r}/compiled_graph{r}.{end}" for r in range(2) for end in ("air", "manifest.json")),
    }
    relation = json.loads((tmp_path / "exp/model_relation_config.json").read_text())
    assert [r["rank_id"] for r in relation["rank_table"]] == [0, 1]


class Branches(torch.nn.Module):
    """An int that chooses a branch, a size that does, and a relation between inputs."""

    def forward(self, x, y, n):
        if n > 3:
            x = x + 1
        if x.shape[0] % 2 == 0:
            x = x * 2
        return torch.cat([x, x]) + y, x * n


class One(torch.nn.Module):
    def forward(self, x):
        return x * 3 if x.shape[0] == 1 else x * 2


class OneFactor(torch.nn.Module):
    def forward(self, x):
        return x * (3.0 if x.shape[0] == 1 else 2.0)


class Seven(torch.nn.Module):
    def forward(self, x):
        return x.reshape(-1, 2) * (3 if x.shape[0] == 7 else 2)


R = torch.ones


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sample", "good", "bad"),
    [
        (
            Branches(),
            (R(4, 6), R(8, 6), 5),
            [(R(6, 3), R(12, 3), 9), (R(2, 6), R(4, 6), 4)],
            [(R(4, 6), R(8, 6), 3), (R(5, 6), R(10, 6), 5), (R(4, 6), R(9, 6), 5), (R(4, 6), R(8, 5), 5)],
        ),
        (One(), (R(4),), [(R(5),), (R(2),)], [(R(1),)]),
        (OneFactor(), (R(4),), [(R(5),), (R(2),)], [(R(1),)]),
        (Seven(), (R(4, 4),), [(R(5, 4),), (R(8, 6),), (R(1, 4),)], [(R(7, 4),)]),
    ],
)
def test_guards(model, sample, good, bad, tmp_path):
    """Sizes that the trace was not made for were answered wrongly; they are refused, with the guard."""
    torchair.CompiledModel.save_graph(model, sample, dynamic=True, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    for inputs in (sample, *good):
        assert_same(loaded(*inputs), model(*inputs))
    for inputs in bad:
        with pytest.raises(ArchiveError, match="GE5040"):
            loaded(*inputs)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("limit", [2**20, 0])
def test_statistics_of_a_batch_norm_are_no_constants_that_an_operator_writes(limit, frozen, tmp_path, monkeypatch):
    """BatchNormV3 updates its statistics in place; in an exported graph they are weights, which become constants."""

    class Frozen(torch.nn.Module):
        """A batch norm whose statistics are parameters."""

        def __init__(self):
            super().__init__()
            self.mean, self.var = (torch.nn.Parameter(torch.rand(4) + 0.5, requires_grad=False) for _ in range(2))

        def forward(self, x):
            return torch.nn.functional.batch_norm(x, self.mean, self.var)

    norms = Frozen() if frozen else torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), norms, torch.nn.ReLU()).eval()
    defaults = torchair.dynamo_export.__globals__["write_export"].__kwdefaults__
    monkeypatch.setitem(defaults, "inline_bytes", limit)
    x = torch.randn(2, 3, 8)
    torchair.dynamo_export(x, model=model, export_path=tmp_path, export_name="net")
    graph = serde.from_bytes((tmp_path / "net.air").read_bytes())
    assert ("FileConstant" in {n.op for n in graph.nodes}) is (limit == 0)
    verify(graph)
    (norm,) = [n for n in graph.nodes if n.op == "BatchNormV3"]
    assert CONSTANTS.isdisjoint(norm.inputs[i].node.op for i in (3, 4))
    with torch.no_grad():
        assert_same(torchair.CompiledModel.load_graph(tmp_path)(x), model(x))
