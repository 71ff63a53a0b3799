"""What a saved graph takes to run: inputs of random content, and times of many runs as numbers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tair_export.signature import Input, Signature

_USUAL: Final = 8
_PERCENTILES: Final = (50, 90, 99)


def random_inputs(contract: Signature, sizes: Mapping[str, int], below: int, seed: int) -> list[Any]:
    """A value for each leaf of the arguments: normal numbers, whole numbers below a limit, constants as they are.

    Args:
        sizes: Values of symbols; another symbol is 8, or the nearest that the graph allows.
        below: Whole numbers are at least 0 and less than this.
        seed: Equal seeds give equal inputs.

    Raises:
        ValueError: For a name that is no symbol, and for sizes that follow from others by a formula.
    """
    unknown = sorted(set(sizes) - set(contract.symbols))
    if unknown:
        known = ", ".join(contract.symbols) or "none"
        raise ValueError(f"the graph has no size {', '.join(unknown)}; its sizes that may change are: {known}")
    values = {symbol: sizes.get(symbol, _usual(*limits)) for symbol, limits in contract.symbols.items()}
    source = np.random.default_rng(seed)
    return [_value(each, values, below, source) for each in contract.inputs]


def _usual(low: int | None, high: int | None) -> int:
    return min(max(_USUAL, low or 0), _USUAL if high is None else high)


def _value(given: Input, sizes: Mapping[str, int], below: int, source: np.random.Generator) -> Any:
    if given.kind in ("constant", "opaque"):
        return given.value
    if given.kind == "number":
        return sizes[given.value] if isinstance(given.value, str) else given.value
    odd = [d for d in given.shape if isinstance(d, str) and d not in sizes]
    if odd:
        raise ValueError(f"input {given.name} has the size {odd[0]}, which follows from others: give a file")
    shape = [sizes[d] if isinstance(d, str) else d for d in given.shape]
    assert given.dtype is not None
    if given.dtype.numpy_name is None:
        return _tensor(given, source.standard_normal(shape))
    kind = given.dtype.numpy
    if kind == np.bool_:
        return source.integers(0, 2, shape).astype(kind)
    if np.issubdtype(kind, np.integer):
        return source.integers(0, below, shape).astype(kind)
    return np.asarray(source.standard_normal(shape), kind)


def _tensor(given: Input, values: Any) -> Any:
    """A tensor of a type that numpy lacks."""
    import torch

    assert given.dtype is not None
    if not given.dtype.is_float or given.dtype.torch_name is None:
        raise ValueError(f"input {given.name}: there are no random values of type {given.dtype.name}")
    return torch.from_numpy(np.asarray(values, np.float32)).to(getattr(torch, given.dtype.torch_name))


def times(run: Callable[[], object], *, warm_up: int, iterations: int) -> list[float]:
    """Seconds of each run after the first few, which are not counted."""
    for _ in range(warm_up):
        run()
    found = []
    for _ in range(iterations):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def described(seconds: Sequence[float], warm_up: int) -> dict[str, Any]:
    """Numbers of some runs: milliseconds by percentile (the smallest time that so many of 100 runs do not exceed), and
    runs a second, one after the other."""
    ordered = sorted(seconds)
    by_rank = {f"p{p}_ms": 1e3 * ordered[max(math.ceil(p / 100 * len(ordered)), 1) - 1] for p in _PERCENTILES}
    return {
        "iterations": len(ordered),
        "warm_up": warm_up,
        "mean_ms": 1e3 * statistics.fmean(ordered),
        "min_ms": 1e3 * ordered[0],
        **by_rank,
        "max_ms": 1e3 * ordered[-1],
        "runs_per_second": len(ordered) / sum(ordered) if sum(ordered) else math.inf,
    }
