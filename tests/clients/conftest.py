"""A serving loop needs NPU tensors: it runs under ``tair emulate`` (``make npu-tensors``); vLLM's tests want vLLM."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("torch_npu") else ["test_serving_loop.py"]
