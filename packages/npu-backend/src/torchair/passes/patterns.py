"""Fusion rules: the user's, by ``torchair.register_replacement``, and those for operators of torch_npu.

torch's own pattern matcher does the work. It is loaded with the first rule, not before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ge_graph.errors import ConfigError
from torchair.oplib.torch_ops import name_of
from torchair.passes.arguments import canonical, spelled
from torchair.passes.base import FxPass, output_values, place_of, value_of
from torchair.passes.custom import refresh
from torchair.passes.noops import RemoveNoops


def fwd_only(fn: Callable[..., Any], args: Any, **ignored: Any) -> torch.fx.GraphModule:
    """Trace a function of a rule as the models are traced: same decompositions, operators that do nothing removed."""
    from ge_converters.base.torch_compat import trace_pattern
    from ge_converters.decompose.table import decomposition_table

    gm = trace_pattern(fn, args, decomposition_table({}))
    RemoveNoops().run(gm)
    gm.recompile()
    return gm


def _return_true(match: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Registered:
    """A rule of a user's.

    Attributes:
        key: What a duplicate has too.
        text: The graphs of both functions, and the examples that they were traced with.
        functions: All that the rule calls.
    """

    name: str
    key: str
    text: str
    functions: tuple[Any, ...]


@dataclass(slots=True)
class _Rules:
    """The rules known so far; ``matcher`` is torch's PatternMatcherPass."""

    matcher: Any = None
    registered: list[Registered] = field(default_factory=list)
    scope_of: dict[torch.fx.Node, tuple[torch.fx.Node, ...]] = field(default_factory=dict)

    def add(self, name: str, extra_check: Callable[[Any], bool], **rule: Any) -> None:
        from ge_converters.base.torch_compat import pattern_matcher

        module = pattern_matcher()
        origin = (name, place_of(rule["search_fn"]))
        if self.matcher is None:
            self.matcher = module.PatternMatcherPass(pass_name="torchair_register_replacement")
        known = inspect.signature(module.register_replacement).parameters
        module.register_replacement(
            pass_dicts=self.matcher,
            extra_check=lambda match: (
                self._one_scope(match) and _says_all(match) and bool(extra_check(match)) and _marked(match, origin)
            ),
            **{key: value for key, value in rule.items() if key in known},
        )

    def _one_scope(self, match: Any) -> bool:
        """A match across the edge of a scope is none: its nodes are to run on different streams or limits."""
        return len({self.scope_of.get(node, ()) for node in match.nodes}) < 2


RULES: Final = _Rules()


def _marked(match: Any, origin: tuple[str, str]) -> bool:
    """Leave name and place of the rule in what it replaces, for whoever looks at what it did."""
    for node in match.nodes:
        node.meta["torchair_rule"] = origin
    return True


def _says_all(match: Any) -> bool:
    """Whether no node of a match carries an argument that its place in the pattern does not have.

    torch's matcher looks at the keywords of the pattern only: to it ``gelu(x, approximate="tanh")`` is ``gelu(x)``.
    """
    places: dict[torch.fx.Node, list[Any]] = {}
    for place, node in match.ctx.pattern_to_node.items():
        if node is not None and hasattr(place, "kwargs"):
            places.setdefault(node, []).append(place)
    for node in match.nodes:
        # of a part that a pattern repeats, the matcher keeps the places but not which node stands in which
        known = places.get(node) or [p for p, target in match.targets.items() if target is node.target]
        exact = [p for p in known if hasattr(p, "kwargs")]
        if exact and not any(_covers(place, node) for place in exact):
            return False
    return True


def _covers(place: Any, node: torch.fx.Node) -> bool:
    """Whether a place of a pattern has each argument of a node that is not the default."""
    named = spelled(node.target, node.args, node.kwargs)
    return named.keys() <= spelled(node.target, place.args, place.kwargs).keys()


def _shorten(pattern: Any) -> None:
    """Leave out of a pattern object what is the default, as it is left out of graphs."""
    for inner in getattr(pattern, "outputs", ()):
        _shorten(inner)
    if not hasattr(pattern, "kwargs"):
        return
    args, kwargs = canonical(pattern.fns[0], pattern.args, pattern.kwargs)
    if len(args) + len(kwargs) < len(pattern.args) + len(pattern.kwargs):
        pattern.args, pattern.kwargs = args, kwargs
        pattern.flat_args_kwargs = pattern.flatten(args, kwargs)
    for inner in pattern.flat_args_kwargs[0]:
        _shorten(inner)


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., torch.fx.GraphModule] = fwd_only,
    extra_check: Callable[[Any], bool] = _return_true,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Register a fusion rule for all graphs that are compiled from now on.

    Args:
        search_fn: What it computes, as traced, is the pattern.
        replace_fn: What takes its place; same parameters.
        example_inputs: Inputs for tracing both; their sizes and what they hold do not matter, and nothing is computed.
        trace_fn: How to trace; the default traces a forward graph with this backend's decompositions.
        extra_check: Called with the match (``torch._inductor.pattern_matcher.Match``); False refuses it.
        search_fn_pattern: A pattern object in place of tracing ``search_fn``.
        scalar_workaround: Numbers for scalar parameters that tracing would burn in.
        skip_duplicates: A pattern that is registered already is skipped instead of refused.

    Errors: ConfigError GE1050 for wrong arguments, GE1051 if a function cannot be traced, GE1052 if the results of the
        two differ in number, dtype or rank, GE1053 for a duplicate.

    Example:
        >>> import torch, torchair
        >>> def search(x, y):
        ...     return torch.relu(torch.add(x, y))
        >>> def replace(x, y):
        ...     return torch.clamp_min(torch.add(x, y), 0)
        >>> torchair.register_replacement(search, replace, [torch.ones(2), torch.ones(2)])  # doctest: +SKIP
    """
    from ge_converters.base.torch_compat import without_data

    examples = list(example_inputs) if isinstance(example_inputs, Iterable) else None
    name = getattr(search_fn, "__qualname__", type(search_fn).__name__)
    _check_arguments(name, search_fn, replace_fn, examples, trace_fn, extra_check)
    if trace_fn is _torch_fwd_only():
        trace_fn = fwd_only
    scalars = dict(scalar_workaround or {})
    examples = without_data(examples or [])  # a device need not be asked, and a rule holds none of its memory
    graphs, given = _compared(name, search_fn, replace_fn, examples, trace_fn, scalars)
    key = str(search_fn_pattern) if search_fn_pattern is not None else f"{graphs[0]} {given}"
    if any(r.key == key for r in RULES.registered):
        if skip_duplicates:
            return
        raise ConfigError(
            "GE1053",
            f"register_replacement: the pattern of '{name}' is registered already",
            where=place_of(search_fn),
            next="register a rule once, or pass skip_duplicates=True",
        )
    if search_fn_pattern is not None:
        _shorten(search_fn_pattern)
    RULES.add(
        name,
        extra_check,
        search_fn=search_fn,
        replace_fn=replace_fn,
        example_inputs=examples,
        trace_fn=trace_fn,
        scalar_workaround=scalars,
        search_fn_pattern=search_fn_pattern,
        skip_duplicates=True,
    )
    functions = (search_fn, replace_fn, trace_fn, extra_check, search_fn_pattern)
    RULES.registered.append(Registered(name, key, " ".join((*graphs, given)), functions))


def _torch_fwd_only() -> Any:
    import sys

    module = sys.modules.get("torch._inductor.pattern_matcher")
    return getattr(module, "fwd_only", _return_true)


def _check_arguments(
    name: str, search_fn: Any, replace_fn: Any, examples: list[Any] | None, trace_fn: Any, extra_check: Any
) -> None:
    functions = {"search_fn": search_fn, "replace_fn": replace_fn, "trace_fn": trace_fn, "extra_check": extra_check}
    wrong = [f"{k} is not a function: {v!r}" for k, v in functions.items() if not callable(v)]
    if examples is None:
        wrong.append("example_inputs is not iterable")
    if not wrong:
        names, others = (list(inspect.signature(f).parameters) for f in (search_fn, replace_fn))
        if names != others:
            wrong.append(f"search_fn takes {names}, replace_fn takes {others}")
    if wrong:
        raise ConfigError(
            "GE1050",
            f"register_replacement of '{name}': " + "; ".join(wrong),
            where=place_of(search_fn),
            next="give two functions of the same parameters, and inputs for them",
        )


def _compared(
    name: str, search_fn: Any, replace_fn: Any, examples: list[Any], trace_fn: Any, scalars: dict[str, Any]
) -> tuple[list[str], str]:
    """Trace both functions and compare what they return; texts of both graphs, and of what they were traced with."""
    args = _with_scalars(search_fn, examples, scalars)
    results, graphs = [], []
    for label, fn in (("search_fn", search_fn), ("replace_fn", replace_fn)):
        try:
            gm = trace_fn(fn, args)
        except Exception as error:
            raise ConfigError(
                "GE1051",
                f"register_replacement of '{name}': {label} cannot be traced with the example inputs: "
                f"{type(error).__name__}: {error}",
                where=place_of(fn),
                next="give example inputs that the function takes; operators need a fake kernel to enter a graph",
            ) from error
        graphs.append(str(gm.graph))
        results.append([_described(value_of(v)) for v in torch.fx.node.map_arg(output_values(gm.graph), lambda n: n)])
    if results[0] != results[1]:
        raise ConfigError(
            "GE1052",
            f"register_replacement of '{name}': search_fn returns [{', '.join(results[0])}], "
            f"replace_fn returns [{', '.join(results[1])}]",
            where=place_of(replace_fn),
            next="return as many tensors of the same dtype and rank, with a cast at the end if need be",
        )
    return graphs, f"{sorted(scalars.items())} {[_described(a) for a in args]}"


def _with_scalars(fn: Any, examples: list[Any], scalars: dict[str, Any]) -> list[Any]:
    """Example inputs with the scalars in the places of their parameters, as torch's matcher puts them."""
    if not scalars:
        return examples
    rest = iter(examples)
    return [scalars[n] if n in scalars else next(rest) for n in inspect.signature(fn).parameters]


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of rank {value.dim()}"
    return type(value).__name__


class FusePatterns(FxPass):
    """Rules of ``torchair.register_replacement``, and those for fused operators of torch_npu if that is there.

    A match needs its inner values for itself: if anybody else reads one, nothing is replaced. Nodes of different scopes
    are never fused.

    A fused operator is one launch; after RemoveNoops, so that casts and clones do not hide a pattern.
    """

    option = "pattern_fusion_pass"

    def run(self, gm: torch.fx.GraphModule) -> int:
        from torchair.passes import npu_patterns

        npu_patterns.register(RULES, fwd_only)
        if RULES.matcher is None:
            return 0
        before = {n: (n.target, n.args, n.kwargs) for n in gm.graph.nodes}
        RULES.scope_of = _scopes(gm.graph)
        try:
            edits = int(RULES.matcher.apply(gm.graph))
        finally:
            RULES.scope_of = {}
        if edits:
            refresh(gm, before, _failed)
            gm.recompile()
        return edits


def _failed(code: str, why: str, cause: BaseException | None = None) -> ConfigError:
    made = ConfigError("GE1054", f"a rule of register_replacement left a broken graph: {why}", next="repair replace_fn")
    made.__cause__ = cause
    return made


def _scopes(graph: torch.fx.Graph) -> dict[torch.fx.Node, tuple[torch.fx.Node, ...]]:
    """Each node's open scopes."""
    scopes: dict[torch.fx.Node, tuple[torch.fx.Node, ...]] = {}
    opened: list[torch.fx.Node] = []
    for node in graph.nodes:
        name = name_of(node.target)
        if name == "scope_enter":
            opened.append(node)
        elif name == "scope_exit" and opened:
            opened.pop()
        else:
            scopes[node] = tuple(opened)
    return scopes
