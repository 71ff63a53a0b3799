"""What ``torch.profiler`` sees of a graph on the embedded engine: each node by its GE type and name."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ge_graph import DataType, Graph, builder, building
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine


def graph():
    made = Graph("shown")
    with building(made):
        x = builder.data(made, index=0, dtype=DataType.DT_FLOAT, shape=(2, 3))
        made.outputs = [ge.Relu(ge.Add(x, x, node_name="twice"), node_name="positive")]
    return made


def seen(run):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    events = [e for e in found.events() if "/" in e.name and e.name.split("/")[0] in ("Add", "Relu", "If")]
    return [e.name for e in sorted(events, key=lambda e: e.time_range.start)], found


def test_nodes_by_type_and_name_in_order():
    executable = CpuEngine().compile(graph(), {})
    x = torch.tensor([[-1.0, 2, 3], [4, -5, 6]])
    executable.run([x])  # the first run is checked, and is another program
    for run in (lambda: executable.run([x]), lambda: executable.boxed(guarded=True)([x])):
        names, found = seen(run)
        assert names == ["Add/twice", "Relu/positive"]
        inside = [c.name for e in found.events() if e.name == "Add/twice" for c in e.cpu_children]
        assert "aten::add" in inside
    torch.testing.assert_close(executable.run([x])[0], torch.relu(x + x))


def test_a_run_without_a_profiler_has_no_records():
    executable = CpuEngine().compile(graph(), {})
    x = torch.zeros(2, 3)
    executable.run([x])
    seen(lambda: executable.run([x]))
    assert "begin" not in executable.source
    names, _ = seen(lambda: None)
    assert names == []


def test_an_error_leaves_no_open_record():
    made = Graph("refuses")
    with building(made):
        x = builder.data(made, index=0, dtype=DataType.DT_FLOAT, shape=("n",))
        y = builder.data(made, index=1, dtype=DataType.DT_FLOAT, shape=("m",))
        made.outputs = [ge.Add(x, y, node_name="unequal")]
    executable = CpuEngine().compile(made, {"engine.check": "never"})

    def fails():
        for _ in range(2):
            with pytest.raises(EngineError, match="unequal"):
                executable.run([torch.zeros(2), torch.zeros(3)])

    names, _ = seen(fails)
    assert names == ["Add/unequal"] * 2
