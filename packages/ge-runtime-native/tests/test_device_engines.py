"""The engines for a device on the CANN emulator: the conformance suite, and what happens to bad input.

Each test is a program of its own, because a process has one session and the libraries are found when it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

launch = pytest.importorskip("ge_emulator.launch", reason="the emulator is not installed")

pytestmark = pytest.mark.slow

# name of a case or rule: why the engine differs. Strict: what passes must leave the table.
KNOWN: dict[str, dict[str, str]] = {"cann": {}, "torch_npu": {}}


@pytest.fixture(scope="module")
def emulator() -> Path:
    from ge_emulator import build

    place: Path = build.build()
    return place


def _torch_npu() -> Path | None:
    from ge_graph.errors import GeError

    try:
        found: Path | None = launch.find_torch_npu()
    except GeError as error:
        if error.code != "GE4062":  # not here; the emulator's own tests bring the wheel along
            raise
        return None
    return found


def run(home: Path, code: str, *, site: Path | None = None, **env: str) -> Any:
    """Run a program on the emulator; its last line is JSON."""
    variables = {**launch.environment(home, site), "OMP_NUM_THREADS": "1", **env}
    if site is None:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=variables, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


CONFORMANCE = """
    import json
    from ge_runtime.conformance import run_conformance
    from ge_runtime.discovery import load
    report = run_conformance(load("{name}"))
    print(json.dumps([len(report.passed), report.failed, report.unsupported]))
    """


def _judge(name: str, passed: int, failed: Mapping[str, str], unsupported: list[str]) -> None:
    unexpected = {n: text for n, text in failed.items() if n not in KNOWN[name]}
    assert not unexpected, json.dumps(unexpected, indent=1)[:8000]
    assert not [n for n in KNOWN[name] if n not in failed], "passes now: take it out of the table"
    assert not unsupported
    assert passed > 200


def test_cann_conforms(emulator: Path) -> None:
    _judge("cann", *run(emulator, CONFORMANCE.format(name="cann")))


def test_torch_npu_conforms(emulator: Path) -> None:
    site = _torch_npu()
    if site is None:
        pytest.skip("torch_npu is not here; TAIR_TORCH_NPU names its wheel")
    _judge("torch_npu", *run(emulator, CONFORMANCE.format(name="torch_npu"), site=site))


def test_a_call_like_the_last_costs_nothing_for_each_input(emulator: Path) -> None:
    """What a run does in Python does not grow with its inputs: parameters, memory that it writes, frozen addresses."""
    site = _torch_npu()
    if site is None:
        pytest.skip("torch_npu is not here; TAIR_TORCH_NPU names its wheel")
    seen = run(
        emulator,
        """
        import json, sys
        import torch, torch_npu
        from ge_graph import DataType, Graph, building, ops as ge
        from ge_graph.attrs import Int
        from ge_runtime.cann import library
        from ge_runtime.discovery import load

        def graph(count, written):
            made = Graph(f"many{count}{written}")
            first = made.add("RefData", [None], {"index": Int(0)}, [(DataType.DT_FLOAT, (2,))]) if written else None
            with building(made):
                xs = [ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(2,)) for i in range(written, count)]
                xs = [*first.outputs, *xs] if first else xs
                made.outputs = [ge.Assign(xs[0], ge.Add(xs[0], xs[1])) if written else ge.Add(xs[0], xs[1])]
                made.outputs[0].record_shape((2,))
            return made

        def events(run, inputs):
            found = []
            sys.setprofile(lambda frame, event, argument: found.append(event))
            run(inputs)
            sys.setprofile(None)
            return sum(event.endswith("call") for event in found)

        library.native()
        found = {}
        for name in ("cann", "torch_npu"):
            for case in ("tensors", "parameters", "written", "frozen"):
                counts, right = [], True
                for count in (3, 300):
                    options = {}
                    if case == "frozen":
                        options["frozenInput"] = ",".join("1" * count)
                    if case == "written":
                        options["ge.exec.outputReuseInputMemIndexes"] = "0,0"
                    executable = load(name).compile(graph(count, case == "written"), options)
                    for at in range(4):
                        if at == 0 or case != "frozen":
                            xs = [torch.full((2,), float(at + i)).npu() for i in range(count)]
                            if case == "parameters":
                                xs = [torch.nn.Parameter(x) for x in xs]
                        versions = [x._version for x in xs]
                        want = (xs[0].detach() + xs[1].detach()).cpu()
                        [result] = executable.run(xs)
                        right &= torch.equal(result.cpu(), want) and result.requires_grad is False
                        if case == "written":
                            right &= torch.equal(xs[0].cpu(), want)
                            right &= [x._version > v for x, v in zip(xs, versions)] == [True] + [False] * (count - 1)
                    counts.append(events(executable.run, xs))
                found[f"{name} {case}"] = [*counts, right]
        print(json.dumps(found))
        """,
        site=site,
    )
    for case, (few, many, right) in seen.items():
        assert right, case
        limit = few + 300 if case == "cann frozen" else few  # it compares each address with GE's
        assert many <= limit, f"{case}: {few} calls with 3 inputs, {many} with 300"


GRAPH = """
    import json, os, sys
    import numpy as np
    from ge_graph import DataType, GeError, Graph, Literal, building, ops as ge
    from ge_runtime.cann import CannEngine, DeviceArray, use_stream
    from ge_runtime.cann import session

    def add(shape=(2, 3), name="add"):
        graph = Graph(name)
        with building(graph):
            x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape)
            graph.outputs = [ge.Add(x, 1.0)]
        return graph

    def refused(action):
        try:
            action()
        except GeError as error:
            return [error.code, str(error)]
        return ["nothing", ""]

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    engine = CannEngine()
    """


def program(home: Path, code: str, **env: str) -> Any:
    return run(home, textwrap.dedent(GRAPH) + textwrap.dedent(code), **env)


def test_sessions_end_and_begin_again(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        executable = engine.compile(add(), {})
        first = executable.run([x])[0].tolist()
        kept = DeviceArray.from_bytes(session.current(), x.view(np.uint8).reshape(-1), DataType.DT_FLOAT, x.shape,
                                      session.current().stream)
        other = refused(lambda: engine.compile(add(), {"engine.device": "1"}))
        session.close()
        late = refused(lambda: executable.run([x]))
        stale = refused(lambda: kept.numpy())
        again = engine.compile(add(), {}).run([x])[0].tolist()
        print(json.dumps([first, other, late, stale, again]))
        """,
        TAIR_EMULATOR_DEVICES="2",
    )
    want = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert (seen[0], seen[4]) == (want, want)
    assert seen[1][0] == "GE4021"
    assert "device 1 was asked for" in seen[1][1]
    assert seen[2][0] == seen[3][0] == "GE4021"
    assert "ended" in seen[2][1]


def test_a_forked_process_is_refused(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        executable = engine.compile(add(), {})
        executable.run([x])
        read, write = os.pipe()
        if os.fork() == 0:
            found = [refused(lambda: executable.run([x])), refused(lambda: engine.compile(add(), {}))]
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.wait()
        found = json.loads(os.read(read, 65536))
        print(json.dumps([*found, executable.run([x])[0].tolist()]))
        """,
    )
    assert seen[0][0] == seen[1][0] == "GE4021"
    assert "forked" in seen[0][1]
    assert seen[2] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_inputs_that_are_let_go_early_are_kept(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        executable = engine.compile(add(("s0", 3)), {})
        made = []
        for step in range(20):
            array = x + step
            executable.run([x])
            live = DeviceArray.from_bytes(session.current(), array.view(np.uint8).reshape(-1), DataType.DT_FLOAT,
                                          array.shape, session.current().stream)
            made.append(executable.run([live])[0])
            del live, array
        print(json.dumps([float(np.abs(np.asarray(r) - (x + s + 1)).max()) for s, r in enumerate(made)]))
        """,
    )
    assert seen == [0.0] * 20


def test_the_callers_stream(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        import ctypes
        from ge_runtime.cann.library import native
        executable = engine.compile(add(), {})
        stream = ctypes.c_void_p()
        assert native().gec_stream_new(ctypes.byref(stream)) == 0
        with use_stream(stream.value):
            array = engine.place(Literal(DataType.DT_FLOAT, (2, 3), x.view(np.uint8).reshape(-1)))
            results = executable.run([array])
        print(json.dumps([results[0].stream == stream.value, results[0].numpy().tolist()]))
        """,
    )
    assert seen == [True, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]


def test_options_that_come_too_late_are_reported(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        import logging
        lines = []
        class Keep(logging.Handler):
            def emit(self, record): lines.append(record.getMessage())
        logging.getLogger("ge_runtime.cann.session").addHandler(Keep())
        engine.compile(add(), {"ge.deterministic": "0"})
        engine.compile(add(), {"ge.deterministic": "1"})
        print(json.dumps([lines, refused(lambda: engine.compile(add(), {"engine.what": "1"}))]))
        """,
    )
    assert any("ge.deterministic=1 (in force: 0)" in line for line in seen[0])
    assert seen[1][0] == "GE4007"


def test_more_cores_than_the_chip_has(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        from ge_graph.attrs import Str
        from ge_graph.ir import Provenance
        graph = add()
        graph.nodes[-1].attrs["_op_aicore_num"] = Str("1000")
        one = refused(lambda: engine.compile(graph, {}))
        two = refused(lambda: engine.compile(add(), {"ge.aicoreNum": "4|5000"}))
        print(json.dumps([one, two]))
        """,
    )
    assert [s[0] for s in seen] == ["GE4023", "GE4023"]
    assert "1000 cube cores" in seen[0][1]
    assert "GE node 'Add'" in seen[0][1]
    assert "5000 vector cores" in seen[1][1]


@pytest.mark.parametrize(("chip", "cube", "vector"), [("Ascend910B1", 24, 48), ("Ascend310P3", 8, 7)])
def test_the_limit_is_what_the_device_says_of_itself(emulator: Path, chip: str, cube: int, vector: int) -> None:
    seen = program(
        emulator,
        f"""
        facts = (engine.compile(add(), {{}}), session.current().facts)[1]
        asked = ["{cube}|{vector}", "{cube + 1}|{vector}", "{cube}|{vector + 1}"]
        told = [refused(lambda a=a: engine.compile(add(), {{"ge.aicoreNum": a}})) for a in asked]
        print(json.dumps([[facts.cube_cores, facts.vector_cores], *told]))
        """,
        TAIR_EMULATOR_CHIP=chip,
    )
    assert seen[0] == [cube, vector]
    assert [s[0] for s in seen[1:]] == ["nothing", "GE4023", "GE4023"]
    assert f"asks for {cube + 1} cube cores, the chip has {cube}" in seen[2][1]
    assert f"asks for {vector + 1} vector cores, the chip has {vector}" in seen[3][1]


def test_ge_refuses_with_its_words_and_the_users_line(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        from ge_graph import schema
        from ge_graph.ir import Provenance
        schema.register_schema({"op": "NobodyHasThis", "in": ["x f32"], "out": ["y f32"]})
        graph = Graph("lonely")
        with building(graph):
            x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2,))
            y = ge.NobodyHasThis(x)
            y.node.provenance = Provenance(source="model.py:7")
            graph.outputs = [y]
        print(json.dumps(refused(lambda: engine.compile(graph, {}))))
        """,
    )
    assert seen[0] == "GE4020"
    assert "graph 'lonely'" in seen[1]
    assert "model.py:7" in seen[1]


def test_collectives_are_refused_by_name(emulator: Path) -> None:
    """All of them, also inside a branch; groups that were opened and closed again are as unknown as before."""
    seen = program(
        emulator,
        """
        from ge_graph.attrs import Attr, Kind

        def reduce(name):
            graph = Graph(name)
            x = graph.add("Data", [None], {"index": Attr(Kind.INT, 0)}, [(DataType.DT_FLOAT, (2,))]).outputs[0]
            attrs = {"reduction": Attr(Kind.STRING, "sum"), "group": Attr(Kind.STRING, name)}
            graph.outputs = graph.add("HcomAllReduce", [x], attrs, [(DataType.DT_FLOAT, (2,))]).outputs
            return graph

        from ge_runtime.device_graphs import collectives
        compiled = engine.compile(reduce("tp_group"), {})
        told = refused(lambda: compiled.run([x[0, :2]]))
        results = []
        for _ in range(2):
            with engine.opened_groups({"tp_group": (0,)}, 30), engine.opened_groups({"tp_group": (0,)}, 30):
                results.append(compiled.run([x[0, :2]])[0].tolist())
            again = refused(lambda: compiled.run([x[0, :2]]))
        outer = reduce("outer")
        outer.nodes[0].subgraphs["then_branch"] = reduce("inner")
        print(json.dumps([*told, again == told, results, [n.attr("group") for n in collectives(outer)]]))
        """,
    )
    assert seen[0] == "GE4011"
    assert "HcomAllReduce of group 'tp_group'" in seen[1]
    assert seen[2]
    assert seen[3] == [[0.0, 1.0], [0.0, 1.0]]
    assert seen[4] == ["outer", "inner"]


@pytest.mark.parametrize(
    ("variable", "value", "code", "part"),
    [
        ("TAIR_EMULATOR_DEVICES", "0", "GE4010", "there is no device"),
        ("ASCEND_DEVICE_ID", "9", "GE4020", "aclrtSetDevice"),
        ("ASCEND_DEVICE_ID", "first", "GE4007", "ASCEND_DEVICE_ID"),
    ],
)
def test_devices_that_are_not_there(emulator: Path, variable: str, value: str, code: str, part: str) -> None:
    seen = program(emulator, "print(json.dumps(refused(lambda: engine.compile(add(), {}))))", **{variable: value})
    assert seen[0] == code
    assert part in seen[1]


def test_an_unknown_chip_runs_if_ge_takes_it(emulator: Path) -> None:
    seen = program(
        emulator,
        """
        executable = engine.compile(add(), {"ge.aicoreNum": "500|5000"})
        facts = session.current().facts
        print(json.dumps([facts.chip, facts.cube_cores, facts.vector_cores, executable.run([x])[0].tolist()]))
        """,
        TAIR_EMULATOR_CHIP="Ascend911Z",
    )
    assert seen == ["Ascend911Z", -1, -1, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]


@pytest.mark.parametrize("kept", [[], ["libascendcl.so"], ["libascendcl.so", "libgraph.so"]])
def test_part_of_cann_is_not_enough(emulator: Path, tmp_path: Path, kept: list[str]) -> None:
    (tmp_path / "lib64").mkdir()
    for name in kept:
        os.symlink(emulator / "lib64" / name, tmp_path / "lib64" / name)
    seen = program(
        tmp_path,
        "print(json.dumps([engine.probe().available, *refused(lambda: engine.compile(add(), {}))]))",
        LD_LIBRARY_PATH=str(tmp_path / "lib64"),
    )
    assert seen[:2] == [False, "GE4010"]
    for name, purpose in (("libgraph.so", "graph objects"), ("libge_runner.so", "graph sessions")):
        assert (f"{name} ({purpose})" in seen[2]) is (name not in kept)
    assert str(tmp_path / "lib64") in seen[2]  # where it was looked for
    assert f"{tmp_path / 'runtime'} does not exist" in seen[2]


def test_cann_without_a_function_is_too_old(emulator: Path, tmp_path: Path) -> None:
    """A libge_runner that has nothing: every function is named with what it is for."""
    (tmp_path / "lib64").mkdir()
    for path in (emulator / "lib64").iterdir():
        os.symlink(path, tmp_path / "lib64" / path.name)
    (tmp_path / "lib64" / "libge_runner.so").unlink()
    empty = tmp_path / "empty.cc"
    empty.write_text("")
    subprocess.run(["g++", "-shared", "-o", str(tmp_path / "lib64" / "libge_runner.so"), str(empty)], check=True)
    seen = program(
        tmp_path,
        "print(json.dumps(refused(lambda: engine.compile(add(), {}))))",
        LD_LIBRARY_PATH=str(tmp_path / "lib64"),
    )
    assert seen[0] == "GE4010"
    assert "libge_runner.so has no" in seen[1]
    assert "(compiling graphs)" in seen[1]
    assert "too old" in seen[1]
