"""Archives of many ranks: saved in one process, run by as many as there are ranks, against the whole model."""

import os
import socket

import numpy as np
import pytest
import torch
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import torchair
from tair_export import CompiledModel
from tair_export.ranks import Rank
from tair_testing import warm
from torchair.ranks.world import World

RUN = "import sys; from tair_export.run import main; sys.argv[0] = 'tair-run'; main()"


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


def started(folder, count, *arguments, **variables):
    """``tair-run`` in each of ``count`` processes, with torchrun's variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return [
        warm.Program("-c", RUN, *arguments, cwd=folder, env={**os.environ, **common, "RANK": str(r), **variables})
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
