"""A compiled graph that is kept: its body, the contract under which it stands for a program, and both as a file.

The body is a GE graph, and how the ATen graph's inputs and results meet it; another kind of body is another row of
``_BODIES``. The contract says when the body may be used: a key, and conditions on sizes.

What is stored is data. Names in it are looked up in fixed tables or among torch's operators; nothing is executed,
imported or evaluated, so that a file of others can be wrong but not harmful. The archive around it, with its checksums
and its atomic commit, is that of ``tair_export``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.lowering import Lowered
from ge_converters.lowering.aliasing import Constant, InputAlias, InputBinding, Mutation, Nothing, Result, ScalarResult
from ge_graph import TensorSpec, serde
from ge_graph.dtypes import DataType
from ge_graph.errors import ArchiveError, GeError
from ge_graph.files import make_private
from tair_export.archive import Writer, open_archive
from tair_export.guards import MAX_GUARDS, Expr, check
from tair_export.manifest import Layout
from tair_export.ranks import Rank
from torchair.runtime.views import View, ViewPlan

KIND: Final = "compiled"
LOCK_SECONDS: Final = 1.0
STALE: Final = "GE5050"
FORM: Final = 3
_PYTYPES: Final = {"int": int, "float": float, "bool": bool}
_NESTED: Final[dict[str, Any]] = {"": None, "tuple": tuple, "list": list}


class Unstorable(Exception):
    """A compiled graph has a part that no file can hold; the text says which."""


@dataclass(slots=True)
class Contract:
    """When a kept graph stands for a program, and how it is called then.

    Attributes:
        conditions: What must be true of symbolic sizes, in the form of ``tair_export.guards``; a function that finds
            out while the graph is still being compiled.
        device: Device type of its tensors.
        order: Which of dynamo's inputs is which of the ATen graph's; None if it is not called with dynamo's.
        inputs: Number of dynamo's inputs.
        outputs: Number of results that dynamo expects.
    """

    conditions: list[Expr] | Callable[[], list[Expr]] = field(default_factory=list)
    device: str = "cpu"
    order: list[int] | None = None
    inputs: int = 0
    outputs: int = 0

    def found(self) -> list[Expr]:
        """The conditions.

        Raises:
            Unstorable: They have no such form.
        """
        return self.conditions() if callable(self.conditions) else self.conditions


@dataclass(slots=True)
class Stored:
    """A compiled graph that can be kept.

    Attributes:
        plan: How the caller's results come from the graph's.
        contract: When it may be used.
        static: Positions of inputs that are parameters, buffers or marked static.
        more: JSON that whoever stores it adds.
    """

    lowered: Lowered
    plan: ViewPlan
    contract: Contract = field(default_factory=Contract)
    static: frozenset[int] = frozenset()
    more: dict[str, Any] = field(default_factory=dict)


def write(stored: Stored, root: Path, name: str, key: Mapping[str, str], rank: Rank, text: str = "") -> Path:
    """Write the archive of a compiled graph.

    Args:
        root: Folder; made if missing, for this user alone.
        name: Base name of the files.
        key: What the graph depends on; a reader that has another key refuses it.
        text: A description for people, a file of its own called like ``name`` if it is not empty.

    Returns:
        The manifest.

    Raises:
        Unstorable: A part has no form in a file.
        OSError, ArchiveError: The file system refuses, or another process holds the folder's lock.
    """
    contract = stored.contract
    body = {
        "body": "ge", "binding": _binding(stored), "form": FORM, "key": dict(key), "kind": KIND, "more": stored.more,
        "rank": [rank.index, rank.count], "contract": {
            "conditions": contract.found(), "device": contract.device, "order": contract.order,
            "inputs": contract.inputs, "outputs": contract.outputs,
        },
    }  # fmt: skip
    chunks = list(serde.to_chunks(stored.lowered.graph))
    make_private(root)
    with Writer(root, Layout(name, "", "", ""), private=True, wait=LOCK_SECONDS) as writer:
        writer.add(f"{name}.air", chunks)
        if text:
            writer.add(name, [text.encode("utf-8", "backslashreplace")])
        return writer.commit(body)


def read(manifest: Path, key: Mapping[str, str], rank: Rank) -> Stored:
    """Read what ``write`` wrote.

    Args:
        key: What the graph must depend on.

    Raises:
        GeError: It is damaged, of another kind or version (GE502x), stale (GE5050), or its graph cannot be right.
    """
    archive = open_archive(manifest, rank, verify="full")
    body = archive.manifest
    if body.get("kind") != KIND or body.get("form") != FORM:
        raise stale(
            manifest, f"it holds {body.get('kind')!r} in form {body.get('form')!r}, not {KIND!r} in form {FORM}"
        )
    if body.get("rank") != [rank.index, rank.count]:
        raise stale(manifest, f"it is of rank {body.get('rank')}, this process is {[rank.index, rank.count]}")
    differs(manifest, body.get("key"), key)
    try:
        stored: Stored = _BODIES[body["body"]](archive.data(body["graph"]), body)
        stored.contract = _read_contract(body["contract"], stored.lowered.placeholders)
        if not isinstance(body["more"], dict):
            raise TypeError("more is not an object")
        stored.more = body["more"]
    except GeError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a file of others makes happen, it is the file
        raise damaged(manifest, f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
    return stored


def damaged(where: Path, why: str) -> ArchiveError:
    """GE5021: a cache entry is none."""
    return ArchiveError("GE5021", why, where=str(where), next="delete the entry; it is made anew")


def _read_contract(body: Mapping[str, Any], placeholders: int) -> Contract:
    order, inputs, outputs = body["order"], _index(body["inputs"], 1 << 24), _index(body["outputs"], 1 << 24)
    conditions = list(body["conditions"])
    if len(conditions) > MAX_GUARDS:
        raise ValueError(f"{len(conditions)} conditions")
    for each in conditions:
        check(each)
    if not isinstance(body["device"], str):
        raise ValueError("device")
    if order is not None:
        order = [_index(i, inputs) for i in order]
        if len(order) != placeholders:
            raise ValueError(f"{len(order)} inputs for {placeholders}")
    return Contract(conditions, torch.device(body["device"]).type, order, inputs, outputs)


def differs(manifest: Path, actual: Any, wanted: Mapping[str, str]) -> None:
    """Refuse an entry that depends on something else.

    Raises:
        ArchiveError: GE5050 naming what is different.
    """
    if not isinstance(actual, dict):
        raise stale(manifest, "it does not say what it depends on")
    for name in sorted({*actual, *wanted}):
        if actual.get(name) != wanted.get(name):
            old, new = (str(d.get(name, "unset"))[:80] for d in (actual, wanted))
            raise stale(manifest, f"{str(name)[:80]} was {old} and is {new}")


def stale(where: Path, why: str) -> ArchiveError:
    """GE5050: a cache entry does not belong to this program."""
    return ArchiveError(STALE, f"cache entry is stale: {why}", where=str(where), next="nothing to do, it is rebuilt")


# --- to JSON ---------------------------------------------------------------------------------------------------------


def _binding(stored: Stored) -> dict[str, Any]:
    lowered, plan = stored.lowered, stored.plan
    nodes: dict[torch.fx.Node, int] = {}

    def value(given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return {"node": nodes.setdefault(given, len(nodes))}
        return {"value": plain(given)}

    def argument(given: Any) -> Any:
        if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
            return {type(given).__name__: [argument(v) for v in given]}
        return value(given)

    returned = [value(v) for v in plan.returned]
    views = [
        {
            "node": value(v.node)["node"], "target": _target_name(v.target), "args": [argument(a) for a in v.args],
            "kwargs": {k: argument(a) for k, a in v.kwargs.items()},
        }
        for v in plan.views
    ]  # fmt: skip
    return {
        "inputs": [[b.fx_index, b.kind, *_spec(b.spec)] for b in lowered.inputs],
        "mutations": [[m.fx_index, m.ge_index] for m in lowered.mutations],
        "nested": "" if lowered.nested is None else lowered.nested.__name__,
        "outputs": [_output(o) for o in lowered.outputs],
        "placeholders": lowered.placeholders,
        "returned": returned,
        "static": sorted(stored.static),
        "views": views,
        "wanted": [value(v) for v in plan.wanted],
    }


def _spec(spec: TensorSpec) -> list[Any]:
    return [spec.dtype.name, list(spec.size)]


def _output(binding: Any) -> list[Any]:
    if isinstance(binding, Result):
        order, stride = (None if v is None else [*v] for v in (binding.order, binding.spec.stride))
        return ["result", binding.ge_index, *_spec(binding.spec), order, stride]
    if isinstance(binding, ScalarResult):
        return ["number", binding.ge_index, binding.pytype.__name__]
    if isinstance(binding, InputAlias):
        return ["input", binding.fx_index]
    if isinstance(binding, Constant):
        return ["constant", plain(binding.value)]
    if isinstance(binding, Nothing):
        return ["nothing"]
    raise Unstorable(f"a result of kind {type(binding).__name__}")


def _target_name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    raise Unstorable(f"a view by {target}")


_FIXED_TYPES: Final = (torch.dtype, torch.layout, torch.memory_format)


def plain(value: Any) -> Any:
    """A plain value as JSON that keeps its type; tensors have none.

    Raises:
        Unstorable: The value has no form.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, _FIXED_TYPES):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [plain(v) for v in value]}
    raise Unstorable(f"a value of type {type(value).__name__}")


def unplain(encoded: Any) -> Any:
    """The value that ``plain`` made JSON of.

    Raises:
        ValueError, TypeError, KeyError: It is none.
    """
    if not isinstance(encoded, dict):
        if encoded is None or type(encoded) in (bool, int, str):
            return encoded
        raise ValueError(f"{str(encoded)[:40]} is not a value")
    ((kind, content),) = encoded.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "torch":
        value = getattr(torch, content) if content.isidentifier() and not content.startswith("_") else None
        if not isinstance(value, _FIXED_TYPES):
            raise ValueError(f"torch has no type {content[:40]!r}")
        return value
    if kind == "device":
        return torch.device(content)
    return {"list": list, "tuple": tuple}[kind](unplain(v) for v in content)


# --- from JSON -------------------------------------------------------------------------------------------------------


def _read_ge(data: memoryview, manifest: Mapping[str, Any]) -> Stored:
    graph, body = serde.from_bytes(data), manifest["binding"]
    inputs = tuple(_input(*row) for row in body["inputs"])
    outputs = tuple(_read_output(*row) for row in body["outputs"])
    count = _index(body["placeholders"], 1 << 24)
    results = len(graph.outputs)
    mutations = tuple(Mutation(_index(f, count), _index(g, results)) for f, g in body["mutations"])
    for b in inputs:
        _index(b.fx_index, count)
    for o in outputs:
        if isinstance(o, InputAlias):
            _index(o.fx_index, count)
        elif isinstance(o, (Result, ScalarResult)):
            _index(o.ge_index, results)
    _fit(graph, inputs, outputs)
    lowered = Lowered(graph, inputs, outputs, mutations, count, _NESTED[body["nested"]])
    static = frozenset(_index(i, count) for i in body["static"])
    plan = _read_plan(body)
    if len(plan.returned) != len(outputs):
        raise ValueError(f"{len(plan.returned)} results returned of {len(outputs)}")
    return Stored(lowered, plan, static=static)


def _fit(graph: Any, inputs: Sequence[InputBinding], outputs: Sequence[Any]) -> None:
    data = graph.inputs
    if [n.attr("index") for n in data] != list(range(len(inputs))):
        raise ValueError(f"{len(data)} inputs in the graph, {len(inputs)} in the binding")
    for node, binding in zip(data, inputs):
        if node.outputs[0].dtype is not binding.spec.dtype:
            raise ValueError(f"input {node.name} is {node.outputs[0].dtype.name}, bound as {binding.spec.dtype.name}")
    for o in outputs:
        if isinstance(o, Result) and graph.outputs[o.ge_index].dtype is not o.spec.dtype:
            raise ValueError(f"output {o.ge_index} is bound as {o.spec.dtype.name}")


def _index(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{str(value)[:40]} is not a position below {count}")
    return value


def _read_spec(dtype: Any, size: Any, stride: Any = None) -> TensorSpec:
    for numbers in (size, size if stride is None else stride):
        if len(numbers) != len(size) or not all((type(d) is int and d >= 0) or type(d) is str for d in numbers):
            raise ValueError(f"sizes {str(size)[:80]}, strides {str(stride)[:80]}")
    return TensorSpec(DataType[dtype], tuple(size), None if stride is None else tuple(stride))


def _input(fx_index: Any, kind: Any, dtype: Any, size: Any) -> InputBinding:
    if kind not in ("tensor", "scalar"):
        raise ValueError(f"input kind {str(kind)[:40]}")
    return InputBinding(fx_index, kind, _read_spec(dtype, size))


def _read_output(kind: str, *rest: Any) -> Any:
    if kind == "result":
        index, dtype, size, order, stride = rest
        if order is not None and sorted(order) != list(range(len(size))):
            raise ValueError(f"order {str(order)[:80]}")
        return Result(index, _read_spec(dtype, size, stride), None if order is None else tuple(order))
    if kind == "number":
        return ScalarResult(rest[0], _PYTYPES[rest[1]])
    if kind == "input":
        return InputAlias(rest[0])
    if kind == "constant":
        return Constant(unplain(rest[0]))
    if kind == "nothing" and not rest:
        return Nothing()
    raise ValueError(f"result kind {str(kind)[:40]}")


def _read_plan(body: Mapping[str, Any]) -> ViewPlan:
    graph = torch.fx.Graph()
    nodes: dict[int, torch.fx.Node] = {}

    def value(given: Mapping[str, Any], new: bool = False) -> Any:
        ((kind, content),) = given.items()
        if kind == "value":
            return unplain(content)
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](value(v) for v in content)
        if kind != "node" or type(content) is not int or (content not in nodes and not new):
            raise ValueError(f"{str(given)[:80]} is not a value made before")
        if content not in nodes:
            nodes[content] = graph.placeholder(f"value_{len(nodes)}")
        return nodes[content]

    returned = [value(v, new=True) for v in body["returned"]]
    views = []
    for row in body["views"]:
        args = tuple(value(a) for a in row["args"])
        kwargs = {_keyword(k): value(a) for k, a in row["kwargs"].items()}
        views.append(View(value({"node": row["node"]}, new=True), _view_op(row["target"]), args, kwargs))
    return ViewPlan(returned, views, [value(v) for v in body["wanted"]])


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name[:40]!r} is not a parameter")
    return name


def _view_op(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    packet, _, overload = name.removeprefix("aten.").partition(".")
    if not name.startswith("aten.") or not packet.isidentifier() or not overload.isidentifier():
        raise ValueError(f"{name[:80]} is not a view")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable or not _gives_view(op):
        raise ValueError(f"{name[:80]} is not a view")
    view: Callable[..., Any] = op
    return view


_BODIES: Final[dict[str, Callable[[memoryview, Mapping[str, Any]], Stored]]] = {"ge": _read_ge}
"""What a kept program may be, by its name in the manifest: how it is read."""


def _gives_view(op: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None for r in op._schema.returns)
