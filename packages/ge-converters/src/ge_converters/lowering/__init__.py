"""FX graph to GE graph: calls of converters, symbols, scopes, what ops with memory or effects need."""

from ge_converters.lowering.explain import Absent, Convertible, Explanation, Refused, explain
from ge_converters.lowering.graph_lowering import Lowered, lower

__all__ = ["Absent", "Explanation", "Convertible", "Lowered", "Refused", "explain", "lower"]
