"""The CANN emulator: the libraries that torch_npu and ge-runtime's native runner open, on a host without an NPU.

The libraries are C++ (``native/``); what an operator or a graph computes comes from ``ge_runtime.cpu``, which they call
through ``ge_emulator.device``. ``ge_emulator.build`` compiles them, ``ge_emulator.launch`` runs a program on them.
"""

__version__ = "0.1.0"
