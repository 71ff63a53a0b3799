"""Streams, events, memory, capture and errors, through the torch_npu wheel. Run under ``tair emulate``."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch_npu  # noqa: F401

from ge_emulator.verbs import VERBS


def test_names_and_memory():
    assert torch.npu.get_device_name(0) == "Ascend910B1"
    x = torch.zeros(1 << 20, device="npu")
    assert torch.npu.memory_allocated() >= x.numel() * 4
    assert torch.npu.mem_get_info()[1] == 64 << 30


def test_streams_and_events():
    a = torch.ones(64, 64, device="npu")
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    side = torch.npu.Stream()
    start.record()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        for _ in range(20):
            a = a + 1
    torch.npu.current_stream().wait_stream(side)
    b = a * 2
    end.record()
    end.synchronize()
    assert b.cpu()[0, 0].item() == 42
    assert start.elapsed_time(end) > 0


def test_copies_between_strided_and_pinned():
    host = torch.randn(8, 6).pin_memory()
    device = torch.empty(6, 8, device="npu").t()
    device.copy_(host, non_blocking=True)
    back = torch.empty(8, 6).pin_memory()
    back.copy_(device, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, host)


def test_capture_and_replay():
    x, w = torch.randn(4, 8).npu(), torch.randn(8, 8).npu()
    torch.relu(x @ w) + 1
    graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        y = torch.relu(x @ w) + 1
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            z = y.sum(1)
        torch.npu.current_stream().wait_stream(side)
        total = z * 2
    for _ in range(3):
        new = torch.randn(4, 8)
        x.copy_(new)
        graph.replay()
        torch.npu.synchronize()
        torch.testing.assert_close(total.cpu(), (torch.relu(new @ w.cpu()) + 1).sum(1) * 2, rtol=1e-4, atol=1e-4)


def test_waiting_in_a_capture_is_refused():
    x = torch.ones(3, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="507903|107030"), torch.npu.graph(graph):
        (x * 2).cpu()
    assert (x + 1).cpu().tolist() == [2, 2, 2]


LIBRARY = ctypes.CDLL("libascendcl.so")
LIBRARY.aclGetRecentErrMsg.restype = ctypes.c_char_p


def test_foreign_and_freed_addresses_are_noticed():
    torch.npu.set_device(0)
    host = ctypes.create_string_buffer(64)
    assert LIBRARY.aclrtMemcpy(host, 64, host, 64, 1) == 107000
    assert b"not device memory" in LIBRARY.aclGetRecentErrMsg()
    block = ctypes.c_void_p()
    assert LIBRARY.aclrtMalloc(ctypes.byref(block), 64, 0) == 0
    assert LIBRARY.aclrtMemcpy(block, ctypes.c_size_t(1 << 20), host, ctypes.c_size_t(1 << 20), 1) == 107000
    assert LIBRARY.aclrtFree(block) == 0
    assert LIBRARY.aclrtFree(block) == 107000
    assert LIBRARY.aclrtMemcpy(block, 64, host, 64, 1) == 107000


def test_handles_that_are_none():
    assert LIBRARY.aclrtSynchronizeStream(ctypes.c_void_p(12345)) == 107017
    assert LIBRARY.aclmdlRIDestroy(ctypes.c_void_p(12345)) == 107017
    assert LIBRARY.aclrtSetDevice(7) == 107001


def _child(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=200
    )


def test_out_of_memory_chip_and_version_by_environment():
    done = _child(
        "import torch, torch_npu\n"
        "assert torch.npu.get_device_name(0) == 'Ascend910_9391'\n"
        "assert torch.npu.device_count() == 2\n"
        "try: torch.zeros(1 << 28, device='npu'); print('no error')\n"
        "except torch.OutOfMemoryError as e: print('out of memory')\n"
        "print((torch.zeros(3, device='npu') + 1).cpu().tolist())\n",
        TAIR_EMULATOR_MEMORY="256M",
        TAIR_EMULATOR_CHIP="Ascend910_9391",
        TAIR_EMULATOR_DEVICES="2",
    )
    assert "out of memory" in done.stdout, done.stderr
    assert "[1.0, 1.0, 1.0]" in done.stdout


def test_a_forked_child_is_refused():
    done = _child(
        "import os, torch, torch_npu\n"
        "x = torch.ones(2, device='npu') + 1; torch.npu.synchronize()\n"
        "import ctypes; lib = ctypes.CDLL('libascendcl.so')\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if lib.aclrtSynchronizeDevice() == 107002 else 1)\n"
        "print('code', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert "code 0" in done.stdout, done.stderr


def test_an_error_on_a_stream_arrives_where_it_is_waited_for(capfd):
    table = torch.randn(5, 3).npu()
    rows = torch.tensor([1, 77]).npu()
    with pytest.raises(RuntimeError, match="507015"):
        torch.nn.functional.embedding(rows, table).cpu()
    assert "aclnnEmbedding" in capfd.readouterr().err
    assert (table + 1).shape == (5, 3)
    torch.npu.synchronize()


def test_an_object_that_waits_for_a_stream_may_be_collected_on_its_thread(monkeypatch):
    """Graphs of torch_npu wait for their stream as they go; Python collects them wherever it runs, in kernels too."""
    threads = []

    class Waits:
        def __del__(self):
            torch.npu.current_stream().synchronize()
            threads.append(threading.get_ident())

    x = torch.arange(6.0).npu()
    torch.npu.synchronize()
    each = Waits()
    each.kept = each
    del each
    run = VERBS[b"aclnn.run"]

    def collecting(data, words):
        gc.collect()
        return run(data, words)

    monkeypatch.setitem(VERBS, b"aclnn.run", collecting)
    assert torch.equal((x + 41).cpu(), torch.arange(6.0) + 41)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
