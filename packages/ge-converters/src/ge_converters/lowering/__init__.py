"""FX graph to GE graph: calls of converters, symbols, scopes, what ops with memory or effects need."""

from ge_converters.lowering.explain import Absent, Answer, Found, Refused, explain
from ge_converters.lowering.walk import Lowered, lower

__all__ = ["Absent", "Answer", "Found", "Lowered", "Refused", "explain", "lower"]
