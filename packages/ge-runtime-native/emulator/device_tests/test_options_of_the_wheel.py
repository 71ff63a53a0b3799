"""Every option of the npugraph_ex inside torch_npu is one of ours, has its default, and acts or is said to do nothing.

The wheel's own configuration is asked what it has, so an option of a newer wheel fails here.

Run under ``tair emulate``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch_npu  # noqa: F401

from torchair.config.compiler_config import GraphExConfig, captured_config

EMULATOR = Path(__file__).parent
TORCHAIR = EMULATOR.parents[2] / "npu-backend" / "tests"

# Option to the test that shows what it does: a file's name and a function.
ACTS = {
    "_aclnn_static_shape_kernel_build_dir": "test_capture test_static_kernels_have_their_operators_described",
    "capture_error_mode": "test_capture test_capture_error_mode_reaches_torch_npu",
    "capture_limit": "test_capture test_at_the_limit_the_least_used_capture_goes",
    "clone_input": "test_capture test_clone_input",
    "clone_output": "test_capture test_clone_output",
    "data_dump_dir": "test_option_effects test_tensor_dump_of_captured_graphs",
    "data_dump_stage": "test_option_effects test_tensor_dump_of_captured_graphs",
    "deadlock_check": "test_core_clashes test_the_option_warns_with_lines",
    "disable_static_kernel_compile_cache": "test_capture test_static_kernels_have_their_operators_described",
    "dump_tensor_data": "test_option_effects test_tensor_dump_of_captured_graphs",
    "force_eager": "test_capture test_force_eager_and_force_recapture",
    "force_recapture": "test_capture test_force_eager_and_force_recapture",
    "frozen_parameter": "test_capture test_a_frozen_parameter_that_moves_is_captured_anew",
    "inplace_pass": "test_fx_passes test_each_pass_can_be_switched_off",
    "input_inplace_pass": "test_fx_passes test_each_pass_can_be_switched_off",
    "mode": "test_reduce_overhead test_every_name_of_captured_graphs_means_them",
    "pattern_fusion_pass": "test_fx_passes test_each_pass_can_be_switched_off",
    "post_grad_custom_post_pass": "test_reduce_overhead test_npugraph_ex_by_name",
    "post_grad_custom_pre_pass": "test_reduce_overhead test_npugraph_ex_by_name",
    "remove_cat_ops": "test_fx_passes test_each_pass_can_be_switched_off",
    "remove_noop_ops": "test_fx_passes test_each_pass_can_be_switched_off",
    "reuse_graph_pool_in_same_fx": "test_capture test_captures_of_one_graph_share_a_pool",
    "static_kernel_compile": "test_capture test_static_kernels_have_their_operators_described",
    "super_kernel_debug_options": "test_capture test_super_kernels_are_asked_for",
    "super_kernel_optimize": "test_capture test_super_kernels_are_asked_for",
    "super_kernel_optimize_options": "test_capture test_super_kernels_are_asked_for",
    "unsafe_skip_npugraph_capture_validation": "test_capture test_what_needs_the_host_is_not_looked_for",
    "use_graph_pool": "test_capture test_a_pool_of_the_users",
}
# Option to a value that is said, by name, to do nothing.
SAID = {
    "_vllm_aclnn_static_kernel_sym_index": 1,
    "_vllm_aclnn_static_kernel_sym_range": [1, 2],
    "record_statistics_debug_info": True,
}

ASK = """
import json, torch, torch_npu, torchair
from torch_npu.dynamo import npugraph_ex
assert "torch_npu" in torchair.__file__ and "torch_npu" in npugraph_ex.__file__
options = {n: o for n, o in vars(npugraph_ex.CompilerConfig()).items() if not n.startswith("_fixed")}
print(json.dumps({n: str(getattr(o, "value", o)) for n, o in options.items()}))
"""


@pytest.fixture(scope="module")
def wheel() -> dict[str, str]:
    """Name of each option of the wheel's configuration to its default as text."""
    command = [sys.executable, "-m", "ge_emulator", "--bundled-torchair", "--", "python", "-c", ASK]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_option_is_ours_with_its_default(wheel):
    ours = dict(GraphExConfig().values())
    assert not set(wheel) - set(ours)
    differ = {name: (shown, str(ours[name].value)) for name, shown in wheel.items() if str(ours[name].value) != shown}
    assert not differ


def test_each_option_acts_or_is_said_to_do_nothing(wheel):
    assert not ACTS.keys() & SAID.keys()
    assert ACTS.keys() | SAID.keys() >= set(wheel)
    files = {path.stem: path.read_text() for folder in (TORCHAIR, EMULATOR) for path in folder.glob("test_*.py")}
    for name, proof in ACTS.items():
        file, function = proof.split()
        body = re.search(rf"^def {function}\(.*?(?=^def |\Z)", files[file], re.DOTALL | re.MULTILINE)
        assert body is not None, proof
    for name in ACTS:
        shown = {e.why for e in captured_config({}).explain(everything=True) if e.option == name}
        assert shown == {"acts"}, name


@pytest.mark.parametrize("name", SAID)
def test_what_does_nothing_is_said_by_name(name):
    torch._dynamo.reset()
    call = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={name: SAID[name]})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert call(torch.ones(2).npu()).tolist() == [2, 2]
    assert [str(w.message) for w in seen if f"{name} = {SAID[name]!r}" in str(w.message)]


def test_a_name_that_is_no_option_is_refused_by_name():
    with pytest.raises(Exception, match=r"GE1001.*no_such_option"):
        torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"no_such_option": 1})(torch.ones(2).npu())
