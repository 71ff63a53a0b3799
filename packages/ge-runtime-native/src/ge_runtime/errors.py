"""Every error an engine raises, built in one place so that codes, wording and next steps stay consistent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ge_graph.errors import EngineError
from ge_graph.ir import Graph, Node


def origin(node: Node) -> str:
    """Where a node comes from, as one line: the user's source, the FX node and the module path, as far as known."""
    p = node.provenance
    if p is None:
        return f"GE node '{node.name}' ({node.op})"
    parts = [p.source, p.code.strip(), f"FX {p.fx_target} %{p.fx_name}" if p.fx_name else "", p.module]
    known = ", ".join(part for part in parts if part)
    return f"{known} (GE node '{node.name}')" if known else f"GE node '{node.name}' ({node.op})"


# What to do about an error, where that depends on its code alone.
_NEXT: Final = {
    "GE4001": "set TAIR_ENGINE or the configuration to one of these, or install the package that brings the engine",
    "GE4004": "pass one tensor per Data node, in index order, of the declared type and size",
    "GE4005": "compare the operands with the operator's definition; `executable.source` shows the program that ran",
    "GE4006": "correct the kernel or the graph's types",
    "GE4008": "pass override=True to replace it on purpose",
    "GE4010": "run on the embedded engine (TAIR_ENGINE=cpu), or repair the points above",
    "GE4011": "call torch.distributed.init_process_group(), and new_group() in the same order as when the graph was "
    "made, in every process before the graph runs; torchrun starts the processes",
    "GE4012": 'write @kernel("AxpyV2") above the function',
    "GE4013": "compare the node's attributes and constants with the operator's definition",
    "GE4014": "correct the sizes that lead to this result",
    "GE4020": "the text above is CANN's; its error code tells more",
    "GE4021": "one process has one session on one device: compile and run in the same process, start further processes "
    "with the method 'spawn', and compile the graph again after a session has ended",
    "GE4022": "free results that are kept, or run smaller batches",
    "GE4023": "lower the numbers, or leave them out to use all cores",
    "GE4024": "pass weights as inputs, or save the model with tair_export, which puts them into files",
    "GE4026": "run it by the engine's kernels: leave TAIR_CPU_PROGRAM and engine.program out, or set them to aten",
    "GE4025": "trace on the embedded engine (TAIR_ENGINE=cpu), or use config.dump_config on the device",
}


def _error(code: str, what: str, *, where: str = "", next: str = "") -> EngineError:
    return EngineError(code, what, where=where, next=next or _NEXT.get(code, ""))


def no_such_engine(name: str, known: Sequence[str]) -> EngineError:
    """GE4001: the forced name is not an installed engine."""
    return _error("GE4001", f"no engine is called '{name}'; installed engines: {', '.join(known) or 'none'}")


def no_engine(device: str, passed_over: Iterable[tuple[str, str]]) -> EngineError:
    """GE4002: engines are installed but none can serve the device."""
    reasons = list(passed_over)
    listing = "\n".join(f"  {name}: {why}" for name, why in reasons)
    embedded = device == "cpu" and any(name == "cpu" and "'torch'" in reason for name, reason in reasons)
    return _error(
        "GE4002",
        f"no engine can run graphs whose inputs live on '{device}'\n{listing}",
        next="install torch for the embedded engine: pip install 'ge-runtime-native[cpu]'; or fix one of these reasons"
        if embedded
        else "fix one of the reasons above",
    )


def missing_kernels(engine: str, nodes: Sequence[Node]) -> EngineError:
    """GE4003: operators without a kernel, all of them at once."""
    by_op: dict[str, list[Node]] = {}
    for node in nodes:
        by_op.setdefault(node.op, []).append(node)
    lines = [f"the {engine} engine has no kernel for {len(by_op)} operator type(s)"]
    for op, affected in sorted(by_op.items()):
        more = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
        lines.append(f"  {op:<24} {origin(affected[0])}{more}")
    advice = f'register one: `from ge_runtime.cpu import kernel`, then `@kernel("{min(by_op)}")` above a function that '
    advice += "takes the operator's inputs in schema order and its attributes as keywords"
    return _error("GE4003", "\n".join(lines), next=advice)


def bad_input(what: str) -> EngineError:
    """GE4004: what was handed to ``run`` is not what the graph was compiled for."""
    return _error("GE4004", what)


def kernel_failed(node: Node, operands: str, error: BaseException, others: str = "") -> EngineError:
    """GE4005: a kernel raised while the graph ran; ``others`` is what other ranks say of a collective."""
    text = f"{node.op} failed on ({operands}): {type(error).__name__}: {error}{others}"
    return _error("GE4005", text, where=origin(node))


def run_failed(graph: str, error: BaseException) -> EngineError:
    """GE4005: a run failed outside every kernel: while results were handed out, or because memory ran out."""
    advice = "run with fewer or smaller inputs if memory ran out; `run_traced` shows the last node that ran"
    return _error("GE4005", f"{type(error).__name__}: {error}", where=f"graph '{graph}'", next=advice)


def too_large(node: Node, what: str) -> EngineError:
    """GE4014: a result needs more memory than there is; nothing was allocated."""
    return _error("GE4014", f"{node.op}: {what}", where=origin(node))


def plan_failed(node: Node, error: BaseException) -> EngineError:
    """GE4013: a node could not be planned: an attribute or constant has a value that its kernel cannot read."""
    return _error("GE4013", f"{node.op} could not be planned: {type(error).__name__}: {error}", where=origin(node))


def broken_result(node: Node, what: str) -> EngineError:
    """GE4006: a kernel returned something else than the graph declares."""
    return _error("GE4006", f"{node.op}: {what}", where=origin(node))


def bad_option(name: str, value: str, accepted: str) -> EngineError:
    """GE4007: an engine option is unknown or its value is refused."""
    return _error("GE4007", f"engine option {name}={value!r} is refused; accepted: {accepted}")


def registered_twice(op: str, source: str) -> EngineError:
    """GE4008: two kernels for one operator type in one layer."""
    return _error("GE4008", f"a kernel for {op} is registered already ({source})")


def refused(op: str, what: str, advice: str = "") -> EngineError:
    """GE4009: the operator is known but this form of it is not defined or not offered; raised by kernels."""
    return _error("GE4009", f"{op}: {what}; {advice}" if advice else f"{op}: {what}")


def unfit_kernel(node: Node, run: Callable[..., Any], what: str, advice: str) -> EngineError:
    """GE4009: a registered kernel does not fit the operator that it is registered for."""
    code = getattr(run, "__code__", None)
    place = f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    next_step = f"correct the kernel {getattr(run, '__name__', run)}{place}: {advice}"
    return _error("GE4009", f"{node.op}: {what}", where=origin(node), next=next_step)


def no_operator_type(given: object) -> EngineError:
    """GE4012: ``kernel`` was not given the name of an operator type."""
    got = "nothing" if given is None else getattr(given, "__name__", repr(given))
    return _error("GE4012", f"kernel takes the names of GE operators, got {got}")


def located(error: EngineError, node: Node) -> EngineError:
    """The same error with the node's origin."""
    return EngineError(error.code, error.what, where=error.where or origin(node), next=error.next)


def engine_missing(engine: str, reasons: Sequence[str]) -> EngineError:
    """GE4010: the engine for a device was asked for and cannot serve."""
    return _error("GE4010", f"the {engine} engine cannot run here:\n" + "\n".join(f"  {r}" for r in reasons))


def no_group(name: str, why: str, next: str = "") -> EngineError:
    """GE4011: a collective names a process group that this process does not have."""
    return _error("GE4011", f"process group '{name}': {why}", next=next)


def groups_unknown(engine: str, nodes: Sequence[Node]) -> EngineError:
    """GE4011: a graph has collectives whose process groups are not open in this process."""
    places = "".join(f"\n  {n.op} of group '{n.attr('group')}': {origin(n)}" for n in nodes)
    return _error(
        "GE4011",
        f"engine {engine} has no process groups for these collectives:{places}",
        next="run the graph inside `with model.opened_groups():`, or with tair-run, in as many processes as saved it; "
        "for groups of torch.distributed use engine torch_npu (NPU tensors as inputs, or TAIR_ENGINE=torch_npu)",
    )


def device_refused(text: str, graph: Graph | None, others: str = "") -> EngineError:
    """GE4020: GE or the device's runtime refused; their words, with the lines of the nodes that they name.

    ``others`` is what other ranks say of a collective.
    """
    if graph is None:
        return _error("GE4020", text)
    text, ours, rest = text.partition("\nNext: ")
    where = "; ".join(map(origin, nodes_in(text, graph)[:5]))
    text += others
    what = text if graph.name in text else f"graph '{graph.name}': {text}"
    if ours:  # an error of ours from under GE has all of it
        return EngineError("GE4020", what + ours + rest)
    return _error("GE4020", what, where=where)


def nodes_in(text: str, graph: Graph) -> list[Node]:
    """Nodes whose names stand in a text as whole words, in the order of the text."""
    by_name = {n.name: n for n in graph.nodes}
    names = dict.fromkeys(w for w in re.findall(r"[A-Za-z0-9_.\-/]+", text) if w in by_name)
    trimmed = (w.strip(".-/") for w in re.findall(r"[A-Za-z0-9_.\-/]+", text))
    names.update(dict.fromkeys(w for w in trimmed if w in by_name))
    return [by_name[name] for name in names]


def no_session(what: str) -> EngineError:
    """GE4021: there is no session to run in."""
    return _error("GE4021", what)


def no_memory(what: str) -> EngineError:
    """GE4022: the device has no memory left."""
    return _error("GE4022", what)


def too_many_cores(chip: str, places: Sequence[str]) -> EngineError:
    """GE4023: more cores are asked for than the chip has."""
    lines = [f"more cores are asked for than {chip or 'the chip'} has", *(f"  {p}" for p in places)]
    return _error("GE4023", "\n".join(lines))


def graph_too_large(name: str, size: int) -> EngineError:
    """GE4024: GE takes graphs up to two GiB; constants above that must lie in files."""
    return _error("GE4024", f"graph '{name}' has {size:,} bytes with its constants, GE takes 2,147,483,647")


def not_traceable(engine: str) -> EngineError:
    """GE4025: the engine runs a graph as a whole."""
    return _error("GE4025", f"the {engine} engine runs a graph as a whole and cannot show its nodes one by one")


def outside_inductor(nodes: Sequence[Node]) -> EngineError:
    """GE4026: nodes that do something which others see; Inductor would do it once, while the graph is traced."""
    lines = [f"{len(nodes)} node(s) do more than calculate, which torch's Inductor cannot repeat"]
    return _error("GE4026", "\n".join([*lines, *(f"  {n.op}: {origin(n)}" for n in nodes)]))


def not_traced(error: EngineError) -> EngineError:
    """GE4026: a kernel needs to know elements, or does what fake tensors cannot."""
    what = error.what.split("\n")[0]  # what follows are torch's hints to its own developers
    return _error("GE4026", f"torch's Inductor cannot have this graph: {what}", where=error.where)


def inductor_failed(graph: str, error: BaseException) -> EngineError:
    """GE4026: Inductor, or the compiler that it calls, failed."""
    return _error("GE4026", f"torch's Inductor did not compile graph '{graph}': {type(error).__name__}: {error}")


def unfit_for_inductor(graph: str, what: str) -> EngineError:
    """GE4026: an input, or what a kernel does, that compiled code would treat in another way."""
    return _error("GE4026", f"graph '{graph}' cannot run through torch's Inductor: {what}")
