"""These tests need NPU tensors: they run under ``tair emulate`` (``make npu-tensors``), and are not collected elsewhere."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch_npu") else ["test_*.py"]
