"""These tests need NPU tensors: they run under ``tair emulate`` (``make npu-tensors``), and nowhere else."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch_npu") else ["test_*.py"]
