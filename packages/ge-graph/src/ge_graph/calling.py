"""What happens when ``ge.MatMulV2(...)`` is called: bind, check, infer, append. Each operator has one ``CallPlan``."""

from __future__ import annotations

import difflib
import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ge_graph import infer, schema
from ge_graph.attrs import CONVERT, Attr, Kind, make
from ge_graph.builder import ONLY_INT, constant
from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Literal, Node, Tensor, _current, current_graph
from ge_graph.schema import AttrSchema, OpSchema, PortSchema

# Operators whose dynamic outputs each have as many parts as an attribute says.
COUNT_ATTRS: Final = {
    "CTCBeamSearchDecoder": "top_paths",
    "Copy": "N",
    "DynamicPartition": "num_partitions",
    "SparseSplit": "num_split",
    "Split": "num_split",
    "SplitD": "num_split",
    "SplitV": "num_split",
    "SplitVD": "num_split",
    "Unpack": "num",
}
_INDEX: Final = frozenset((DataType.DT_INT32, DataType.DT_INT64))
_NUMBERS: Final = (int, float, complex, np.generic)
_RESERVED: Final = ("dependencies", "node_name")
# Types of attribute values that are equal only if they are the same: 0.0 equals -0.0.
_KEPT: Final = frozenset({int, bool, str, DataType})
_MADE: Final = 1024  # attributes kept for an operator: names and seeds may be new in every graph of a long process
_NO_OPTIONS: Final[dict[str, Any]] = {}


def parameter_names(op: OpSchema) -> tuple[dict[str, int], dict[str, str]]:
    """Python parameter names: of input ports (to position) and of attributes (to attribute name).

    A Python keyword, and a port named like an option of every call, get a trailing underscore; an attribute
    named like an input gets the prefix ``attr_``.
    """
    ports = {f"{p.name}_" if p.name in _RESERVED else _python_name(p.name): i for i, p in enumerate(op.inputs)}
    attributes = {}
    for a in op.attrs:
        name = _python_name(a.name)
        attributes[f"attr_{a.name}" if name in ports or name in _RESERVED else name] = a.name
    return ports, attributes


def _python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def counts_itself(op: OpSchema) -> bool:
    """Whether attribute ``N`` is the length of the only dynamic input; a call need not give it then."""
    return sum(p.kind == "dynamic" for p in op.inputs) == 1 and op.attr("N") is not None


class CallPlan:
    """Everything about an operator that a call needs, worked out once.

    Attributes:
        ports: Parameter name to input position.
        attributes: Parameter name to attribute schema.
    """

    __slots__ = (
        "schema",
        "op",
        "arity",
        "ports",
        "attributes",
        "template",
        "required",
        "rules",
        "reads",
        "single",
        "_legal",
        "simple",
        "counted",
        "definite",
        "_made",
    )

    def __init__(self, op: OpSchema) -> None:
        self.load(op)

    def load(self, op: OpSchema) -> None:
        """Take over another schema; wrappers that callers hold stay valid."""
        self.schema = op
        self.op = op.name
        self.arity = len(op.inputs)
        self.ports, names = parameter_names(op)
        by_name = {a.name: a for a in op.attrs}
        self.attributes = {parameter: by_name[name] for parameter, name in names.items()}
        for old, new in schema.other_names(op.name).items():  # a call may use the names of any release
            if new in self.attributes:
                self.attributes[old] = self.attributes[new]
            elif new in self.ports:
                self.ports[old] = self.ports[new]
        self.template: dict[str, Any] = {a.name: a.default for a in op.attrs if a.required or a.default is not None}
        self.required = tuple(a.name for a in op.attrs if a.required)
        rules = infer.rules(op)
        self.rules = [r.rule for r in rules]
        self.definite = [r.definite for r in rules]
        self.reads = tuple(sorted({name for r in rules for name in r.reads}))
        self.single = len(op.outputs) == 1 and op.outputs[0].kind != "dynamic"
        self.simple = all(p.kind != "dynamic" for p in op.outputs) and not op.subgraphs
        dynamic_inputs = [i for i, p in enumerate(op.inputs) if p.kind == "dynamic"]
        self.counted = dynamic_inputs[0] if counts_itself(op) else -1
        self._legal: dict[Any, tuple[tuple[DataType, None], ...]] = {}
        self._made: dict[tuple[str, type, Any], Attr] = {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Append the node and return its outputs.

        Raises:
            GraphError: GE3002, GE3012 to GE3019 as ``docs/errors`` says.
        """
        graph = _current.get() or current_graph()
        attrs: dict[str, Attr] = self.template.copy()
        options = _NO_OPTIONS
        if kwargs:
            options = {}
            operands = self._bind(args, kwargs, attrs, options)
        else:
            operands = list(args)
        if len(operands) != self.arity:
            self._complete(operands)
        fed: list[Any] = []
        for operand in operands:
            if operand.__class__ is not Tensor:
                fed = self._convert(graph, operands)
                break
            if operand.node.graph is not graph:
                raise self._foreign(operands.index(operand), operand)
            fed.append(operand.dtype)
        if self.counted >= 0 and "N" not in kwargs:
            attrs["N"] = Attr(Kind.INT, len(operands[self.counted]))
        if self.required:
            self._check_required(attrs)
        outputs = self._outputs(fed, attrs) if self.simple else ()
        if options:
            dependencies = options.get("dependencies")
            before = producers(graph, dependencies) if dependencies else ()
            node = graph.add(self.op, operands, attrs, outputs, name=options.get("node_name"))
            node.control.extend(before)
        else:
            node = graph.add(self.op, operands, attrs, outputs)
        if not self.simple:
            return self._finish(node, fed, options)
        if self.single:
            return node.outputs[0]
        return tuple(node.outputs) if node.outputs else node

    # -- binding -----------------------------------------------------------------------------------------------------

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], attrs: dict[str, Attr], options: dict[str, Any]
    ) -> list[Any]:
        operands = list(args)
        by_name: dict[int, Any] = {}
        for name, value in kwargs.items():
            attribute = self.attributes.get(name)
            if attribute is not None:
                if value is not None:
                    attrs[attribute.name] = self._attr(attribute, value)
            elif name in self.ports:
                by_name[self.ports[name]] = value
            elif self._is_option(name):
                options[name] = value
            else:
                raise self._unknown(name)
        if by_name:
            top = max(by_name) + 1
            clash = [i for i in by_name if i < len(args)]
            if clash:
                raise GraphError("GE3013", f"{self.op} got input '{self.schema.inputs[clash[0]].name}' twice")
            operands += [None] * (top - len(operands))
            for i, value in by_name.items():
                operands[i] = value
        return operands

    def _attr(self, attribute: AttrSchema, value: Any) -> Attr:
        kind = value.__class__
        if kind in _KEPT:
            key = (attribute.name, kind, value)
            known = self._made.get(key)
            if known is None:
                known = self._new_attr(attribute, value)
                if len(self._made) < _MADE:
                    self._made[key] = known
            return known
        return self._new_attr(attribute, value)

    def _new_attr(self, attribute: AttrSchema, value: Any) -> Attr:
        try:
            return Attr(attribute.kind, CONVERT[attribute.kind](value))
        except (TypeError, ValueError):
            return make(attribute.kind, value, f"attribute '{attribute.name}' of {self.op}")

    def _is_option(self, name: str) -> bool:
        if name in _RESERVED or name in self.schema.subgraphs:
            return True
        port = self.schema.output(name[8:]) if name.startswith("size_of_") else None
        return port is not None and port.kind == "dynamic"

    def _unknown(self, name: str) -> GraphError:
        known = [*self.ports, *self.attributes, *self.schema.subgraphs, *_RESERVED]
        known += [f"size_of_{p.name}" for p in self.schema.outputs if p.kind == "dynamic"]
        close = difflib.get_close_matches(name, known, 2, 0.6)
        return GraphError(
            "GE3013",
            f"{self.op} has no parameter '{name}'; it has {', '.join(known)}",
            next=f"did you mean {' or '.join(close)}?" if close else "",
        )

    def _complete(self, operands: list[Any]) -> None:
        if len(operands) > self.arity:
            names = ", ".join(p.name for p in self.schema.inputs) or "none"
            raise GraphError(
                "GE3013",
                f"{self.op} takes at most {self.arity} inputs ({names}), got {len(operands)}",
                next="give attributes by keyword",
            )
        operands.extend([None] * (self.arity - len(operands)))

    def _check_required(self, attrs: Mapping[str, Attr | None]) -> None:
        missing = [name for name in self.required if attrs[name] is None]
        if missing:
            raise GraphError("GE3013", f"{self.op} needs attribute {', '.join(missing)}")

    def _foreign(self, i: int, tensor: Tensor) -> GraphError:
        return GraphError(
            "GE3017",
            f"input '{self.schema.inputs[i].name}' of {self.op} is {tensor} of another graph "
            f"('{tensor.node.graph.name}')",
            next="build both nodes inside one `with building(graph)`",
        )

    # -- operands ----------------------------------------------------------------------------------------------------

    def _convert(self, graph: Graph, operands: list[Any]) -> list[Any]:
        """Turn numbers into constants and lists into tuples, in place; the types fed to each port."""
        for i, (port, operand) in enumerate(zip(self.schema.inputs, operands)):
            if port.kind == "dynamic":
                operands[i] = self._parts(graph, i, port, operand, operands)
            elif operand is None:
                if port.kind == "required":
                    raise GraphError("GE3013", f"{self.op} needs input '{port.name}'")
            elif type(operand) is not Tensor:
                operands[i] = self._constant(graph, i, port, operand, operands)
        fed: list[Any] = []
        for i, operand in enumerate(operands):
            if operand is None:
                fed.append(None)
                continue
            for tensor in operand if operand.__class__ is tuple else (operand,):
                if tensor.node.graph is not graph:
                    raise self._foreign(i, tensor)
            fed.append(tuple([t.dtype for t in operand]) if operand.__class__ is tuple else operand.dtype)
        return fed

    def _parts(self, graph: Graph, i: int, port: PortSchema, given: Any, operands: Sequence[Any]) -> tuple[Tensor, ...]:
        if given is None:
            return ()
        if not isinstance(given, (list, tuple)):
            raise GraphError(
                "GE3013", f"input '{port.name}' of {self.op} takes a list of tensors, got {type(given).__name__}"
            )
        parts = list(given)
        for k, part in enumerate(parts):
            if type(part) is not Tensor:
                if part is None:
                    raise GraphError("GE3013", f"part {k} of input '{port.name}' of {self.op} is None")
                parts[k] = self._constant(graph, i, port, part, [*parts, *operands])
        return tuple(parts)

    def _constant(self, graph: Graph, i: int, port: PortSchema, value: Any, operands: Sequence[Any]) -> Tensor:
        if type(value) is list and set(map(type, value)) == ONLY_INT and DataType.DT_INT64 in port.domain <= _INDEX:
            return constant(graph, value, dtype=DataType.DT_INT64)  # sizes and axes, most constants of a model
        if not isinstance(value, (*_NUMBERS, list, tuple, np.ndarray, Literal)):
            raise GraphError(
                "GE3013",
                f"input '{port.name}' of {self.op} must be a Tensor, a number, a list of numbers or a numpy "
                f"array, got {type(value).__name__}",
            )
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            raise GraphError(
                "GE3013",
                f"input '{port.name}' of {self.op} takes one tensor, got a list that holds tensors",
                next="join them with ge.Pack or ge.ConcatV2",
            )
        dtype = None if isinstance(value, Literal) else self._constant_dtype(port, value, operands)
        return constant(graph, value, dtype=dtype)

    def _constant_dtype(self, port: PortSchema, value: Any, operands: Sequence[Any]) -> DataType | None:
        domain = port.domain
        if not domain <= _INDEX:
            tensors = self._siblings(port, operands)
            if tensors:
                return tensors[0].dtype
        kind = np.asarray(value).dtype.kind
        if isinstance(value, (list, tuple)) and not value:
            kind = "i"
        order = _DEFAULTS.get(kind, ())
        dtype = next((d for d in order if d in domain), None)
        if dtype is None and kind in "iu" and len(domain) == 1:
            return port.dtypes[0]
        return dtype if dtype is not None else order[0] if order else None

    def _siblings(self, port: PortSchema, operands: Sequence[Any]) -> list[Tensor]:
        extra = len(operands) - self.arity  # parts of a dynamic port stand in front
        siblings = [t for t in operands[:extra] if type(t) is Tensor] if extra > 0 else []
        for other, operand in zip(self.schema.inputs, operands[max(extra, 0) :]):
            if other.domain == port.domain:
                if type(operand) is Tensor:
                    siblings.append(operand)
                elif type(operand) in (tuple, list):
                    siblings += [t for t in operand if type(t) is Tensor]
        return siblings

    # -- result types ------------------------------------------------------------------------------------------------

    def _outputs(self, fed: list[Any], attrs: Mapping[str, Attr]) -> tuple[tuple[DataType, None], ...]:
        key: Any = tuple(fed)
        if self.reads:
            key = (key, tuple(attrs.get(name) for name in self.reads))
        try:
            return self._legal[key]
        except KeyError:
            pass
        self.check_inputs(fed)
        outputs = tuple(
            (infer.check(self.schema, port, infer.first(rule(fed, attrs))), None)
            for port, rule in zip(self.schema.outputs, self.rules)
        )
        self._legal[key] = outputs
        return outputs

    def check_inputs(self, fed: Sequence[Any]) -> None:
        """Are the types fed to the ports legal?

        Raises:
            GraphError: GE3018 naming port, type got and types expected.
        """
        problems = list(input_problems(self.schema, fed))
        if problems:
            raise GraphError("GE3018", "; ".join(problems), next="add ge.Cast in front of the input")

    def _finish(self, node: Node, fed: list[Any], options: Mapping[str, Any]) -> Any:
        """Outputs of an operator with dynamic outputs or subgraphs."""
        try:
            for slot, kind in self.schema.subgraphs.items():
                self._attach(node, slot, kind, options.get(slot))
            self.check_inputs(fed)
            groups = [
                self._group(node, port, rule, fed, options) for port, rule in zip(self.schema.outputs, self.rules)
            ]
        except GraphError:
            node.graph.remove([node])
            raise
        if len(groups) == 1:
            return groups[0]
        return tuple(groups) if groups else node

    def _attach(self, node: Node, slot: str, kind: str, given: Any) -> None:
        graphs = [given] if kind == "required" else given
        if not isinstance(graphs, (list, tuple)) or not all(isinstance(g, Graph) for g in graphs):
            wanted = "a Graph" if kind == "required" else "a list of Graphs"
            raise GraphError("GE3013", f"{self.op} needs subgraph '{slot}': {wanted}, got {type(given).__name__}")
        for k, graph in enumerate(graphs):
            node.subgraphs[slot if kind == "required" else f"{slot}{k}"] = graph

    def _group(
        self, node: Node, port: PortSchema, rule: infer.Rule, fed: list[Any], options: Mapping[str, Any]
    ) -> Tensor | list[Tensor]:
        inferred = rule(fed, node.attrs)
        if port.kind != "dynamic":
            tensor = Tensor(node, len(node.outputs), infer.check(self.schema, port, infer.first(inferred)))
            node.outputs.append(tensor)
            return tensor
        if node.subgraphs:  # the last one: `else_branch` of If, `body` of While
            inferred = tuple(t.dtype for t in list(node.subgraphs.values())[-1].outputs)
        count = self._count(node, port, options, inferred)
        dtypes = inferred if isinstance(inferred, tuple) else (inferred,) * count
        if len(dtypes) != count:
            dtypes = (dtypes[0],) * count if len(set(dtypes)) == 1 else dtypes
        if len(dtypes) != count:
            raise GraphError("GE3013", f"{self.op} has {len(dtypes)} parts of output '{port.name}', got size {count}")
        start = len(node.outputs)
        node.output_counts[port.name] = count
        for k, dtype in enumerate(dtypes):
            node.outputs.append(Tensor(node, start + k, infer.check(self.schema, port, dtype)))
        return node.outputs[start:]

    def _count(self, node: Node, port: PortSchema, options: Mapping[str, Any], inferred: infer.Result) -> int:
        given = options.get(f"size_of_{port.name}")
        if given is None and self.op in COUNT_ATTRS:
            given = node.attr(COUNT_ATTRS[self.op])
        if given is None and isinstance(inferred, tuple):
            given = len(inferred)
        if type(given) is not int or given < 0:
            raise GraphError(
                "GE3013",
                f"{self.op} has a dynamic output '{port.name}'; give the number of its parts as "
                f"size_of_{port.name}=N, got {given!r}",
            )
        return given


_DEFAULTS: Final = {
    "b": (DataType.DT_BOOL,),
    "i": (DataType.DT_INT64, DataType.DT_INT32, DataType.DT_FLOAT),
    "u": (DataType.DT_INT64, DataType.DT_INT32, DataType.DT_FLOAT),
    "f": (DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_DOUBLE, DataType.DT_BF16),
    "c": (DataType.DT_COMPLEX64, DataType.DT_COMPLEX128),
}


def input_problems(op: OpSchema, fed: Sequence[Any]) -> list[str]:
    """What is wrong with the types fed to the ports; empty if nothing is."""
    problems = []
    bound: dict[str, tuple[str, DataType]] = {}
    for port, entry in zip(op.inputs, fed):
        for dtype in entry if isinstance(entry, tuple) else (entry,):
            if dtype is None:
                continue
            if dtype not in port.domain:
                known = ", ".join(d.name for d in port.dtypes)
                problems.append(f"input '{port.name}' of {op.name} is {dtype.name}; the operator knows {known}")
                break
            if port.typevar:
                first, expected = bound.setdefault(port.typevar, (port.name, dtype))
                if expected != dtype:
                    problems.append(
                        f"inputs '{first}' and '{port.name}' of {op.name} must have one type, "
                        f"got {expected.name} and {dtype.name}"
                    )
                    break
    return problems


def producers(graph: Graph, tensors: Sequence[Tensor]) -> list[Node]:
    """The nodes that a node waits for which depends on ``tensors``.

    Raises:
        GraphError: GE3017 if one is not a tensor of the graph.
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.node.graph is not graph:
            raise GraphError("GE3017", f"dependencies must be tensors of graph '{graph.name}', got {tensor!r}")
    return list(dict.fromkeys(t.node for t in tensors))


_plans: dict[schema.Release, dict[str, CallPlan]] = {}


def plan_of(op: str) -> CallPlan:
    """The plan of an operator under the release that holds here, made on first use.

    Raises:
        GraphError: GE3019 if that release has no such operator.
    """
    try:
        return _plans[schema.release()][op]
    except KeyError:
        pass
    known = schema.require(op)
    defining = _plans.setdefault(schema.definition_of(op), {})
    plan = defining.get(op)
    if plan is None:
        plan = defining[op] = CallPlan(known)
    _plans.setdefault(schema.release(), {})[op] = plan
    return plan


def _by_plan(plan: CallPlan) -> Callable[..., Any]:
    call = plan.call

    def operator(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs)

    return operator


def _by_release(op: str) -> Callable[..., Any]:
    def operator(*args: Any, **kwargs: Any) -> Any:
        return plan_of(op).call(args, kwargs)

    return operator


def wrapper(op: str) -> Callable[..., Any]:
    """The function behind ``ge.<op>``."""
    plan = plan_of(op)
    operator = _by_release(op) if schema.is_revised(op) else _by_plan(plan)
    operator.__name__ = operator.__qualname__ = op
    operator.__module__ = "ge_graph.ops"
    operator.__doc__ = f"GE operator {op}; ``ge_graph/ops.pyi`` has its signature and element types."
    operator.__signature__ = _signature(plan)  # type: ignore[attr-defined]
    return operator


def _signature(plan: CallPlan) -> inspect.Signature:
    """What ``help`` and editors show for a wrapper."""
    op, kind, made = plan.schema, inspect.Parameter, []
    last_needed = max((i for i, p in enumerate(op.inputs) if p.kind == "required"), default=-1)
    for name, i in plan.ports.items():
        rest = () if op.inputs[i].kind == "dynamic" else None
        made.append(kind(name, kind.POSITIONAL_OR_KEYWORD, default=rest if i > last_needed else kind.empty))
    defaults: dict[str, Any] = {}
    for name, attribute in plan.attributes.items():
        counted = plan.counted >= 0 and attribute.name == "N"
        default = None if attribute.default is None else attribute.default.value
        defaults[name] = kind.empty if attribute.required and not counted else default
    defaults |= {f"size_of_{p.name}": None for p in op.outputs if p.kind == "dynamic"}
    defaults |= dict.fromkeys(op.subgraphs, kind.empty) | {"dependencies": (), "node_name": None}
    return inspect.Signature([*made, *(kind(n, kind.KEYWORD_ONLY, default=v) for n, v in defaults.items())])


def _reload(op: str) -> None:
    newest = _plans.get(None, {}).get(op)
    for plans in list(_plans.values()):
        plans.pop(op, None)
    known = schema.get(op)
    if newest is not None and known is not None:
        newest.load(known)  # wrappers hold it
        _plans[None][op] = newest


schema.on_register(_reload)
