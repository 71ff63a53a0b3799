"""The engine for Ascend devices that needs no torch: our own native runner on the CANN that is installed."""

from ge_runtime.cann.arrays import DeviceArray
from ge_runtime.cann.engine import CannEngine
from ge_runtime.cann.session import use_stream

__all__ = ["CannEngine", "DeviceArray", "use_stream"]
