"""Calls of converters: their parameters from FX arguments and aten schema, and the check of what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ge_converters.base.dtypes import to_torch
from ge_converters.base.errors import Declined, LoweringError, Refusal
from ge_converters.base.provenance import user_frame
from ge_converters.lowering.context import Context, Unproduced, constant
from ge_converters.registry import Converter, Entry, Registry
from ge_converters.registry.signatures import keyword_arguments, python_name
from ge_graph import GraphError, Tensor, TensorSpec

_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)

_TENSORS = ("Tensor", "Optional[Tensor]")
# Numbers that stand for one of several choices, by the name that schemas give them. torch's functions make them from
# words and eager's kernels do not look at others.
_CHOICES = {"reduction": 3, "normalization": 3, "interpolation_mode": 3, "padding_mode": 3}
_KINDS = (bool, int, float, complex)


def _kind(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


class Parameters:
    """How a converter is called.

    Attributes:
        positional: Name and default of every positional argument of the schema, in order.
        keywords: Name, Python name and default of every keyword-only argument that the converter takes.
        tensors: Positions of the arguments that are tensors.
        numbers: Names of the arguments that hold no tensors.
        choices: Positions of the arguments that number a choice, and how many choices there are.
    """

    __slots__ = ("positional", "keywords", "count", "tensors", "numbers", "choices")

    def __init__(self, target: torch._ops.OpOverload, fn: Converter) -> None:
        arguments = target._schema.arguments
        self.positional = [(a.name, _default(a)) for a in arguments if not a.kwarg_only]
        self.keywords = [(a.name, python_name(a.name), _default(a)) for a in keyword_arguments(target, fn)]
        self.count = len(self.positional)
        self.tensors = [i for i, a in enumerate(a for a in arguments if not a.kwarg_only) if str(a.type) in _TENSORS]
        self.numbers = frozenset(a.name for a in arguments if "Tensor" not in str(a.type))
        self.choices = [(i, _CHOICES[n]) for i, (n, _) in enumerate(self.positional) if n in _CHOICES]

    def bind(self, args: Any, kwargs: Any, convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """All parameters of the call, defaults filled in, each passed through ``convert``."""
        given = [convert(a) for a in args]
        if len(given) < self.count:
            for name, default in self.positional[len(given) :]:
                given.append(convert(kwargs[name]) if name in kwargs else default)
        if not self.keywords:
            return given, {}
        return given, {
            python_name: convert(kwargs[name]) if name in kwargs else default
            for name, python_name, default in self.keywords
        }

    def check_choices(self, positional: list[Any]) -> None:
        """Refuse numbers of choices that there are not; a negative one would count from the end."""
        for position, count in self.choices:
            number = positional[position]
            if type(number) is int and not 0 <= number < count:
                name = self.positional[position][0]
                raise Refusal(
                    f"argument '{name}' is {number}; it says which of {count} forms is meant, 0 to {count - 1}"
                )

    def symbolic(self, positional: list[Any], keywords: dict[str, Any]) -> list[str]:
        """Names of the arguments that are symbolic numbers: GE tensors where the schema has none."""
        given = [(name, value) for (name, _), value in zip(self.positional, positional)]
        given += [(name, keywords[python_name]) for name, python_name, _ in self.keywords]
        return [
            name
            for name, value in given
            if name in self.numbers and any(isinstance(v, Tensor) for v in (value if type(value) is list else [value]))
        ]


def parameters_of(entry: Entry) -> Parameters | None:
    """The parameters of a converter; None for Python functions, whose arguments are passed as they stand."""
    if entry.parameters is None and isinstance(entry.target, torch._ops.OpOverload):
        entry.parameters = Parameters(entry.target, entry.fn)
    return entry.parameters  # type: ignore[no-any-return]


def _default(argument: Any) -> Any:
    if not argument.has_default_value():
        return None
    value = argument.default_value
    if isinstance(value, int) and not isinstance(value, bool) and "MemoryFormat" in str(argument.real_type):
        return _FORMATS[value]
    return value


class NoConverter(Exception):
    """Nobody converts this op."""

    def __init__(self, reason: str, near: tuple[str, ...]) -> None:
        self.reason = reason
        self.near = near
        super().__init__(reason)


class Caller:
    """Calls the converters of one graph's nodes.

    Args:
        context: The graph under construction.
        registry: Converters.
    """

    def __init__(self, context: Context, registry: Registry) -> None:
        self.context = context
        self.graph = context.graph
        self.registry = registry
        self._entries: dict[Any, Entry | None] = {}

    def entry(self, target: Any, node: torch.fx.Node) -> Entry:
        """The converter of a target.

        Raises:
            NoConverter: There is none, with the reason and the nearest names.
        """
        try:
            entry = self._entries[target]
        except KeyError:
            entry = self._entries[target] = self.registry.find(target)
        if entry is None:
            near = self.registry.near(target)
            text = "no converter, no decomposition"
            derived = self.registry.why_not_derived(target)
            text += f"; {derived}" if derived else ""
            declined = self._declined(target, node)
            text = f"its formula declines: {declined}" if declined else text
            text += f"; near: {', '.join(near)}" if near else ""
            raise NoConverter(text, near)
        return entry

    def _declined(self, target: Any, node: torch.fx.Node) -> str:
        """Which argument kept the op from being decomposed; empty if it has no formula."""
        formula = self.registry.formulas.get(str(target))
        if formula is None or node.target is not target:
            return ""
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        try:
            with torch.no_grad():
                formula(*args, **kwargs)
        except Declined as error:
            return str(error)
        return ""

    def convert(self, node: torch.fx.Node, entry: Entry, args: Any, kwargs: Any, value: Any) -> Any:
        """Call a converter and check what it returns.

        Args:
            node: The FX node, for messages.
            entry: Its converter.
            args: FX arguments.
            kwargs: FX keyword arguments.
            value: ``meta["val"]`` of the results.

        Raises:
            Refusal: The converter says no.
        """
        parameters = entry.parameters or parameters_of(entry)
        argument = self.context.argument
        if parameters is not None:
            if kwargs and kwargs.get("layout") not in (None, torch.strided):
                raise Refusal(f"layout={kwargs['layout']}; GE knows dense tensors only")
            positional, keywords = parameters.bind(args, kwargs, argument)
        else:
            positional, keywords = [argument(a) for a in args], {k: argument(v) for k, v in kwargs.items()}
        meta = self.context.meta_outputs(value)
        if entry.wants_meta:
            keywords["meta_outputs"] = meta
        if parameters is not None and parameters.choices:
            parameters.check_choices(positional)
        try:
            result = entry.fn(*positional, **keywords)
        except Exception as error:
            failure = self._failure(node, entry, error)
            if parameters is None or not isinstance(failure, LoweringError) or failure.code != "GE2006":
                if failure is error:
                    raise
                raise failure from error
            result = self._once_more(node, entry, parameters, positional, keywords, failure)
        if type(result) is Tensor and type(meta) is TensorSpec:
            if result.dtype is meta.dtype and result.node.graph is self.graph:
                if result.known_shape is None:
                    result.record_shape(meta.size)
                return result
            return self.checked(node, entry, result, meta)
        return self.checked_many(node, entry, result, meta)

    def _once_more(
        self,
        node: torch.fx.Node,
        entry: Entry,
        parameters: Parameters,
        positional: list[Any],
        keywords: dict[str, Any],
        error: LoweringError,
    ) -> Any:
        """Call a converter that failed with tensors where the schema has them.

        Raises:
            Refusal: It fails because of a symbolic number where it needs a constant.
        """
        if self._numbers_to_tensors(parameters, positional):
            try:
                return self.call(node, entry, positional, keywords)
            except LoweringError as second:
                if second.code != "GE2006":
                    raise
                error = second
        symbolic = parameters.symbolic(positional, keywords)
        if not symbolic:
            raise error
        raise Refusal(
            f"argument '{symbolic[0]}' is a symbolic number, and the converter needs its value: it "
            "becomes an attribute of GE's operator; pass a constant, or let torch specialise on it"
        ) from error

    def _numbers_to_tensors(self, parameters: Parameters, positional: list[Any]) -> bool:
        """Make 0-d constants of Python numbers where the schema says Tensor, as vmap and literals leave them.

        A number does not widen the type of its kind, so it takes that of the first tensor of its kind or a higher one.
        Most converters take numbers as they are and round them where eager does; this is for those that do not.
        """
        changed = False
        for i in parameters.tensors:
            value = positional[i]
            if isinstance(value, (bool, int, float, complex)):
                kind = next(k for k, types in enumerate(_KINDS) if isinstance(value, types))
                types = [to_torch(t.dtype) for t in positional if isinstance(t, Tensor)]
                dtype = next((t for t in types if _kind(t) >= kind), torch.tensor(value).dtype)
                positional[i] = constant(self.graph, torch.tensor(value, dtype=dtype))
                changed = True
        return changed

    def call(self, node: torch.fx.Node, entry: Entry, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """What a converter returns.

        Raises:
            Refusal: The converter says no.
        """
        try:
            return entry.fn(*positional, **keywords)
        except Exception as error:
            failure = self._failure(node, entry, error)
            if failure is error:
                raise
            raise failure from error

    def _failure(self, node: torch.fx.Node, entry: Entry, e: Exception) -> Exception:
        """What an exception of a converter means: itself, or one that has it as its cause."""
        if isinstance(e, (Refusal, LoweringError)):
            return e
        meaning: Exception
        if isinstance(e, NotImplementedError):
            meaning = Refusal(str(e) or f"converter at {entry.where} does not implement this form")
        elif isinstance(e, GraphError):
            advice = f"; {e.next}" if e.next else ""
            place = raised_at(entry.fn, entry.where, e)
            meaning = Refusal(f"{e.what} [{e.code}, converter at {place}]{advice}")
        else:
            meaning = LoweringError(
                "GE2006",
                f"the converter of {entry.name} failed on %{node.name}: {type(e).__name__}: {e}\n"
                f"  converter: {raised_at(entry.fn, entry.where, e)}\n  node: {node.format_node()}",
                where=user_frame(node)[0],
                next="repair the converter; for a form it cannot serve let it raise ge_converters.Refusal(reason)",
            )
        meaning.__cause__ = e
        return meaning

    def checked(self, node: torch.fx.Node, entry: Entry, result: Tensor, spec: TensorSpec) -> Tensor:
        if result.node.graph is not self.graph:
            raise self._wrong(node, entry, f"returned {result}, a tensor of another graph")
        if result.dtype is not spec.dtype:
            raise self._wrong(node, entry, f"returned {result.dtype.name}, meta_outputs says {spec.dtype.name}")
        if result.known_shape is None:
            result.record_shape(spec.size)
        return result

    def checked_many(self, node: torch.fx.Node, entry: Entry, result: Any, meta: Any) -> Any:
        if meta is None:
            return None
        if type(meta) is TensorSpec:
            if isinstance(result, (list, tuple)) and len(result) == 1 and isinstance(result[0], Tensor):
                return self.checked(node, entry, result[0], meta)
            got = f"{len(result)} values" if isinstance(result, (list, tuple)) else type(result).__name__
            raise self._wrong(node, entry, f"returned {got}, expected one tensor")
        results = [result] if isinstance(result, Tensor) else result
        if not isinstance(results, (list, tuple)):
            raise self._wrong(node, entry, f"returned {type(result).__name__}, expected {len(meta)} tensors")
        if len(results) != len(meta):
            raise self._wrong(node, entry, f"returned {len(results)} outputs, the node has {len(meta)}")
        return tuple(self._checked_part(node, entry, i, r, m) for i, (r, m) in enumerate(zip(results, meta)))

    def _checked_part(self, node: torch.fx.Node, entry: Entry, i: int, result: Any, meta: Any) -> Any:
        if meta is None:
            return None  # torch has nothing there either
        if result is None:
            return Unproduced(f"output {i} of {entry.name} (%{node.name}) is used, but GE cannot produce it")
        if isinstance(meta, list):
            return self.checked_many(node, entry, result, meta)
        if not isinstance(result, Tensor):
            raise self._wrong(node, entry, f"returned {type(result).__name__} as output {i}, expected a tensor")
        return self.checked(node, entry, result, meta)

    def _wrong(self, node: torch.fx.Node, entry: Entry, what: str) -> LoweringError:
        return LoweringError(
            "GE2007",
            f"the converter of {entry.name} {what} (node %{node.name})\n  converter: {entry.where}",
            where=user_frame(node)[0],
            next="return one GE tensor per output of the op, with the dtype of meta_outputs",
        )


def raised_at(fn: Converter, where: str, error: BaseException) -> str:
    """``file.py:44`` of the converter's own line that led to an exception; where the converter starts if unknown."""
    file = getattr(getattr(inspect.unwrap(fn), "__code__", None), "co_filename", None)
    location, frame = where, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            location = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return location
