"""The embedded engine: runs GE graphs on the CPU with ATen. Importing this imports torch."""

from ge_runtime.cpu.engine import CpuEngine
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, Kernel, Ref, kernel, plan, registered, unregister

__all__ = ["Call", "CpuEngine", "Kernel", "Ref", "PlanContext", "kernel", "plan", "registered", "unregister"]
