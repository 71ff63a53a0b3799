"""Text and files of others in every output of this package: shown, never obeyed; errors are ours."""

import csv
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ge_graph import Graph, building, serde, txt
from ge_graph import ops as ge
from ge_graph.errors import GeError
from tair_debug import artefacts, data_dump, debug_tree, dumps, fx_summary, ge_dump, graph_page, summary_forms
from tair_debug.cli import app
from tair_debug.measure import Measure
from tair_debug.observer import GraphId

HOSTILE = [
    "'",
    '"',
    "'''",
    '"""',
    "ends with \\",
    "a\rb",
    "a\nimport os",
    "a\x0cb",
    "a\x0bb",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "nul\x00",
    "</script><script>alert(1)</script>",
    "<b onclick='x'>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    "C:\\x",
    "CON.txt",
    "a" * 10_000,
    "\u202eabc",
    "\u2066abc",
    "\ud800",
    "\x1b[31mred\x1b]8;;http://x\x07",
    "{}{{}}%s%d",
    "[red]x[/blue]",
    "[/x]",
    "日本語 名",
    "{{ 7 * 7 }}",
]
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

each = pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))


def row(text):
    made = fx_summary.TargetRow(text, text, calls=2, good=1)
    for counts in (made.inputs, made.outputs, made.reasons, made.sources):
        counts[text] += 1
    return made


def graph_of(text):
    """A graph whose every text is the hostile one, as an archive of somebody else may bring it."""
    from ge_graph.ir import Provenance

    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=0, shape=(2,), node_name="x")
        graph.outputs = [ge.Relu(x)]
    graph.name = text
    for node in graph.nodes:
        node.name = f"{text}{node.name}"
        node.provenance = Provenance(fx_name=text, fx_target=text, fx_text=text, module=text, source=text, code=text)
    return graph


# --- pages, tables, terminal -----------------------------------------------------------------------------------------


@each
def test_a_page_of_a_graph(text):
    page = graph_page.to_html(graph_of(text))
    assert not UNSHOWN.search(page)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<b onclick" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert len(data["nodes"]) == 2
    page.encode()


@each
def test_a_page_of_the_report(text):
    page = summary_forms.to_html([row(text)], text)
    assert not UNSHOWN.search(page)
    assert page.count("<script") == page.count("</script>") == 1
    assert "onclick='x'" not in page
    assert "49" not in page
    page.encode()


@each
def test_a_spreadsheet_computes_nothing(text):
    written = fx_summary.to_csv([row(text)])
    assert not UNSHOWN.search(written.replace("\r\n", "\n"))
    ((_, cells),) = enumerate(list(csv.reader(io.StringIO(written, newline="")))[1:])
    assert len(cells) == 6
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)


@each
def test_a_terminal_obeys_nothing(text):
    from rich.console import Console

    from tair_debug.op_query import to_table

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=200)
    console.print(summary_forms.to_table([row(text)], True))
    console.print(to_table([{"name": text, "inputs": [text, f"{text}:"]}]))
    assert not UNSHOWN.search(out.getvalue())


@each
def test_the_result_of_a_comparison(text, capsys):
    from tair_debug import terminal
    from tair_debug.compare import Comparison, ComparisonRow
    from tair_debug.refused import RefusedCall

    bad = ComparisonRow(text, text, text, 0, text, text, text, text, Measure(False, 1.0, why=text))
    refused = RefusedCall(text, text, text, text, text)
    for result in (Comparison([bad, bad], saved=(text,), report=text), Comparison(totals=[bad], refused=[refused])):
        terminal.put(result.parts(terminal.Detail(every=True)), terminal.console())
        assert not UNSHOWN.search(str(result))
        assert "<b>" not in result._repr_html_()
    terminal.answer(Comparison([bad]).as_dict())
    shown = capsys.readouterr()
    assert not UNSHOWN.search(shown.out)
    assert not shown.err


# --- names of files --------------------------------------------------------------------------------------------------


@each
def test_names_stay_in_their_folder(text, tmp_path, monkeypatch):
    from tair_debug.compare import ComparisonRow, save_pair

    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.setattr(debug_tree, "root", lambda *_: inside)
    tree = debug_tree.DebugTree()
    stage = GraphId(0, "forward", 1)
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    tree.fx_graph(stage, text or "pass", gm)
    tree.ge_graph(stage, text, graph_of("g"))
    tree.output_code(stage, text)
    pair = ComparisonRow("g", text, "Relu", 0, "", "", "", "", Measure(False))
    assert len(save_pair(inside, pair, torch.ones(1), torch.ones(1))) == 2
    names = [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()]
    assert len(names) == 4
    assert all(name.startswith("inside/") and name.isascii() and len(name) < 300 for name in names)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in names)


@each
def test_dumps_of_operators_stay_in_their_folder(text, tmp_path):
    graph = graph_of(text)

    class Inner:
        source = ""

        def run_traced(self, inputs, on_node):
            for node in graph.nodes:
                on_node(node, [torch.ones(2)], [torch.ones(2)])
            return [torch.ones(2)]

    options = {"ge.exec.dumpPath": str(tmp_path / "inside")}
    (tmp_path / "inside").mkdir()
    for _ in range(2):  # the second one as if it were another process in the same second
        ge_dump.DumpingExecutable(Inner(), graph, options, 1).run([torch.ones(2)])
    found = [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.npy")]
    assert len(found) == 8
    assert all(p.startswith("inside/worldsize1_global_rank0/") for p in found)
    homes = {p.parent for p in tmp_path.rglob("provenance.json")}
    assert len(homes) == 2
    first, second = sorted(homes)
    result = dumps.compare_dumps(first, second)
    assert result.ok
    assert (len(result.rows), result.unmatched) == (2, 0)
    assert {r.fx for r in result.rows} == {text}


def test_a_long_name_of_a_node_is_dumped(tmp_path):
    graph = torch.fx.Graph()
    x = graph.create_node("placeholder", "x" * 3000, name="x" * 3000)
    y = graph.create_node("call_function", torch.ops.aten.relu.default, (x,), name="y" * 3000)
    graph.output(y)
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    data_dump.DataDump(gm, 1, tmp_path)(torch.ones(2))
    from tair_debug.tensor_dump import TensorDump

    TensorDump(gm, tmp_path)(torch.ones(2))
    assert len([*tmp_path.rglob("*.npy")]) == 2
    assert len([*tmp_path.rglob("*.pt")]) == 2


# --- files that others bring -----------------------------------------------------------------------------------------


def header(text, data=b"", version=b"\x01\x00"):
    body = text.encode() + b"\n"
    size = len(body).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + body + data


def good(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def zipped():
    out = io.BytesIO()
    np.savez(out, a=np.ones(2))
    return out.getvalue()


BROKEN_NPY = {
    "empty": b"",
    "no npy": b"hello",
    "cut": good(np.ones(9))[:-3],
    "longer": good(np.ones(9)) + b"x",
    "objects": good(np.array([{}, print], object)),
    "texts": good(np.array(["a", "b"])),
    "dates": good(np.array(["2020-01-01"], "M8[D]")),
    "records": good(np.zeros(2, [("a", "i4")])),
    "long double": good(np.ones(2, np.longdouble)),
    "huge": header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}"),
    "huger": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**300},)}}"),
    "wraps to zero": header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}"),
    "negative": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4)}", bytes(16)),
    "no number": header("{'descr': '<f4', 'fortran_order': False, 'shape': ('a',)}"),
    "a bool": header("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", bytes(4)),
    "code": header("__import__('os').mkdir('owned')"),
    "nested": header("(" * 5000),
    "nul": header("{'descr': '\x00', 'fortran_order': False, 'shape': ()}"),
    "not utf-8": b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xfe\xff\xff",
    "version": b"\x93NUMPY\x09\x00",
    "type of nothing": header("{'descr': [], 'fortran_order': False, 'shape': ()}"),
    "type of anything": header("{'descr': {'a': 1}, 'fortran_order': False, 'shape': ()}"),
    "zip": zipped(),
}
NAME = "Relu.Relu.1.0.20260101000000000000.output.0.npy"


def recorded(place, data=None, provenance=None):
    step = place / "0"
    step.mkdir(parents=True)
    (step / NAME).write_bytes(good(np.ones(2, np.float32)) if data is None else data)
    if provenance is not None:
        (place / "provenance.json").write_bytes(provenance)
    return place


@pytest.mark.parametrize("kind", BROKEN_NPY)
def test_a_recorded_dump_is_only_data(kind, tmp_path):
    fine, bad = recorded(tmp_path / "fine"), recorded(tmp_path / "bad", BROKEN_NPY[kind])
    for pair in ((fine, bad), (bad, fine)):
        with pytest.raises(GeError, match="GE1045.*no readable npy file"):
            dumps.compare_dumps(*pair)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        ">f4",
        ">i8",
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_every_type_of_numbers_is_read(dtype, shape, tmp_path):
    array = np.ones(shape, dtype)
    other = np.zeros(shape, dtype)
    a, b = recorded(tmp_path / "a", good(array.copy("F"))), recorded(tmp_path / "b", good(array))
    assert dumps.compare_dumps(a, b).ok
    c = recorded(tmp_path / "c", good(other))
    assert dumps.compare_dumps(a, c).ok is (array.size == 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"[" * 100_000,
        b'{"Relu": ' * 3000,
        b'{"a": NaN',
        b"1" * 5000,
    ],
)
def test_a_broken_provenance(text, tmp_path):
    a = recorded(tmp_path / "a", provenance=text)
    with pytest.raises(GeError, match=r"GE1045.*provenance\.json: not readable"):
        dumps.compare_dumps(a, a)


@pytest.mark.parametrize("value", ["1", "null", "[]", '"x"', '{"fx": 1, "source": {"a": []}}', '{"fx": "\\ud800"}'])
def test_a_provenance_of_other_values(value, tmp_path):
    a = recorded(tmp_path / "a", provenance=f'{{"Relu": {value}}}'.encode())
    result = dumps.compare_dumps(a, a)
    assert result.ok
    json.dumps(result.as_dict())


@pytest.mark.parametrize("name", [NAME, "../provenance.json"])
def test_pipes_and_devices_are_refused_not_read(name, tmp_path):
    for kind in ("pipe", "device", "socket"):
        place = recorded(tmp_path / kind)
        path = place / "0" / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            here = os.getcwd()
            os.chdir(path.parent)  # the address of a socket is short
            socket.socket(socket.AF_UNIX).bind(path.name)
            os.chdir(here)
        with pytest.raises(GeError, match="GE1045.*not a regular file"):
            dumps.compare_dumps(place, place)


# --- the command -----------------------------------------------------------------------------------------------------


def tair(*args):
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, result.output


def small():
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=0, shape=(2,), node_name="x")
        graph.outputs = [ge.Add(ge.Relu(x), ge.Const(np.arange(4, dtype=np.float32).reshape(2, 2)))]
    return graph


@each
def test_view_of_a_hostile_graph(text, tmp_path):
    try:
        data = serde.to_bytes(graph_of(text))
    except GeError:
        pytest.skip("such a name cannot be written")
    except UnicodeEncodeError:
        pytest.skip("protobuf has no such text")
    (tmp_path / "g.air").write_bytes(data)
    code, said = tair("view", tmp_path / "g.air", "-o", "page.html")
    assert code in (0, 2)
    assert "GE1048" not in said
    assert code == 2 or (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".air", ".txt"])
def test_view_of_damaged_graphs(suffix, tmp_path):
    whole = serde.to_bytes(small()) if suffix == ".air" else txt.to_txt(small()).encode()
    rng = np.random.default_rng(0)
    (tmp_path / "page").mkdir()
    for number in range(300):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 5))):
            at = int(rng.integers(len(data)))
            data[at : at + int(rng.integers(0, 3))] = bytes(rng.integers(0, 256, int(rng.integers(0, 4)), np.uint8))
        (tmp_path / f"g{suffix}").write_bytes(data)
        code, said = tair("view", tmp_path / f"g{suffix}", "-o", tmp_path / "page" / "p.html")
        assert code in (0, 2), (number, said)
        assert "GE1048" not in said, (number, said)
        assert not UNSHOWN.search(said), number
    assert {p.name for p in (tmp_path / "page").iterdir()} <= {"p.html"}


@pytest.mark.parametrize("command", ["summary", "dump", "compare", "view"])
@pytest.mark.parametrize(
    "body",
    [
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "1/0",
        "(",
        "x = '\x00'",
        "def make(): raise SystemExit(0)",
        "def make():\n    class A:\n        __repr__ = None\n    return A()",
        "make = 3",
        "def make(): raise RuntimeError('\\x1b[31m\\u202e')",
        "def make():\n    import torch\n    def f(x): raise ValueError('[/x]\\x1b[0m')\n    return f, torch.ones(2)",
        "def make():\n    import torch\n    return torch.nn.Linear(3, 2), torch.ones(2)",
    ],
)
def test_models_that_are_broken(command, body, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "broken_model", None)  # put back afterwards
    del sys.modules["broken_model"]
    (tmp_path / "broken_model.py").write_text(body)
    code, said = tair(command, "broken_model.py:make")
    assert code == 2
    assert re.search(r"\[GE\d{4}\]", said)
    assert "GE1048" not in said
    assert not UNSHOWN.search(said)


@pytest.mark.parametrize(
    "args",
    [
        ("ops", "[/x]"),
        ("ops", "\x1b[31m"),
        ("ops", "--ge", "\ud800"),
        ("view", "\x1b[31m.air"),
        ("view", "a\x00b.air"),
        ("view", "a" * 5000 + ".air"),
        ("view", ".."),
        ("view", "/dev/zero"),
        ("view", "\ud800.txt"),
        ("view", ""),
        ("compare", "[/x]", "\x1b[1m"),
        ("compare", "a\x00", "b\x00"),
        ("summary", "\x1b.py:x"),
        ("dump", "a\x00.py:x"),
        ("summary", "a" * 5000 + ".py:x"),
        ("summary", "m.py:make", "-i", "float32(9999999999, 9999999999)"),
        ("summary", "m.py:make", "-i", "float32(99999999999999999999999)"),
        ("view", "pipe.air"),
        ("compare", "--graph", "pipe.air", "a", "a"),
        ("view", "m.py:make", "-o", "m.py/such/page"),
        ("dump", "m.py:make", "-t", "[/x]"),
        ("dump", "m.py:make", "-o", "m.py"),
        ("summary", "m.py:make", "--html", "m.py/b"),
    ],
)
def test_arguments_that_are_broken(args, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "m", None)  # put back afterwards
    del sys.modules["m"]
    (tmp_path / "m.py").write_text("import torch\ndef make(): return torch.nn.Linear(2, 2), torch.ones(2)\n")
    os.mkfifo(tmp_path / "pipe.air")
    recorded(tmp_path / "a")
    code, said = tair(*args)
    assert code in (1, 2), said
    assert "GE1048" not in said
    assert not UNSHOWN.search(said)
    assert not [p for p in tmp_path.rglob("*.part")]


def test_the_doctor_repeats_the_environment_harmlessly(monkeypatch):
    monkeypatch.setenv("TAIR_ENGINE", "[/x]\x1b[31m")
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "[/y]\x1b[31m")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/[red]\x1b]0;x\x07")
    code, said = tair("doctor")
    assert code == 1
    assert not UNSHOWN.search(said)
    assert "[/x]" in said


# --- whole files -----------------------------------------------------------------------------------------------------

_FILL = """
import resource, sys, torch
from ge_graph.errors import ConfigError
from tair_debug import artefacts, data_dump, tensor_dump
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
graph = torch.fx.symbolic_trace(lambda x: torch.relu(x))
for make in (
    lambda: artefacts.write_text("t.txt", "x" * 10000, "option"),
    lambda: data_dump.write_npy("a.npy", torch.ones(5000).numpy(), "option"),
    lambda: tensor_dump.TensorDump(graph, ".")(torch.ones(5000)),
):
    try:
        make()
        print("written")
    except ConfigError as error:
        print(error.code, "File too large" in error.what)
"""


@pytest.mark.slow
def test_a_full_disk_is_our_error_and_leaves_nothing(tmp_path):
    run = subprocess.run([sys.executable, "-c", _FILL], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.stdout.split("\n")[:3] == ["GE1041 True"] * 3, run.stdout + run.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


_KILLED = """
import os, signal
from tair_debug import artefacts
artefacts.write("a.bin", lambda file: (file.write(b"half"), os.kill(os.getpid(), signal.SIGKILL)), "option")
"""


@pytest.mark.slow
def test_killed_while_writing(tmp_path):
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", _KILLED], cwd=tmp_path, timeout=120)
        assert run.returncode == -9
    left = [*tmp_path.iterdir()]
    assert len(left) == 3
    assert all(re.fullmatch(r"\.tair-[0-9a-f]{8}-\d+-\d+\.part", p.name) for p in left)
    artefacts._sweep.cache_clear()
    artefacts.write_text(tmp_path / "b", "x", "option")
    assert len([*tmp_path.glob(".tair-*")]) == 3  # they may be those of somebody who is slow
    for path in left:
        os.utime(path, (time.time() - 3600,) * 2)
    artefacts._sweep.cache_clear()
    artefacts.write_text(tmp_path / "b", "x", "option")
    assert os.listdir(tmp_path) == ["b"]


def test_a_folder_that_vanishes(tmp_path):
    place = tmp_path / "gone"
    place.mkdir()
    dump = data_dump.DataDump(torch.fx.symbolic_trace(lambda x: torch.relu(x)), 1, place)
    dump(torch.ones(2))
    shutil.rmtree(place)
    dump(torch.ones(2))  # made again
    shutil.rmtree(place)
    place.write_text("")
    with pytest.raises(GeError, match="GE1041"):
        dump(torch.ones(2))


def test_a_working_directory_that_was_removed(tmp_path, monkeypatch):
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    with pytest.raises(GeError, match="GE1041"):
        artefacts.write_text("a.txt", "x", "option")
    with pytest.raises(GeError, match="GE1041"):
        artefacts.folder("a", "option")
    with pytest.raises(GeError, match="GE1041"):
        fx_summary.write_csv([])


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a.txt").symlink_to("secret")
    artefacts.write_text(tmp_path / "a.txt", "x", "option")
    assert (tmp_path / "secret").read_text() == "secret"
    (tmp_path / "b.txt").symlink_to("secret")
    with pytest.raises(OSError, match="symbolic"):
        artefacts.claim(tmp_path / "b.txt")
