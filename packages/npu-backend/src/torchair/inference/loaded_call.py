"""A call that comes from the cache: arguments to the engine and results to the caller, without dynamo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ge_graph.escape import line
from torchair.artifact import stored_graph, traced_call
from torchair.artifact.input_rules import InputRule, broken, tested
from torchair.artifact.stored_graph import Stored
from torchair.artifact.traced_call import PathRoots
from torchair.compiler.gears import Gears
from torchair.compiler.pipeline import Job, Pipeline
from torchair.inference import reads
from torchair.inference.place import CallPlace


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
        place: CallPlace,
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
        self._conditions = tested(contract.found())
        self._rules = [InputRule.read(each) for each in record["inputs"]]
        if len(self._rules) != len(self._paths):
            raise ValueError("rules of inputs")
        if changed := reads.changed(record["reads"]):
            raise stored_graph.stale(manifest, f"{changed}, which tracing read")
        self._holders = [self._holder(p) for p in self._paths]
        self._check_weights(manifest)
        pipeline = Pipeline(Job(place.config))
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
        if why := broken(self._rules, self._conditions, flat, sizes, self._shown):
            return self._retrace(args, kwargs, why)
        if self._gears is not None:
            self._gears.check(flat)
        outs = self._engine_call([flat[i] for i in self._order])

        def given(path: traced_call.Path) -> Any:
            # what the caller has given may be anything; elsewhere only what a graph can compute with is taken
            find = self._names.value if path[0][0] == "local" else self._names.input
            return find(path, local)

        return self._build(outs[: self._count], given)


def _read_gears(content: Any, inputs: int) -> Gears | None:
    if content is None:
        return None
    places = [(int(at), int(dim), str(name)) for at, dim, name in content[0]]
    combinations = [tuple(int(s) for s in sizes) for sizes in content[1]]
    if any(not 0 <= at < inputs for at, _, _ in places) or any(len(c) != len(places) for c in combinations):
        raise ValueError("gears")
    return Gears(places, combinations)
