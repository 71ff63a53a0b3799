"""Digests of the GE graphs of many programs, to show that a change which only moves code changes no graph.

python -m labs.replay before.txt                 write the digests
python -m labs.replay after.txt --against before.txt     and compare: every line that differs is printed

A line is a name and the digest of the GE bytes of every stage: the models of ``tools.models`` (fixed and symbolic
sizes, and a training step), the declared call forms of every converter, and one float32 sample of operators of OpInfo.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import torchair
from ge_converters import lower
from ge_converters.report import smoke
from ge_graph import Graph, passes, serde
from tair_debug.observer import GraphId, Silent, observing
from tools import models


class _Digests(Silent):
    """The digests of the GE graphs of all stages, in the order they are made."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        """One more."""
        self.found.append(digest(graph))


def digest(graph: Graph) -> str:
    """Of the bytes, the number in the graph's name aside, which counts what was compiled before."""
    name, graph.name = graph.name, "graph"
    try:
        return hashlib.sha256(serde.to_bytes(graph, provenance=False)).hexdigest()[:12]
    finally:
        graph.name = name


def _line(name: str, work: Callable[[list[str]], object]) -> str:
    digests: list[str] = []
    try:
        work(digests)
    except Exception as e:  # noqa: BLE001  (an error is part of what must not change)
        text = re.sub(r"\S*\.py:\d+|0x[0-9a-f]+|line \d+", "…", f"{type(e).__name__}: {e}")
        digests.append(f"error {hashlib.sha256(text.encode()).hexdigest()[:12]}")
    return f"{name}: {' '.join(digests)}"


def _compiled(call: Callable[..., Any], args: Any, kwargs: Any, *, dynamic: bool = False, train: bool = False) -> Any:
    def work(digests: list[str]) -> None:
        torch._dynamo.reset()
        observer = _Digests()
        try:
            with observing(observer), torch.enable_grad() if train else torch.no_grad():
                result = torch.compile(call, backend=torchair.get_npu_backend(), dynamic=dynamic)(*args, **kwargs)
                if train:
                    leaves = torch.utils._pytree.tree_leaves(result)
                    sum(t.sum() for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad).backward()
        finally:
            digests += observer.found

    return work


def of_models() -> Iterator[str]:
    for name, make in models.ZOO.items():
        for dynamic, train in ((False, False), (True, False), (False, True)):
            torch.manual_seed(0)
            case = make("tiny")
            kind = "training" if train else "dynamic" if dynamic else "static"
            yield _line(f"model {name} {kind}", _compiled(case.model, case.inputs, {}, dynamic=dynamic, train=train))


def of_forms() -> Iterator[str]:
    for case in smoke.cases():
        for dynamic in (False, True):

            def work(digests: list[str], case: Any = case, dynamic: bool = dynamic) -> None:
                args, kwargs = case.support.make()
                graph = lower(smoke.trace(case, args, kwargs, dynamic=dynamic)).graph
                digests.append(digest(graph))
                passes.run(graph)
                digests.append(digest(graph))

            yield _line(f"form {case.name} {'dynamic' if dynamic else 'static'}", work)


def of_opinfo(every: int) -> Iterator[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[::every]:
        if op.name.startswith("jiterator") or not op.supports_dtype(torch.float32, "cpu"):
            continue
        torch.manual_seed(0)
        sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)), None)
        if sample is not None:
            name = f"opinfo {op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"

            def call(*args: Any, op: Any = op, **kwargs: Any) -> Any:
                return op.op(*args, **kwargs)

            yield _line(name, _compiled(call, (sample.input, *sample.args), sample.kwargs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--against", type=Path, help="digests of an earlier run")
    parser.add_argument("--every", type=int, default=4, help="take every so-manieth operator of OpInfo")
    options = parser.parse_args()
    lines: list[str] = []
    for part in (of_models(), of_forms(), of_opinfo(options.every)):
        lines += part
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.against:
        before = set(options.against.read_text(encoding="utf-8").splitlines())
        changed = sorted(before.symmetric_difference(lines))
        print(f"{len(lines)} programs, {len(changed)} lines differ")
        sys.exit("\n".join(changed) if changed else None)


if __name__ == "__main__":
    main()
