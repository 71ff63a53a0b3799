"""Archives of many ranks: saved in one process, run by as many as there are ranks, against the whole model."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import torchair
from ge_graph import serde
from tair_export import CompiledModel
from tair_export.ranks import Rank
from tair_testing import warm
from torchair.ranks.world import World

launch = pytest.importorskip("ge_emulator.launch", reason="the emulator is not installed")

RUN = "import sys; from tair_export.run import main; sys.argv[0] = 'tair-run'; sys.exit(main())"


class Mlp(nn.Module):
    """Two layers whose width a group shares out; ``table`` is the same on all ranks."""

    def __init__(self, up, down, table, group=None):
        super().__init__()
        size, at = (1, 0) if group is None else (group.size(), group.rank())
        self.group, self.table = group, nn.Parameter(table)
        self.up, self.down = nn.Parameter(up.chunk(size, 1)[at].clone()), nn.Parameter(down.chunk(size)[at].clone())

    def forward(self, x):
        y = torch.relu(x @ self.up) @ self.down
        return (y if self.group is None else fc.all_reduce(y, "sum", self.group)) + x @ self.table


def parts():
    torch.manual_seed(0)
    return torch.randn(16, 64), torch.randn(64, 16), torch.randn(16, 16)


def save(folder, sizes):
    """Archives of all ranks of a mesh with a dimension ``tp``."""

    def rank(index):
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        model = Mlp(*parts(), mesh["tp"].get_group()).eval()
        torchair.CompiledModel.save_graph(model, (torch.ones(2, 16),), save_path=folder)

    World(int(np.prod([*sizes.values()]))).run(rank)


def variables_of(count):
    """torchrun's variables but for the rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}


def started(folder, count, *arguments, **variables):
    """``tair-run`` in each of ``count`` processes, with torchrun's variables."""
    common = variables_of(count)
    return [
        warm.Fork("-c", RUN, *arguments, cwd=folder, env={**os.environ, **common, "RANK": str(r), **variables})
        for r in range(count)
    ]


@pytest.fixture
def no_inline(monkeypatch):
    monkeypatch.setattr("tair_export.weights.RANKS_INLINE_BYTES", 0)


@pytest.mark.slow
def test_eight_ranks_share_what_is_equal(tmp_path, no_inline):
    """On the disk: each part of a cut weight once, and once what all ranks have."""
    save(tmp_path / "saved", {"dp": 2, "tp": 4})
    up, down, table = (4 * t.numel() for t in parts())
    stored = [p.stat().st_size for p in (tmp_path / "saved" / "weights").iterdir()]
    assert sum(stored) == up + down + table
    assert len(stored) == 4 + 4 + 1
    (tmp_path / "saved").rename(tmp_path / "moved")
    for rank in range(8):
        model = CompiledModel.load_graph(tmp_path / "moved", rank=Rank(rank, 8))
        first = rank // 4 * 4
        assert [*model.groups.values()] == [tuple(range(first, first + 4))]


@pytest.mark.slow
def test_each_process_runs_the_graph_of_its_rank(tmp_path, no_inline):
    """Groups are made from the archive, inputs are each rank's own, results lie apart."""
    save(tmp_path / "saved", {"dp": 2, "tp": 2})
    xs = [torch.randn(2, 16), torch.randn(2, 16)]
    for rank in range(4):
        np.save(tmp_path / f"x{rank}.npy", xs[rank // 2].numpy())
    ends = [p.end(120) for p in started(tmp_path, 4, "saved", "-i", "x{rank}.npy", "-o", "out", "--timeout", "60")]
    assert [e.returncode for e in ends] == [0] * 4, ends
    whole = Mlp(*parts())
    for rank in range(4):
        got = torch.from_numpy(np.load(tmp_path / "out" / f"rank_{rank}" / "output_0.npy"))
        torch.testing.assert_close(got, whole(xs[rank // 2]).detach(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_processes_that_do_not_fit(tmp_path):
    """Fewer than saved it, or one that never comes: the error says which, within the time given."""
    save(tmp_path / "saved", {"tp": 2})
    np.save(tmp_path / "x.npy", np.ones((2, 16), "f4"))
    (alone,) = started(tmp_path, 1, "saved", "-i", "x.npy", "--rank", "1")
    ended = alone.end(120)
    assert ended.returncode == 1
    assert "GE4011" in ended.stderr
    assert "rank 1 of 2, this process is rank 0 of 1" in ended.stderr
    (waits,) = started(tmp_path, 1, "saved", "-i", "x.npy", "--timeout", "3", WORLD_SIZE="2")
    ended = waits.end(120)
    assert ended.returncode == 1
    assert "GE4011" in ended.stderr


# --- without torch, through engine ``cann`` on the emulator ----------------------------------------------------------


def on_devices(host, folder, count, *arguments, code=None, ranks=None, **variables):
    """``tair-run`` (or a program) in each of ``count`` processes that have no torch, each with a device."""
    from ge_emulator import build

    made = launch.environment(build.build(), None)
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "RANK", "WORLD_SIZE")}
    env |= {k: made[k] for k in ("LD_LIBRARY_PATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH")}
    env |= {"PYTHONPATH": str(Path(launch.__file__).resolve().parents[1]), "TAIR_EMULATOR_PYTHON": sys.executable}
    env |= {"TAIR_EMULATOR_DEVICES": str(count), **variables_of(count), **variables}
    command = [host.python, *(("-c", code) if code else (host.python.with_name("tair-run"),)), *arguments]
    return [
        subprocess.Popen(
            [str(c) for c in command],
            cwd=folder,
            env={**env, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in (range(count) if ranks is None else ranks)
    ]


def ended(processes, seconds=240):
    """Exit code and both outputs of each; none outlives this."""
    end = time.monotonic() + seconds
    try:
        return [(*p.communicate(timeout=max(end - time.monotonic(), 1)), p.returncode)[::-1] for p in processes]
    finally:
        for p in processes:
            p.kill()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"tp": 2}, {"dp": 2, "tp": 2}], ids=["two", "four"])
def test_processes_without_torch_run_on_devices(tmp_path, no_inline, host, sizes):
    """The groups are HCCL's, made by its root information; the folder was moved; results are the whole model's."""
    save(tmp_path / "saved", sizes)
    (tmp_path / "saved").rename(tmp_path / "moved")
    count = int(np.prod([*sizes.values()]))
    xs = [torch.randn(2, 16) for _ in range(count // 2)]
    for rank in range(count):
        np.save(tmp_path / f"x{rank}.npy", xs[rank // 2].numpy())
    received = tmp_path / "received"
    line = ("moved", "-i", "x{rank}.npy", "-o", "out", "--device", "npu", "--timeout", "120")
    for code, err, _ in ended(on_devices(host, tmp_path, count, *line, TAIR_EMULATOR_GRAPHS=str(received))):
        assert code == 0, err
    whole = Mlp(*parts())
    for rank in range(count):
        got = torch.from_numpy(np.load(tmp_path / "out" / f"rank_{rank}" / "output_0.npy"))
        torch.testing.assert_close(got, whole(xs[rank // 2]).detach(), rtol=1e-5, atol=1e-4)
    graphs = [serde.from_bytes(p.read_bytes()) for p in received.iterdir()]
    named = {str(n.attr("group")) for g in graphs for n in g.nodes if n.op.startswith("Hcom")}
    assert len(named) == count // 2
    assert all(name.startswith("npu-") for name in named), "what GE gets are HCCL's names"


@pytest.mark.slow
def test_devices_under_torchrun(tmp_path):
    """Processes that torchrun starts meet in its store; each takes the device of its number on the host."""
    from ge_emulator import build

    save(tmp_path / "saved", {"tp": 2})
    np.save(tmp_path / "x.npy", np.arange(32, dtype="f4").reshape(2, 16) / 8)
    env = launch.environment(build.build(), None) | {"TAIR_EMULATOR_DEVICES": "2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    (tmp_path / "run.py").write_text(f"{RUN}\n")
    line = ("saved", "-i", "x.npy", "-o", "out", "--device", "npu")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "run.py", *line],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    want = Mlp(*parts())(torch.from_numpy(np.load(tmp_path / "x.npy"))).detach()
    for rank in range(2):
        got = torch.from_numpy(np.load(tmp_path / "out" / f"rank_{rank}" / "output_0.npy"))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.night
@pytest.mark.slow
def test_devices_whose_processes_do_not_come(tmp_path, host):
    """One that never starts: the other says which, within the time given."""
    save(tmp_path / "saved", {"tp": 2})
    np.save(tmp_path / "x.npy", np.ones((2, 16), "f4"))
    line = ("saved", "-i", "x.npy", "--device", "npu", "--timeout", "4")
    ((code, err, _),) = ended(on_devices(host, tmp_path, 2, *line, ranks=[0]))
    assert code == 1
    assert "GE4011" in err
    assert "rank 1 of 2 did not come" in err
    ((code, err, _),) = ended(on_devices(host, tmp_path, 2, *line, ranks=[1]))
    assert code == 1
    assert "rank 0 cannot be reached" in err


LEFT_ALONE = """
import os, sys, time
import numpy as np
from tair_export import CompiledModel
model = CompiledModel.load_graph("saved", device="npu")
x = np.ones((2, 16), "f4")
try:
    model(x)
except Exception as error:
    assert "GE4011" in str(error) and "opened_groups" in str(error), error
def alone():
    try:
        model(x)
    except Exception as error:
        return str(error)
with model.opened_groups(60):
    model(x)
with model.opened_groups(5):
    if os.environ["RANK"] == "1":
        time.sleep(8)
    else:
        late = alone()
with model.opened_groups(60):
    model(x)
    if os.environ["RANK"] == "1":
        os._exit(0)
    gone = alone()
assert "torch" not in sys.modules
for error, words in (late, "EI0002: no answer within HCCL_EXEC_TIMEOUT, 5 s"), (gone, "rank went away: 1"):
    for part in ("GE4020", "all-reduce of rank 0", words, "test_rank_archives.py", "fc.all_reduce"):
        assert part in error, (part, error)
"""


@pytest.mark.slow
def test_devices_that_are_left_alone_in_a_collective(tmp_path, host):
    """One that hangs, one that ends: the error has rank, collective and line, and groups can be made again."""
    save(tmp_path / "saved", {"tp": 2})
    (code, err, _), (gone, other, _) = ended(on_devices(host, tmp_path, 2, code=LEFT_ALONE))
    assert (code, gone) == (0, 0), err + other


def test_groups_of_a_manifest_are_checked(tmp_path):
    from ge_graph.errors import ArchiveError
    from tair_export.manifest import groups

    assert groups({"rank": [0, 2]}, tmp_path) == {}
    assert groups({"rank": [1, 4], "groups": {"a": [3, 1]}}, tmp_path) == {"a": (3, 1)}
    for wrong in ([0, 2], {"a": 3}, {"a": [0, 0]}, {"a": [0, 4]}, {"a": [True]}, {"a": [0]}, {"a": [1, 1.0]}):
        with pytest.raises(ArchiveError, match="GE5021"):
            groups({"rank": [1, 4], "groups": wrong}, tmp_path)
    for rank in (None, [0], [2, 2], [-1, 2], ["0", 2]):
        with pytest.raises(ArchiveError, match="GE5021"):
            groups({"rank": rank, "groups": {"a": [0]}}, tmp_path)
