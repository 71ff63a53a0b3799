"""A call that comes from the cache: arguments to the engine and results to the caller, without dynamo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ge_graph.escape import line
from tair_export.guards import Expr, check, function, holds, text
from torchair.artifact import stored_graph, traced_call
from torchair.artifact.plain import plain, unplain
from torchair.artifact.size_conditions import listed
from torchair.artifact.stored_graph import Stored
from torchair.artifact.traced_call import PathRoots
from torchair.compiler.gears import Gears
from torchair.compiler.pipeline import Pipeline, new_number
from torchair.inference import reads
from torchair.inference.place import Place


class LoadedCall:
    """A call from the cache.

    Args:
        retrace: Called with arguments and a reason if a call is not the recorded one.

    Raises:
        ArchiveError: GE5050 if it does not fit the program.
        Exception: Any other if the record is none.
    """

    def __init__(
        self,
        place: Place,
        manifest: Path,
        stored: Stored,
        names: PathRoots,
        retrace: Callable[[tuple[Any, ...], dict[str, Any], str], Any],
    ) -> None:
        self._place, self._names, self._retrace = place, names, retrace
        self._manifest = manifest
        contract, record = stored.contract, stored.more["call"]
        self._paths = [traced_call.read_path(p) for p in record["paths"]]
        if contract.order is None or len(self._paths) != contract.inputs:
            raise ValueError("the inputs are not those of the graph")
        self._order, self._count = contract.order, contract.outputs
        self._build = traced_call.builder(record["result"], contract.outputs, names)
        self._gears = _read_gears(record["gears"], len(self._paths))
        self._conditions = [(c, function(c)) for c in contract.found()]
        self._rules = [InputRule.read(each) for each in record["inputs"]]
        if len(self._rules) != len(self._paths):
            raise ValueError("rules of inputs")
        if changed := reads.changed(record["reads"]):
            raise stored_graph.stale(manifest, f"{changed}, which tracing read")
        self._holders = [self._holder(p) for p in self._paths]
        self._check_weights(manifest)
        pipeline = Pipeline(place.config, "forward", new_number())
        self._engine_call = pipeline.load_stored(stored, contract.device)

    def _holder(self, path: traced_call.Path) -> tuple[Any, Any] | None:
        """The dict that holds a parameter or buffer of the module, found once, and its key there."""
        if not self._place.bound or len(path) < 3 or path[-1][0] != "item":
            return None
        first = self._place.function.__code__.co_varnames[0]
        if path[0] != ["local", first] or path[-2] not in (["attr", "_parameters"], ["attr", "_buffers"]):
            return None
        try:
            holder = self._names.value(path[:-1], {first: self._place.bound[0]})
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise stored_graph.stale(self._manifest, f"the module has no {path[-1][1]!r}: {error}") from None
        return (holder, path[-1][1]) if isinstance(holder, dict) else None

    def _check_weights(self, where: Path) -> None:
        for at, (holder, rule) in enumerate(zip(self._holders, self._rules)):
            if holder is None:
                continue
            value = holder[0].get(holder[1])
            if why := rule.misfit(value, {}):
                raise stored_graph.stale(where, f"parameter {self._shown(at)} {why}")

    def _shown(self, at: int) -> str:
        parts = [str(key) for kind, key in self._paths[at] if key not in ("_modules", "_parameters", "_buffers")]
        return line(".".join(parts[1:] if len(parts) > 1 else parts), 200)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        local = self._names.locals_of(args, kwargs)

        sizes: dict[str, int] = {}
        flat = []
        for at, (holder, path) in enumerate(zip(self._holders, self._paths)):
            if holder is not None:
                flat.append(holder[0][holder[1]])
                continue
            try:
                value = self._names.input(path, local)
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                return self._retrace(args, kwargs, f"the call has no {self._shown(at)}: {error}")
            if why := self._rules[at].misfit(value, sizes):
                return self._retrace(args, kwargs, f"input {self._shown(at)} {why}")
            flat.append(value)
        if why := self._broken(flat, sizes):
            return self._retrace(args, kwargs, why)
        if self._gears is not None:
            self._gears.check(flat)
        outs = self._engine_call([flat[i] for i in self._order])

        def given(path: traced_call.Path) -> Any:
            # what the caller has given may be anything; elsewhere only what a graph can compute with is taken
            find = self._names.value if path[0][0] == "local" else self._names.input
            return find(path, local)

        return self._build(outs[: self._count], given)

    def _broken(self, flat: Sequence[Any], sizes: Mapping[str, int]) -> str:
        """What of the conditions does not hold for the sizes of a call; empty if all do."""
        for at, rule in enumerate(self._rules):
            if rule.derived and (why := rule.underived(flat[at], sizes)):
                return f"input {self._shown(at)} {why}"
        for condition, test in self._conditions:
            if not holds(test, sizes):
                return f"the sizes break the condition {text(condition)}, under which the graph was traced"
        return ""


def _read_gears(content: Any, inputs: int) -> Gears | None:
    if content is None:
        return None
    places = [(int(at), int(dim), str(name)) for at, dim, name in content[0]]
    combinations = [tuple(int(s) for s in sizes) for sizes in content[1]]
    if any(not 0 <= at < inputs for at, _, _ in places) or any(len(c) != len(places) for c in combinations):
        raise ValueError("gears")
    return Gears(places, combinations)


Pattern = tuple["Expr | None", ...]


@dataclass(frozen=True, slots=True)
class InputRule:
    """What an input of dynamo's graph has to be.

    Attributes:
        dtype: Of a tensor; None for a number.
        size: Of a tensor: a number, a symbol or an expression for each dimension; a number's own as the only entry,
            None if it has none.
        stride: Of a tensor, for the symbols that are nowhere else; None for what was not symbolic.
        derived: Whether ``size`` has expressions.
    """

    dtype: torch.dtype | None
    size: Pattern
    stride: Pattern
    derived: bool

    @classmethod
    def of(cls, value: Any) -> list[Any]:
        """The rule of a fake value in dynamo's graph, as JSON.

        Raises:
            Unstorable: A size has no form as data.
        """
        if not isinstance(value, torch.Tensor):
            return [None, [listed(value.node.expr) if isinstance(value, torch.SymInt) else None], []]
        stride = value.stride() if value.layout is torch.strided else ()
        symbolic = [listed(s.node.expr) if isinstance(s, torch.SymInt) else None for s in stride]
        sizes = [listed(d.node.expr) if isinstance(d, torch.SymInt) else d for d in value.shape]
        return [plain(value.dtype), sizes, symbolic]

    @classmethod
    def read(cls, content: Any) -> InputRule:
        """The rule from a file.

        Raises:
            ValueError, TypeError, KeyError: It is none.
        """
        dtype, size, stride = content
        for each in (*size, *stride):
            if each is not None:
                check(each)
        found = unplain(dtype)
        if not isinstance(found, torch.dtype) and (found is not None or len(size) != 1):
            raise ValueError("type of an input")
        return cls(found, tuple(size), tuple(stride), any(isinstance(d, list) for d in size))

    def misfit(self, value: Any, sizes: dict[str, int]) -> str:
        """Why a value is not what was traced, empty if it is.

        Args:
            sizes: Symbols seen in this call so far, with their values; added to.
        """
        if self.dtype is None:
            if not isinstance(value, (int, float)):
                return f"is a {type(value).__name__}, a number was traced"
            wanted = self.size[0]
            fits = not isinstance(wanted, str) or (type(value) is int and sizes.setdefault(wanted, value) == value)
            return "" if fits else f"is {value}, {sizes.get(str(wanted))} was traced"
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, a tensor was traced"
        if value.dtype is not self.dtype or value.dim() != len(self.size):
            return f"is {value.dtype} of {value.dim()} dimensions, traced were {self.dtype} of {len(self.size)}"
        for dim, (wanted, got) in enumerate(zip(self.size, value.shape)):
            if isinstance(wanted, list):
                continue
            expected = sizes.setdefault(wanted, got) if isinstance(wanted, str) else wanted
            if got != expected:
                return f"has size {got} in dimension {dim}, {expected} was traced"
            if isinstance(wanted, str) and got < 2:
                return f"has size {got} in dimension {dim}; sizes 0 and 1 are traced for themselves"
        for wanted, got in zip(self.stride, value.stride()):
            if isinstance(wanted, str) and wanted not in sizes:
                sizes[wanted] = got
        return ""

    def underived(self, value: Any, sizes: Mapping[str, int]) -> str:
        """Why sizes that are expressions of others are not what they should be, empty if they are."""
        shape = value.shape if isinstance(value, torch.Tensor) else (value,)
        for dim, (wanted, got) in enumerate(zip(self.size, shape)):
            if isinstance(wanted, list) and not holds(function(["==", wanted, int(got)]), sizes):
                return f"has size {got} in dimension {dim}, {text(wanted)} was traced"
        return ""
