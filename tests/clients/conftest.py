"""A serving loop needs NPU tensors: it runs under ``tair emulate`` (``make npu-tensors``); vLLM's tests want vLLM."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the models and programs beside the tests
collect_ignore = [] if importlib.util.find_spec("torch_npu") else ["test_serving_loop.py"]
