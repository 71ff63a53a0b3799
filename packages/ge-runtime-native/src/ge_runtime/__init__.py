"""Engines that run GE graphs, behind one protocol: the embedded CPU engine, and two ways to a device."""

from ge_runtime.api import Capability, Engine, Executable
from ge_runtime.discovery import choose

__version__ = "0.1.0"

__all__ = ["Capability", "Engine", "Executable", "choose"]
