"""The complete debug record: the documented example scripts on CPU tensors, recompiles, ranks, how to switch it on."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tair_testing import warm

MAX_AUTOTUNE = """
    import os
    os.environ["TORCH_COMPILE_DEBUG"] = "1"
    import torch
    import torchair
    import logging
    torch._logging.set_logs(dynamo=logging.DEBUG, aot=logging.DEBUG, output_code=True, graph_code=True)

    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "pbtxt"
    config.mode.value = "max-autotune"
    npu_backend = torchair.get_npu_backend(compiler_config=config)

    class Model(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    model = torch.compile(Model(), backend=npu_backend, dynamic=False)
    x = torch.randn(10, 10, requires_grad=True)
    out = model(x)
    loss = torch.nn.MSELoss()(out, torch.randn(10, 10))
    loss.backward()
    x = torch.randn(20, 20, requires_grad=False)
    assert torch.equal(model(x), 2 * x)
"""
REDUCE_OVERHEAD = """
    import os
    os.environ["TORCH_COMPILE_DEBUG"] = "1"
    import torch
    import torchair
    import logging
    torch._logging.set_logs(dynamo=logging.DEBUG, aot=logging.DEBUG, output_code=True, graph_code=True)

    config = torchair.CompilerConfig()
    config.mode.value = "reduce-overhead"
    npu_backend = torchair.get_npu_backend(compiler_config=config)

    class Model(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    model = torch.compile(Model(), backend=npu_backend, dynamic=False)
    x = torch.randn(20, 20, requires_grad=False)
    assert torch.equal(model(x), 2 * x)
"""


def run(code, cwd, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def root(cwd):
    (found,) = (cwd / "torch_compile_debug").glob("run_*")  # torch adds files of its own beside it
    assert re.fullmatch(r"run_[\d_]+-pid_\d+", found.name)
    return found


def numbered(folder):
    """The numbered files of a phase; the numbers begin at 000 and have no gap."""
    names = sorted(p.name for p in folder.iterdir() if p.name[:3].isdigit())
    assert [n[:3] for n in names] == [f"{i:03d}" for i in range(len(names))]
    return [n[4:] for n in names]


def every_pass_left_a_graph_or_a_note(folder):
    """A note names an earlier file of the same kind, which holds a graph."""
    for path in sorted(p for p in folder.iterdir() if p.name[:3].isdigit()):
        text = path.read_text()
        assert text
        note = re.fullmatch(r"# \w+ changed nothing: the graph is that of (\S+)\n", text)
        if note is not None:
            before = folder / note[1]
            assert before.name < path.name
            assert before.suffix == path.suffix
            assert "changed nothing" not in before.read_text()


@pytest.mark.slow
def test_the_backend_npugraph_ex_has_a_folder_of_its_own(tmp_path):
    run(
        """
        import torch, torchair
        def odd_pass(gm, example_inputs, config):
            gm.graph.lint()
        odd_pass.__name__ = odd_pass.__qualname__ = "../../<odd>\\n\x1b[31m"
        options = {"post_grad_custom_pre_pass": odd_pass}
        torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options, dynamic=False)(torch.ones(2))
        """,
        tmp_path,
        TORCH_COMPILE_DEBUG="1",
    )
    base = root(tmp_path)
    assert not (base / "torchair").exists()
    assert sorted(p.name for p in (base / "npugraph_ex").iterdir()) == ["debug.log", "model__0"]
    names = numbered(base / "npugraph_ex" / "model__0" / "forward")
    (odd,) = (n for n in names if "odd" in n)
    assert re.fullmatch(r"aot_forward_graph_after_[\w.-]*odd[\w-]*-[0-9a-f]{8}\.txt", odd)
    assert "\x1b" not in (base / "npugraph_ex" / "debug.log").read_text()


@pytest.mark.slow
def test_the_max_autotune_example(tmp_path):
    run(MAX_AUTOTUNE, tmp_path)
    base = root(tmp_path)
    assert (base / "torchdynamo" / "debug.log").stat().st_size
    ours = base / "torchair"
    assert sorted(p.name for p in ours.iterdir()) == ["debug.log", "model__0", "model__1"]
    assert sorted(p.name for p in (ours / "model__0").iterdir()) == ["backward", "dynamo_out_graph.txt", "forward"]
    assert sorted(p.name for p in (ours / "model__1").iterdir()) == ["dynamo_out_graph.txt", "forward"]
    for place, phase in (("model__0", "forward"), ("model__0", "backward"), ("model__1", "forward")):
        names = numbered(ours / place / phase)
        assert names[0] == f"aot_{phase}_graph.txt"
        assert names[-1] == f"aot_{phase}_optimized_ge_graph.pbtxt"
        original = names.index(f"aot_{phase}_original_ge_graph.pbtxt")
        for name in names[1:original]:
            assert re.fullmatch(rf"aot_{phase}_graph_after_\w+\.txt", name)
        for name in names[original + 1 : -1]:
            assert re.fullmatch(rf"aot_{phase}_graph_after_\w+\.pbtxt", name)
        assert not (ours / place / phase / "output_code.py").exists()
        assert len(names) >= 7  # as many as in the documented example
        every_pass_left_a_graph_or_a_note(ours / place / phase)
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in ours.rglob("*") if p.is_file())
    assert (
        "2 * l_x_" in (ours / "model__0" / "dynamo_out_graph.txt").read_text()
        or "mul" in (ours / "model__0" / "dynamo_out_graph.txt").read_text()
    )
    assert "torch.ops.aten.mul.Tensor" in (ours / "model__0" / "forward" / "000_aot_forward_graph.txt").read_text()
    log = (ours / "debug.log").read_text()
    assert re.search(r"(?m)^\[INFO\] TORCHAIR\(\d+,MainProcess\):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\.\d{3} \[", log)
    assert re.search(
        r"(?m)^\[INFO\] TORCHAIR\(\d+,MainProcess\):\d{4}-\d\d-\d\d-\d\d:.*Compiling concrete graph 1", log
    )
    assert re.search(r"model 0 backward: lower: .* FX nodes to \d+ GE nodes, [\d.]+ ms", log)


@pytest.mark.slow
def test_the_reduce_overhead_example(tmp_path):
    run(REDUCE_OVERHEAD, tmp_path)
    ours = root(tmp_path) / "torchair"
    forward = ours / "model__0" / "forward"
    assert "mul" in (forward / "output_code.py").read_text()
    assert numbered(forward)[0] == "aot_forward_graph.txt"
    assert all(n.endswith(".txt") for n in numbered(forward))  # FX graphs only
    assert [n.removeprefix("aot_forward_graph_after_") for n in numbered(forward)[1:]] == [
        f"{name}.txt"
        for name in (
            "ReturnWrites",
            "DeriveSymbols",
            "RemoveNoops",
            "FusePatterns",
            "FuseRmsNorm",
            "FuseQuantisedProducts",
            "ThreadWaits",
            "NumbersOnDevice",
            "RemoveCats",
            "ReinplaceInputs",
            "ReinplaceOps",
        )
    ]
    every_pass_left_a_graph_or_a_note(forward)
    assert (ours / "model__0" / "dynamo_out_graph.txt").exists()
    assert (ours / "debug.log").exists()
    assert (ours.parent / "torchdynamo" / "debug.log").exists()


@pytest.mark.slow
def test_switched_on_in_the_shell_and_nothing_without(tmp_path):
    code = """
        import torch, torchair
        torch.compile(lambda x: x.add(1) * 1, backend="npu", dynamic=False)(torch.ones(2))
    """
    for name in ("on", "off"):
        (tmp_path / name).mkdir()
    done = run(code, tmp_path / "on", TORCH_COMPILE_DEBUG="1")
    names = numbered(root(tmp_path / "on") / "torchair" / "model__0" / "forward")
    assert any(n.endswith("_original_ge_graph.txt") for n in names)  # txt if graph_dump.type is not set
    assert "TORCHAIR" not in done.stderr  # the level of the screen stays
    warm.run("-c", textwrap.dedent(code), cwd=tmp_path / "off")
    assert list((tmp_path / "off").iterdir()) == []


DISTRIBUTED = """
    import os, sys
    import torch, torchair
    meet = "file://" + os.getcwd() + "/meet"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=int(sys.argv[1]), world_size=2)
    config = torchair.CompilerConfig()
    config.debug.data_dump.type = "npy"
    backend = torchair.get_npu_backend(compiler_config=config)
    torch.compile(lambda x: x + 1, backend=backend, dynamic=False)(torch.ones(2))
    torch.distributed.barrier()
"""


@pytest.mark.slow
def test_ranks(tmp_path):
    environment = {**os.environ, "TORCH_COMPILE_DEBUG": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(DISTRIBUTED), str(rank)],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for each in processes:
        _, text = each.communicate(timeout=300)
        assert each.returncode == 0, text[-2000:]
    for rank in range(2):
        (graph,) = (tmp_path / f"worldsize2_global_rank{rank}").iterdir()
        assert graph.name == "graph_1"
        assert len(list((graph / "0").glob("add-aten.add.Tensor.*.npy"))) == 3
    for rank, process in enumerate(processes):
        (base,) = (tmp_path / "torch_compile_debug").glob(f"run_*-pid_{process.pid}-rank_{rank}")
        assert (base / "torchair" / "debug.log").exists()
        assert (base / "torchair" / "model__0" / "forward" / "000_aot_forward_graph.txt").exists()
        assert (base / "torchdynamo" / "debug.log").exists()


@pytest.mark.slow
def test_two_processes_in_one_folder(tmp_path):
    code = """
        import torch, torchair
        config = torchair.CompilerConfig()
        config.debug.fx_summary.type = "csv"
        config.debug.data_dump.type = "npy"
        backend = torchair.get_npu_backend(compiler_config=config)
        run = torch.compile(lambda x: x.exp() + 1, backend=backend, dynamic=False)
        for _ in range(50):
            run(torch.ones(2))
    """
    programs = [warm.Fork("-c", textwrap.dedent(code), cwd=tmp_path) for _ in range(2)]
    assert [p.end().returncode for p in programs] == [0, 0]
    assert len(list(tmp_path.glob("summary_*.csv"))) == 2
    files = list(tmp_path.rglob("*.npy"))
    assert len(files) == 2 * 50 * 5
    for path in files:
        np.load(path)
    assert not list(tmp_path.rglob(".tair-*"))  # nothing half-written
