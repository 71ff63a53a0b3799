"""Cases of operators that another operator's cases say: an attribute in the place of an input, or another name.

A ``…D`` operator is its sibling with some of its inputs as attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ge_graph import schema
from ge_graph.attrs import Kind
from ge_graph.dtypes import from_numpy
from ge_runtime.conformance import elementwise_cases, index_cases, shape_cases, window_cases
from ge_runtime.conformance.case import Case

# Operator: its sibling, attributes by the place of the sibling's input (none: the sibling under another name).
SIBLINGS: dict[str, tuple[str, dict[int, str]]] = {
    "BroadcastToD": ("BroadcastTo", {1: "shape"}),
    "ConcatD": ("ConcatV2", {1: "concat_dim"}),
    "ConcatV2D": ("ConcatV2", {1: "concat_dim"}),
    "Conv2DBackpropFilterD": ("Conv2DBackpropFilter", {1: "filter_size"}),
    "Conv2DBackpropInputD": ("Conv2DBackpropInput", {0: "input_size"}),
    "Conv2DTransposeD": ("Conv2DTranspose", {0: "input_size"}),
    "Conv3DBackpropFilterD": ("Conv3DBackpropFilter", {1: "filter_size"}),
    "Conv3DBackpropInputD": ("Conv3DBackpropInput", {0: "input_size"}),
    "Conv3DTransposeD": ("Conv3DTranspose", {0: "input_size"}),
    "CumprodD": ("Cumprod", {1: "axis"}),
    "CumsumD": ("Cumsum", {1: "axis"}),
    "CumulativeLogsumexpD": ("CumulativeLogsumexp", {1: "axis"}),
    "EuclideanNormD": ("EuclideanNorm", {1: "axes"}),
    "ExpandD": ("Expand", {1: "shape"}),
    "FillD": ("Fill", {0: "dims"}),
    "GatherV2D": ("GatherV2", {2: "axis"}),
    "MaxPoolExt2": ("MaxPool", {}),
    "OneHotD": ("OneHot", {1: "depth"}),
    "PadD": ("Pad", {1: "paddings"}),
    "PadV3D": ("PadV3", {1: "paddings", 2: "constant_values"}),
    "ReduceAllD": ("ReduceAll", {1: "axes"}),
    "ReduceAnyD": ("ReduceAny", {1: "axes"}),
    "ReduceMaxD": ("ReduceMax", {1: "axes"}),
    "ReduceMeanD": ("ReduceMean", {1: "axes"}),
    "ReduceMinD": ("ReduceMin", {1: "axes"}),
    "ReduceProdD": ("ReduceProd", {1: "axes"}),
    "ReduceSumD": ("ReduceSum", {1: "axes"}),
    "ReverseV2D": ("ReverseV2", {1: "axis"}),
    "ScatterElementsV2": ("ScatterElements", {}),
    "SliceD": ("Slice", {1: "offsets", 2: "size"}),
    "SplitVD": ("SplitV", {1: "size_splits", 2: "split_dim"}),
    "StridedSliceD": ("StridedSlice", {1: "begin", 2: "end", 3: "strides"}),
    "StridedSliceV3": ("StridedSliceV2", {}),
    "TensorScatterAdd": ("ScatterNdAdd", {}),
    "TileD": ("Tile", {1: "multiples"}),
    "TransposeD": ("Transpose", {1: "perm"}),
    "TopK": ("TopKV2", {}),
}


def _as_attribute(value: Any, kind: Kind) -> Any:
    """A sibling's operand as an attribute of a kind."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if kind is Kind.INT:
        return int(value[0] if isinstance(value, list) else value)
    flat = [int(v) for v in np.array(value).reshape(-1)]
    return [flat[i : i + 2] for i in range(0, len(flat), 2)] if kind is Kind.LIST_LIST_INT else flat


def derived(op: str, sibling: Case) -> Case | None:
    """A sibling's case as one of ``op``; None if ``op`` lacks an attribute, a port or an element type of it."""
    entry, moved = schema.require(op), SIBLINGS[op][1]
    known = {a.name: a.kind for a in entry.attrs}
    if not set(sibling.attrs) <= set(known):
        return None
    attrs, rest = dict(sibling.attrs), []
    for place, value in enumerate(sibling.inputs):
        if place in moved:
            attrs[moved[place]] = _as_attribute(value, known[moved[place]])
        else:
            rest.append(value)
    for other in schema.require(sibling.op).attrs:  # the sibling's default where it is another one
        twin = next((a for a in entry.attrs if a.name == other.name), None)
        if twin is not None and other.name not in attrs and other.default is not None and twin.default != other.default:
            attrs[other.name] = other.default.value
    for value, port in zip(rest, entry.inputs):
        if isinstance(value, np.ndarray) and from_numpy(value.dtype) not in port.domain:
            return None
    expect = (lambda *_: sibling.expect(*sibling.inputs)) if callable(sibling.expect) else sibling.expect
    return Case(op, tuple(rest), expect, attrs, sibling.name, sibling.keywords, sibling.tolerance)


def cases() -> Iterator[Case]:
    """All cases of this file."""
    of: dict[str, list[Case]] = {}
    for module in (elementwise_cases, shape_cases, index_cases, window_cases):
        for case in module.cases():
            of.setdefault(case.op, []).append(case)
    for op, (sibling, _) in SIBLINGS.items():
        yield from (case for other in of[sibling] if (case := derived(op, other)) is not None)
