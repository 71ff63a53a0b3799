"""``torch.export.ExportedProgram`` and its files: equal eager, sizes and writes included; hostile files run nothing."""

import copy
import io
import json
import pickle
import zipfile

import pytest
import torch
from torch import nn

import torchair
from ge_graph.errors import ArchiveError, ConfigError
from torchair.export import shell
from torchair.export.pt2_file import read_program

N = torch.export.Dim("n", min=2, max=64)


class Of(nn.Module):
    """A module of one function and parts of it."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def write_a_buffer(m, x):
    m.steps.add_(1)
    m.total.copy_(m.total * 0.5 + x.sum((0, 1)))
    return x * m.steps, m.total + 0


def write_the_input(m, x):
    x.mul_(2).relu_()
    return x.sum(-1)


def attention(m, x):
    heads = m.fc(x).unflatten(-1, (2, 4)).transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


def choose(m, x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


PROGRAMS = {
    "linear": Of(lambda m, x: m.fc(x).relu(), fc=nn.Linear(8, 3)),
    "norms": Of(lambda m, x: m.b(m.a(x).transpose(1, 2)), a=nn.LayerNorm(8), b=nn.GroupNorm(2, 8)),
    "attention": Of(attention, fc=nn.Linear(8, 8)),
    "convolution": Of(lambda m, x: m.conv(x.transpose(1, 2)).tanh(), conv=nn.Conv1d(8, 4, 3, padding=1)),
    "writes buffers": Of(write_a_buffer, steps=torch.zeros(()), total=torch.zeros(8)),
    "writes its input": Of(write_the_input),
    "a tree": Of(lambda m, x: {"a": (x + 1, [x.sum()]), "b": x.max(-1)[0]}),
    "halves": Of(lambda m, x: (x.half() * 2, x.to(torch.bfloat16) + 1)),
    "whole numbers": Of(lambda m, x: (x * 8).to(torch.int64) // 3),
    "masks": Of(lambda m, x: (torch.where(x > 0, x, 0), x > 0.5)),
    "sizes": Of(lambda m, x: (x.new_zeros(x.shape[1], 2) + x.shape[1], x.shape[1] * 2 + 1)),
    "views": Of(lambda m, x: (x.transpose(0, 1), x[..., ::2], x)),
    "embedding": Of(lambda m, x: m.table((x[..., 0] * 3).long().abs() % 5), table=nn.Embedding(5, 6)),
    "constants": Of(lambda m, x: x * torch.arange(8) + torch.tensor([0.5])),
    "a constant result": Of(lambda m, x: (x + 1, 3, None)),
    "no dimensions": Of(lambda m, x: x.sum() * 2),
    "a branch": Of(choose),
    "sorting": Of(lambda m, x: (*x.sort(-1), *x.topk(2))),
    "text arguments": Of(
        lambda m, x: (
            nn.functional.gelu(x, approximate="tanh"),
            torch.einsum("bij,bkj->bik", x, x),
            torch.div(x, 0.3, rounding_mode="floor"),
        )
    ),
    "shared weights": Of(lambda m, x: m.a(x) + m.b(x), a=(shared := nn.Linear(8, 8)), b=shared),
}


def inputs_of(rows):
    return torch.randn(2, rows, 8, generator=torch.Generator().manual_seed(rows))


def program_of(model, dynamic=False):
    shapes = {"x": {1: N}} if dynamic else None
    return torch.export.export(copy.deepcopy(model).eval(), (inputs_of(5),), dynamic_shapes=shapes)


def file_of(program, tmp_path):
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def equal(got, want):
    got, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert type(a) is type(b) or isinstance(a, torch.Tensor)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        else:
            assert a == b


@pytest.mark.night(rows=13)
@pytest.mark.parametrize("dynamic", [False, True], ids=("static", "dynamic"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_from_a_file_equals_eager(name, dynamic, tmp_path):
    model = copy.deepcopy(PROGRAMS[name]).eval()
    call = torchair.compile_exported(read_program(file_of(program_of(model, dynamic), tmp_path)))
    for rows in (5, 9, 2) if dynamic else (5, 5):
        mine, others = inputs_of(rows), inputs_of(rows)
        with torch.no_grad():
            equal(call(mine), model(others))
        equal(mine, others)
    if dynamic:
        with pytest.raises(ArchiveError, match="GE5040"):
            call(inputs_of(65))


def test_every_door_takes_a_program(tmp_path, capsys):
    model, program = PROGRAMS["linear"].eval(), program_of(PROGRAMS["linear"], dynamic=True)
    torchair.CompiledModel.save_graph(program, save_path=tmp_path / "saved")
    torchair.dynamo_export(program, export_path=tmp_path / "first")
    torchair.dynamo_export(model=program, export_path=tmp_path / "second")
    assert shell.main([str(file_of(program, tmp_path)), "-o", str(tmp_path / "third")]) == 0
    for name in ("saved", "first", "second", "third"):
        loaded = torchair.CompiledModel.load_graph(tmp_path / name)
        with torch.no_grad():
            equal(loaded(inputs_of(7)), model(inputs_of(7)))
    assert (tmp_path / "first" / "export.air").read_bytes() == (tmp_path / "second" / "export.air").read_bytes()
    assert shell.main([str(tmp_path / "nothing.pt2")]) == 2
    assert "GE5020" in capsys.readouterr().err


def test_what_a_program_decides_itself_is_refused_beside_it(tmp_path):
    program = program_of(PROGRAMS["linear"])
    for more in ({"dynamic": True}, {"x": inputs_of(5)}):
        with pytest.raises(ConfigError, match="GE1011"):
            torchair.dynamo_export(model=program, export_path=tmp_path, **more)
    with pytest.raises(ConfigError, match="GE1011"):
        torchair.compile_exported(PROGRAMS["linear"])


# --- files of others -------------------------------------------------------------------------------------------------


def changed(source, target, edit):
    """A copy with other entries: ``edit``, of name and content, gives the content, or None to leave it out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            top, _, name = entry.filename.partition("/")
            content = edit(name, old.read(entry))
            if content is not None:
                new.writestr(zipfile.ZipInfo(f"{top}/{name}"), content)
    return target


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def in_model(change):
    def edit(name, content, mark):
        if name != "models/model.json":
            return content
        body = json.loads(content)
        change(body, mark)
        return json.dumps(body).encode()

    return edit


def nodes(body):
    return body["graph_module"]["graph"]["nodes"]


def in_expressions(text):
    def change(body, mark):
        found = 0
        for value in body["graph_module"]["graph"]["tensor_values"].values():
            for size in value["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = text.format(mark=str(mark))
                    found += 1
        assert found

    return change


def tree(body, mark):
    spec = body["graph_module"]["module_call_graph"][0]["signature"]
    spec["in_spec"] = spec["in_spec"].replace("builtins.dict", "collections.OrderedDict")


def in_weights(change):
    def edit(name, content, mark):
        if not name.endswith("weights_config.json"):
            return content
        body = json.loads(content)
        change(next(iter(body["config"].values())))
        return json.dumps(body).encode()

    return edit


def torch_pickle(mark):
    file = io.BytesIO()
    torch.save(Evil(mark), file)
    return file.getvalue()


HOSTILE = {
    "sample inputs": lambda n, c, mark: torch_pickle(mark) if n.endswith("inputs/model.pt") else c,
    "an old pickle": lambda n, c, mark: pickle.dumps(Evil(mark)) if n.endswith("inputs/model.pt") else c,
    "pickled weights": in_weights(lambda row: row.update(use_pickle=True)),
    "weights elsewhere": in_weights(lambda row: row.update(path_name="../../../etc/passwd")),
    "an object": in_weights(lambda row: row.update(path_name="opaque_obj_0")),
    "a function": in_model(lambda b, mark: nodes(b)[0].update(target="torch.load")),
    "a function of Python": in_model(lambda b, mark: nodes(b)[0].update(target="torch.os.system")),
    "an operator about files": in_model(lambda b, mark: nodes(b)[0].update(target="torch.ops.aten.from_file.default")),
    "a function as an argument": in_model(
        lambda b, mark: nodes(b)[0]["inputs"].append({"name": "f", "arg": {"as_operator": "torch.load"}, "kind": 1})
    ),
    "an extension": in_model(lambda b, mark: nodes(b)[0].update(target="#x")),
    "a size": in_model(in_expressions("__import__('os').system('touch {mark}')")),
    "another size": in_model(in_expressions("open('{mark}', 'w')")),
    "a size by attribute": in_model(in_expressions("().__class__")),
    "a name": in_model(
        lambda b, mark: b["graph_module"]["graph"]["inputs"][0]["as_tensor"].update(name=f"x=open('{mark}','w')")
    ),
    "a keyword": in_model(lambda b, mark: nodes(b)[0]["inputs"][0].update(name=f"input=open('{mark}','w')", kind=2)),
    "a class in a tree": in_model(tree),
    "a key": in_model(lambda b, mark: b["graph_module"]["graph"]["tensor_values"].update({"x)": {}})),
}


@pytest.mark.night(rows=2)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_runs_nothing(what, tmp_path):
    source, mark = file_of(program_of(PROGRAMS["linear"], dynamic=True), tmp_path), tmp_path / "ran"
    bad = changed(source, tmp_path / "bad.pt2", lambda n, c: HOSTILE[what](n, c, mark))
    with pytest.raises(ArchiveError, match="GE5060"):
        read_program(bad)
    assert not mark.exists()


def test_code_of_guards_is_not_run(tmp_path):
    source, mark = file_of(program_of(PROGRAMS["linear"]), tmp_path), tmp_path / "ran"
    edit = in_model(lambda b, mark: b.update(guards_code=[f"open('{mark}', 'w')"]))
    bad = changed(source, tmp_path / "bad.pt2", lambda n, c: edit(n, c, mark))
    torchair.compile_exported(read_program(bad))(inputs_of(5))
    assert not mark.exists()


def test_extra_entries_are_refused(tmp_path):
    source = file_of(program_of(PROGRAMS["linear"]), tmp_path)
    for name in ("model/data/aotinductor/model/wrapper.so", "model/data/weights/model.pt", "model/extra/x.py"):
        bad = changed(source, tmp_path / "bad.pt2", lambda n, c: c)
        with zipfile.ZipFile(bad, "a") as packed:
            packed.writestr(name, b"x")
        with pytest.raises(ArchiveError, match="GE5060"):
            read_program(bad)


def test_what_is_no_such_file_is_said(tmp_path):
    source = file_of(program_of(PROGRAMS["linear"]), tmp_path)
    content = source.read_bytes()
    for at, bad in enumerate((b"", b"text", content[:-50], content[: len(content) // 2])):
        (tmp_path / f"{at}.pt2").write_bytes(bad)
        with pytest.raises(ArchiveError, match="GE5021"):
            read_program(tmp_path / f"{at}.pt2")
    without = changed(source, tmp_path / "w.pt2", lambda n, c: None if n == "models/model.json" else c)
    with pytest.raises(ArchiveError, match="GE5021"):
        read_program(without)
