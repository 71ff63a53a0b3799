"""A call that comes from the cache: arguments to the engine and results to the caller, without dynamo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ge_graph.errors import ArchiveError
from ge_graph.escape import line
from torchair.artifact import stored_graph, traced_call
from torchair.artifact.stored_graph import Stored
from torchair.artifact.traced_call import PathRoots
from torchair.compiler.gears import Gears
from torchair.compiler.pipeline import Pipeline, new_number
from torchair.inference.place import Place


class LoadedCall:
    """A call from the cache.

    Args:
        retrace: Called with arguments and a reason if a call is not the recorded one.

    Raises:
        ArchiveError: GE5021 if the record is not a record, GE5050 if it does not fit the program.
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
        try:
            record = stored.more["call"]
            self._paths = [traced_call.read_path(p) for p in record["paths"]]
            self._order = [record["order"][i] for i in range(len(record["order"]))]
            if not all(type(i) is int and 0 <= i < len(self._paths) for i in self._order):
                raise ValueError("order")
            if len(self._order) != stored.lowered.placeholders:
                raise ValueError(f"{len(self._order)} inputs for {stored.lowered.placeholders}")
            self._build = traced_call.builder(record["result"], int(record["outputs"]))
            self._count = int(record["outputs"])
            self._gears = _read_gears(record["gears"], len(self._paths))
            device = str(stored.more["device"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ArchiveError(
                "GE5021", f"the record of the call cannot be read: {str(error)[:200]}", where=str(manifest),
                next="delete the entry; it is made anew",
            ) from None  # fmt: skip
        self._holders = [self._holder(p) for p in self._paths]
        self._rules = _rules(stored, self._order)
        self._check_weights(manifest)
        pipeline = Pipeline(place.config, "forward", new_number())
        self._engine_call = pipeline.load_stored(stored, device)

    def _holder(self, path: traced_call.Path) -> tuple[Any, Any] | None:
        """The dict that holds a parameter or buffer of the module, found once, and its key there."""
        if not self._place.bound or len(path) < 3 or path[-1][0] != "item":
            return None
        first = self._place.function.__code__.co_varnames[0]
        if path[0] != ["local", first] or path[-2] not in (["attr", "_parameters"], ["attr", "_buffers"]):
            return None
        try:
            holder = self._names.value(path[:-1], {first: self._place.bound[0]})
        except (LookupError, AttributeError, TypeError) as error:
            raise stored_graph.stale(self._manifest, f"the module has no {path[-1][1]!r}: {error}") from None
        return (holder, path[-1][1]) if isinstance(holder, dict) else None

    def _check_weights(self, where: Path) -> None:
        for at, (holder, rule) in enumerate(zip(self._holders, self._rules)):
            if holder is None:
                continue
            value = holder[0].get(holder[1])
            if rule is not None and (why := rule.misfit(value, {})):
                raise stored_graph.stale(where, f"parameter {self._shown(at)} {why}")

    def _shown(self, at: int) -> str:
        parts = [str(key) for kind, key in self._paths[at] if key not in ("_modules", "_parameters", "_buffers")]
        return line(".".join(parts[1:] if len(parts) > 1 else parts), 200)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        local = self._names.locals_of(args, kwargs)

        def find_path(path: traced_call.Path) -> Any:
            return self._names.value(path, local)

        sizes: dict[str, int] = {}
        flat = []
        for at, (holder, path) in enumerate(zip(self._holders, self._paths)):
            if holder is not None:
                flat.append(holder[0][holder[1]])
                continue
            try:
                value = find_path(path)
            except (LookupError, AttributeError, TypeError) as error:
                return self._retrace(args, kwargs, f"the call has no {self._shown(at)}: {error}")
            rule = self._rules[at]
            if rule is not None and (why := rule.misfit(value, sizes)):
                return self._retrace(args, kwargs, f"input {self._shown(at)} {why}")
            flat.append(value)
        if self._gears is not None:
            self._gears.check(flat)
        outs = self._engine_call([flat[i] for i in self._order])
        return self._build(outs[: self._count], find_path)


def _read_gears(content: Any, inputs: int) -> Gears | None:
    if content is None:
        return None
    places = [(int(at), int(dim), str(name)) for at, dim, name in content[0]]
    combinations = [tuple(int(s) for s in sizes) for sizes in content[1]]
    if any(not 0 <= at < inputs for at, _, _ in places) or any(len(c) != len(places) for c in combinations):
        raise ValueError("gears")
    return Gears(places, combinations)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What an input of the graph has to be."""

    dtype: torch.dtype | None
    size: tuple[int | str, ...]
    fixed: Mapping[str, int]

    def misfit(self, value: Any, sizes: dict[str, int]) -> str:
        """Why a value is not what was traced, empty if it is.

        Args:
            sizes: Symbols seen in this call so far, with their values; added to.
        """
        if self.dtype is None:
            return "" if isinstance(value, (int, float)) else f"is a {type(value).__name__}, a number was traced"
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, a tensor was traced"
        if value.dtype is not self.dtype or value.dim() != len(self.size):
            return f"is {value.dtype} of {value.dim()} dimensions, traced were {self.dtype} of {len(self.size)}"
        for dim, (wanted, got) in enumerate(zip(self.size, value.shape)):
            expected = self.fixed.get(wanted, sizes.setdefault(wanted, got)) if isinstance(wanted, str) else wanted
            if isinstance(wanted, str) and not wanted.isidentifier():
                continue  # an expression of other sizes
            if got != expected:
                return f"has size {got} in dimension {dim}, {expected} was traced"
            if isinstance(wanted, str) and got < 2 and wanted not in self.fixed:
                return f"has size {got} in dimension {dim}; sizes 0 and 1 are traced for themselves"
        return ""


def _rules(stored: Stored, order: Sequence[int]) -> list[_Rule | None]:
    """A rule for each of dynamo's inputs that the graph reads."""
    from ge_converters.base.dtypes import to_torch

    rules: list[_Rule | None] = [None] * (max(order, default=-1) + 1)
    for binding in stored.lowered.inputs:
        dtype = to_torch(binding.spec.dtype) if binding.kind == "tensor" else None
        rules[order[binding.fx_index]] = _Rule(dtype, binding.spec.size, stored.numbers())
    return rules


# --- looking at entries ----------------------------------------------------------------------------------------------
