"""Every reader of files, given damaged and forged ones: an answer or our own error, soon, and in little memory.

Mutations know the form: fields of messages, tokens of texts, values of JSON. All readers together take
``TAIR_FUZZ_SECONDS`` (12 by default; a nightly workflow gives an hour). An input that made a reader fail is kept under
``tests/corpus/<reader>/`` and tried first from then on.
"""

import ast
import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ge_graph import DataType, Graph, building, names, printer, python_source, serde, txt, wire
from ge_graph import ops as ge
from ge_graph.codegen.emit import module_text
from ge_graph.codegen.reg_op import parse_header
from ge_graph.errors import GeError
from ge_graph.kernels import form, installation
from ge_graph.pbtxt import to_pbtxt
from ge_graph.python_reader import run_py
from ge_graph.verify import violations
from tair_export import CompiledModel, archive, load_air
from tair_export.export import CapturedModel, write_graph
from tair_export.ranks import Rank
from tair_export.signature import Input, Output, Signature
from tair_export.tensors import read_npy

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("TAIR_FUZZ_SECONDS", "12"))
SLOWEST = 10.0
MEMORY = 3 << 30
ODD = [0, 1, -1, -2, 2, 255, 65, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 62), (1 << 63) - 1, -(1 << 63), 10_000]
TEXTS = [
    "",
    "\n",
    "\0",
    "\u2028",
    "..",
    "../x",
    "a:0",
    "a:-1",
    ":",
    "x" * 5000,
    "\ud800",
    "=1",
    '"',
    "\\",
    "NetOutput",
    "Data",
]


def sample():
    graph = Graph("graph_1")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("s0", 4), node_name="x")
        y = ge.MatMulV2(x, ge.Const(np.ones((4, 4), "f4"), node_name="w"), transpose_x2=True)
        a, b = ge.SplitD(y, split_dim=1, num_split=2)
        graph.outputs = [ge.ConcatD([a, b], concat_dim=1, dependencies=[x])]
        inner = Graph("then")
        with building(inner):
            inner.outputs = [ge.Relu(ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2, 4)))]
        node = graph.add("If", [graph.outputs[0], (x,)], {}, [(DataType.DT_FLOAT, None)], name="if_1")
        node.output_counts["output"] = 1
        node.subgraphs["then_branch"] = inner
    return graph


def saved(folder):
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("s0", 4), node_name="x")
        graph.outputs = [ge.Relu(x)]
    contract = Signature(
        {"tuple": ["*"]},
        {"dict": [["k", "*"]]},
        ("x",),
        {"record": {"type": "R", "fields": [["y", "*"]]}},
        (Input("x", "tensor", DataType.DT_FLOAT, ("s0", 4)), Input("k", "constant", value=1.5)),
        (Output("tensor", 0, DataType.DT_FLOAT, ("s0", 4), (1, 0)),),
        (0,),
        {"s0": (1, None)},
        {"2*s0": ["*", 2, "s0"]},
        (["==", ["%", "s0", 2], 0],),
    )
    write_graph(CapturedModel(graph, contract, {}), folder, Rank(0, 1))
    return folder / f"compiled_graph{archive.SUFFIX}"


HEADER = """
#define TYPES TensorType({DT_FLOAT, DT_INT32})
/** @brief Does "it". \\n */
REG_OP(FuzzOp)
    .INPUT(x, TYPES)
    .DYNAMIC_INPUT(xs, TensorType::ALL())
    .OPTIONAL_INPUT(b, "T")
    .OUTPUT(y, TensorType({DT_FLOAT}))
    .ATTR(a, Int, 3)
    .ATTR(f, Float, 1.5e3)
    .ATTR(s, String, "NCHW\\x41")
    .ATTR(l, ListInt, {1, 2})
    .ATTR(ll, ListListInt, {{1}, {2}})
    .ATTR(t, Type, ge::DT_FLOAT)
    .REQUIRED_ATTR(r, Bool)
    .DATATYPE(T, TensorType({DT_FLOAT, DT_FLOAT16}))
    .OP_END_FACTORY_REG(FuzzOp)
"""


# --- mutations -------------------------------------------------------------------------------------------------------


def of_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            data[at:at] = data[: rng.randrange(64)]
        elif kind == 3:
            del data[at : at + rng.randrange(1, 16)]
        else:
            data[at:at] = rng.choice((b"\xff" * 9, b"\0" * 8, b"\x80" * 4))
    return bytes(data)


_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def of_text(rng, text):
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at, kind = rng.randrange(len(tokens)), rng.randrange(6)
        if kind == 0:
            tokens[at] = str(rng.choice(ODD))
        elif kind == 1:
            tokens[at] = rng.choice(TEXTS)
        elif kind == 2:
            del tokens[at : at + rng.randrange(1, 5)]
        elif kind == 3:
            tokens[at:at] = tokens[rng.randrange(len(tokens)) :][: rng.randrange(1, 40)]
        elif kind == 4:
            tokens[at] = rng.choice(tokens)
        else:
            tokens[at] = tokens[at] * rng.choice((2, 50, 3000))
        tokens = tokens or [""]
    return "".join(tokens)[: 1 << 20]


def fields_of(message, found):
    """All messages inside a message."""
    found.append(message)
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            for entry in value.values():
                if hasattr(entry, "ListFields"):
                    fields_of(entry, found)
        elif isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            fields_of(value, found)
        else:
            for entry in value:
                fields_of(entry, found)
    return found


def of_message(rng, data):
    if rng.random() < 0.2:
        return of_bytes(rng, data)
    model = wire.parse("ModelDef", data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        message = rng.choice(fields_of(model, []))
        field = rng.choice(message.DESCRIPTOR.fields)
        with contextlib.suppress(ValueError, TypeError, AttributeError, UnicodeError):
            value = getattr(message, field.name)
            kind = rng.randrange(3)
            if kind == 0:
                message.ClearField(field.name)
            elif field.type == field.TYPE_STRING or field.type == field.TYPE_BYTES:
                new = rng.choice((*TEXTS, "x:0", "x", "MatMulV2", "then"))
                new = new.encode("utf-8", "surrogatepass") if field.type == field.TYPE_BYTES else new
                value.append(new) if hasattr(value, "append") else setattr(message, field.name, new)
            elif field.type == field.TYPE_MESSAGE and hasattr(value, "add"):
                new = value.add()
                if len(value) > 1 and rng.random() < 0.7:
                    new.CopyFrom(value[rng.randrange(len(value) - 1)])
            elif hasattr(value, "append"):
                value.append(rng.choice(ODD))
            elif field.type != field.TYPE_MESSAGE:
                setattr(message, field.name, rng.choice(ODD))
    for graph in model.graph:
        graph.attr.pop("_crc32", None) if hasattr(graph.attr, "pop") else None
    model.attr.clear()
    return model.SerializeToString()


def of_json(rng, value, depth=0):
    if rng.random() < 0.08 or depth > 12:
        pool = [None, True, 1.5, [], {}, "", *ODD, *TEXTS, [[]] * 50, {"float": "nan"}, {"tuple": ["*"]}, 10**30]
        return rng.choice(pool)
    if isinstance(value, dict):
        found = {k: of_json(rng, v, depth + 1) for k, v in value.items() if rng.random() > 0.03}
        return found | ({rng.choice(TEXTS): 1} if rng.random() < 0.03 else {})
    if isinstance(value, list):
        found = [of_json(rng, v, depth + 1) for v in value if rng.random() > 0.03]
        return found + found[:1] if rng.random() < 0.05 else found
    return value


# --- readers: seeds, mutation, what is done with the result -----------------------------------------------------


def use(graph):
    list(violations(graph))
    printer.to_text(graph), to_pbtxt(graph), python_source.to_py(graph)
    names.repair(graph)


def read_air_bytes(folder, data):
    use(serde.from_bytes(data))


def load_air_file(folder, data):
    (folder / "f.air").write_bytes(data)
    load_air(folder / "f.air")


def read_txt(folder, data):
    use(txt.from_txt(data.decode("utf-8", "surrogateescape")))


def read_py(folder, data):
    use(run_py(data.decode("utf-8", "surrogateescape"), file=str(folder / "f.py")))


def read_manifest(folder, data):
    (folder / f"compiled_graph{archive.SUFFIX}").write_bytes(data)
    model = CompiledModel.load_graph(folder, rank=Rank(0, 1))
    repr(model)
    for rows in (2, 3):
        with contextlib.suppress(GeError):
            model(np.ones((rows, 4), "f4"), k=1.5)


def read_header(folder, data):
    operators, _ = parse_header(data.decode("utf-8", "replace"), folder / 'a"""\\h.h')
    ast.parse(module_text(operators, replace=True))


def read_array(folder, data):
    (folder / "f.npy").write_bytes(data)
    read_npy(str(folder / "f.npy"))


def as_text(mutate):
    return lambda rng, data: mutate(rng, data.decode()).encode("utf-8", "surrogatepass")


def of_manifest(rng, data):
    if rng.random() < 0.2:
        return of_bytes(rng, data)
    body = {k: v for k, v in json.loads(data).items() if k not in ("digest", "format", "version")}
    changed = of_json(rng, body)
    try:
        return archive.render(archive.seal(changed if isinstance(changed, dict) else body))
    except (ValueError, TypeError):
        return data


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def read_config(option):
    def read(folder, data):
        from torchair import CompilerConfig
        from torchair.config.compiler_config import find

        (folder / "f.json").write_bytes(data)
        find(CompilerConfig(), option).value = str(folder / "f.json")

    return read


def read_dump(folder, data):
    from tair_debug.dumps import _load

    (folder / "f.npy").write_bytes(data)
    _load(folder / "f.npy")


def read_facts(below):
    """The lists of operators of a CANN installation."""

    def read(folder, data):
        file = folder / "opp" / "built-in" / "op_impl" / below
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        facts = installation.load(folder, cache=folder / "cache")
        form.read(facts.text().encode(), "f.tsv")

    return read


def read_provenance(folder, data):
    from tair_debug.dumps import read_tree

    (folder / "provenance.json").write_bytes(data)
    (folder / "aten.add.Tensor.INPUT.0.1.npy").write_bytes(npy(np.ones(2, "f4")))
    read_tree(folder)


def cached(folder):
    """A compiled graph as the cache keeps it; its manifest is what is changed."""
    import torch

    import torchair

    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.cache_dir = str(folder / "cache")
    torch.compile(
        lambda x, y: (x.t() @ y, x[0]), backend=torchair.get_npu_backend(compiler_config=config), dynamic=True
    )(torch.ones(3, 4), torch.ones(3, 2))
    return next((folder / "cache").rglob(f"*{archive.SUFFIX}"))


def read_cached(folder, data):
    from torchair.artifact import stored_graph

    manifest = next((folder / "cache").rglob(f"*{archive.SUFFIX}"))
    manifest.write_bytes(data)
    try:
        key = json.loads(data)["key"]
    except (ValueError, KeyError, TypeError, RecursionError):
        key = {}
    stored_graph.read(manifest, key if isinstance(key, dict) else {}, Rank(0, 1))


def as_json_or_bytes(rng, data):
    if data == DEEP or rng.random() < 0.3:
        return of_bytes(rng, data)
    return json.dumps(of_json(rng, json.loads(data))).encode()


DUMP = {
    "dump": {
        "dump_path": "/tmp",
        "dump_mode": "all",
        "dump_list": [{"model_name": "m", "layer": ["a"]}],
        "dump_switch": "on",
        "dump_step": "0|2-3",
    }
}
SWITCH = {"Switch": {"GraphFusion": {"ALL": "off", "A": "on"}, "UBFusion": {"B": "off"}}}
CORE = {
    "Add": {
        "input0": {"name": "x1", "dtype": "float16,float,int32", "format": "ND,ND,ND", "paramType": "required"},
        "input1": {"name": "x2", "dtype": "float16,float,int32", "format": "ND,ND,ND", "paramType": "optional"},
        "output0": {"name": "y", "dtype": "float16,float,int32", "format": "ND,ND,ND", "paramType": "required"},
        "dynamicFormat": {"flag": "false"},
        "dynamicShapeSupport": {"flag": "true"},
    }
}
AI_CPU_LIST = {
    "Sort": {"input0": {"name": "x", "type": "DT_INT64,DT_BOOL"}, "output0": {"name": "y", "type": "DT_INT64"}}
}
ORIGINS = {"aten.add.Tensor": {"fx": "add", "target": "aten.add.Tensor", "source": "m.py:3", "code": "x + y"}}
DEEP = b'{"dump": ' + b"[" * 100_000

READERS = {
    "air": (lambda f: [serde.to_bytes(sample())], of_message, read_air_bytes),
    "air_file": (lambda f: [serde.to_bytes(sample())], of_message, load_air_file),
    "txt": (lambda f: [txt.to_txt(sample()).encode()], as_text(of_text), read_txt),
    "pbtxt": (lambda f: [to_pbtxt(sample()).encode()], as_text(of_text), read_txt),
    "py": (lambda f: [python_source.to_py(sample()).encode()], as_text(of_text), read_py),
    "manifest": (lambda f: [saved(f).read_bytes()], of_manifest, read_manifest),
    "reg_op": (lambda f: [HEADER.encode()], as_text(of_text), read_header),
    "dump_json": (
        lambda f: [json.dumps(DUMP).encode(), DEEP],
        as_json_or_bytes,
        read_config("dump_config.dump_config_path"),
    ),
    "fusion_switch": (
        lambda f: [json.dumps(SWITCH).encode(), DEEP],
        as_json_or_bytes,
        read_config("fusion_config.fusion_switch_file"),
    ),
    "kernels": (
        lambda f: [json.dumps(CORE).encode(), DEEP],
        as_json_or_bytes,
        read_facts("ai_core/tbe/config/ascend910b/aic-ascend910b-ops-info.json"),
    ),
    "cpu_kernels": (
        lambda f: [json.dumps(AI_CPU_LIST).encode(), DEEP],
        as_json_or_bytes,
        read_facts("aicpu/aicpu_kernel/config/aicpu_kernel.json"),
    ),
    "provenance": (lambda f: [json.dumps(ORIGINS).encode(), DEEP], as_json_or_bytes, read_provenance),
    "cache": (lambda f: [cached(f).read_bytes()], of_manifest, read_cached),
    "dump_npy": (lambda f: [npy(np.ones((3, 4), "f4"))], of_bytes, read_dump),
    "npy": (lambda f: [npy(np.ones((3, 4), "f4")), npy(np.zeros((0, 2), "i8"))], of_bytes, read_array),
}


@contextlib.contextmanager
def little_memory():
    """Whoever takes gigabytes for a small file gets a MemoryError, which is none of our errors."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt(name, read, folder, data):
    start = time.monotonic()
    try:
        read(folder, data)
    except GeError as error:
        if not str(error).isprintable() and any(not (c.isprintable() or c == "\n") for c in str(error)):
            keep(name, data)
            raise AssertionError(f"a message that does not print: {str(error)!r:.500}") from None
    except BaseException:
        keep(name, data)
        raise
    if time.monotonic() - start > SLOWEST:
        keep(name, data)
        raise AssertionError(f"{time.monotonic() - start:.1f} s for {len(data)} bytes")


def keep(name, data):
    place = CORPUS / name
    place.mkdir(parents=True, exist_ok=True)
    if len(data) < 64 << 10:
        (place / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_corpus(name, tmp_path):
    """What once made a reader fail."""
    seeds, _, read = READERS[name]
    seeds(tmp_path)
    for path in sorted((CORPUS / name).glob("*")):
        with little_memory():
            attempt(name, read, tmp_path, path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_fuzz(name, tmp_path):
    seeds, mutate, read = READERS[name]
    found = seeds(tmp_path)
    for data in found:
        with contextlib.suppress(GeError):
            read(tmp_path, data)
    end = time.monotonic() + SECONDS / len(READERS)

    def check(number):
        rng = random.Random(number)
        if time.monotonic() < end:
            attempt(name, read, tmp_path, mutate(rng, rng.choice(found)))

    start = int(os.environ.get("TAIR_FUZZ_SEED", "1"))
    with little_memory():
        while time.monotonic() < end:
            start += 1
            run = settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            seed(start)(run(given(st.integers(0, 1 << 62))(check)))()
