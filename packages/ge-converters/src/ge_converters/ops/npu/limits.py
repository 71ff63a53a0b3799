"""What GE refuses of the numbers of a call, as far as they are constant: said while converting, with the user's line.

A number that is symbolic, or in a tensor, is checked where the graph runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ge_converters.base.errors import Refusal
from ge_graph import Tensor

_QUERY: Final = ("actual_seq_lengths", "actual_seq_qlen", "actual_seq_lengths_query")
_KEY: Final = ("actual_seq_lengths_kv", "actual_seq_kvlen", "actual_seq_lengths_key")
_SIZES: Final = {"BSH": (0, 1), "BSND": (0, 1), "BNSD": (0, 2), "SBH": (1, 0), "TND": (None, 0), "NTD": (None, 1)}
_PACKED: Final = ("TND", "NTD")
_STEP: Final = 32  # elements that an int8 unit takes at once


def _numbers(value: Any) -> list[int] | None:
    """A list of constant numbers; None for a tensor, or if one of them is symbolic."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(type(v) is int for v in value):
        return None
    return list(value)


def _size(x: Any, axis: int | None) -> int | None:
    """A constant size of a tensor, or of the first of a list."""
    x = x[0] if isinstance(x, list) and x else x
    shape = x.known_shape if isinstance(x, Tensor) else None
    if shape is None or axis is None or axis >= len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) and size >= 0 else None


def _rising(name: str, ends: Sequence[int]) -> None:
    before = 0
    for end in ends:
        if end < before:
            raise Refusal(f"argument '{name}' is {list(ends)}; pass running sums, which never fall")
        before = end


def lengths_fit(values: Mapping[str, Any]) -> None:
    """Lengths of sequences of an attention: as many as sequences, none longer than what is there; in a packed layout
    running sums, of which the last is the number of rows.
    """
    layout = str(values.get("input_layout", "BSH")).partition("_")[0]
    if layout not in _SIZES:
        return
    paged = values.get("block_table") is not None
    for names, tensor in ((_QUERY, "query"), (_KEY, "key")):
        name = next((n for n in names if _numbers(values.get(n))), None)
        lengths = None if name is None else _numbers(values[name])
        if name is None or lengths is None or (paged and tensor == "key"):
            continue
        batch_axis, row_axis = _SIZES[layout]
        rows = _size(values.get(tensor), row_axis)
        if layout in _PACKED:
            _rising(name, lengths)
            if rows is not None and lengths[-1] != rows:
                raise Refusal(
                    f"argument '{name}' ends with {lengths[-1]}; in layout {layout} the last running sum is the number "
                    f"of rows of '{tensor}', which is {rows}"
                )
            continue
        batch = _size(values.get(tensor), batch_axis)
        if batch is not None and len(lengths) != 1 and len(lengths) < batch:
            raise Refusal(f"argument '{name}' has {len(lengths)} lengths for {batch} sequences; pass one, or one each")
        one_each = lengths if isinstance(values.get(tensor), list) else []
        wrong = [n for n in lengths if n < 0 or (rows is not None and not one_each and n > rows)]
        if wrong:
            raise Refusal(f"argument '{name}' has {wrong[0]}; the sequences of '{tensor}' have 0 to {rows} rows")


def groups_fit(name: str, ends: Any, x: Any) -> None:
    """Ends of groups of rows: they never fall, and none is behind the last row of x."""
    numbers = _numbers(ends)
    if not numbers:
        return
    _rising(name, numbers)
    rows = _size(x, 0)
    if rows is not None and numbers[-1] > rows:
        raise Refusal(f"argument '{name}' ends with {numbers[-1]}; x has {rows} rows")


def group_size_fits(values: Mapping[str, Any]) -> None:
    """Elements of a weight that share a scale: none (0), or a multiple of 32 from 32 to k - 1."""
    size = values.get("antiquant_group_size")
    if type(size) is not int or size == 0:
        return
    most = _size(values.get("x"), 1)
    if size < _STEP or size % _STEP or (most is not None and size > most - 1):
        upper = "k - 1" if most is None else str(most - 1)
        raise Refusal(f"argument 'antiquant_group_size' is {size}; pass 0, or a multiple of 32 from 32 to {upper}")
