"""Rounding to each format is bit-exact: all patterns of 16 and 8 bits, a million random float32, and every tie.

The truth is a table of all numbers of a format, written here from its published coding, and the nearest number in it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ge_graph.dtypes import DataType
from ge_runtime.cpu.formats import FORMATS, hf32, in_range

COUNT = 1_000_000


def of_fields(exponent: int, mantissa: int, bias: int, finite: Callable[[int, int], bool]) -> list[float]:
    """Numbers of all codes without sign of a format with plain fields, in their order; NaN where not finite."""
    numbers = []
    for e in range(1 << exponent):
        for m in range(1 << mantissa):
            value = 2.0 ** (max(e, 1) - bias) * ((e > 0) + m / (1 << mantissa))
            numbers.append(value if finite(e, m) else np.nan)
    return numbers


def of_hif8() -> list[float]:
    """The 128 codes without sign by dot field (2 to 4 bits), exponent (sign and magnitude, leading one left out)."""
    numbers = []
    for code in range(128):
        bits = f"{code:07b}"
        if bits.startswith("0000"):  # denormal: a power of two from 2**-22 on; the first code is zero
            m = int(bits[4:], 2)
            numbers.append(2.0 ** (m - 23) if m else 0.0)
            continue
        prefix, stored = next(
            (p, n) for p, n in (("0001", -1), ("001", 0), ("01", 1), ("10", 2), ("11", 3)) if bits.startswith(p)
        )
        rest = bits[len(prefix) :]
        e = 0
        if stored >= 0:
            e = int("1" + rest[1 : 1 + stored], 2) * (-1 if rest[0] == "1" else 1)
            rest = rest[1 + stored :]
        numbers.append(np.inf if code == 0b1101111 else 2.0**e * (1 + int(rest, 2) / 2 ** len(rest)))
    return numbers


def always(e: int, m: int) -> bool:
    return True


# type: numbers by code, whether ties go away from zero, what is above the largest, what NaN is
TABLES = {
    DataType.DT_FLOAT16: (of_fields(5, 10, 15, lambda e, m: e < 31), False, np.inf, np.nan),
    DataType.DT_BF16: (of_fields(8, 7, 127, lambda e, m: e < 255), False, np.inf, np.nan),
    DataType.DT_FLOAT8_E5M2: (of_fields(5, 2, 15, lambda e, m: e < 31), False, np.inf, np.nan),
    DataType.DT_FLOAT8_E4M3FN: (of_fields(4, 3, 7, lambda e, m: (e, m) != (15, 7)), False, np.nan, np.nan),
    DataType.DT_HIFLOAT8: (of_hif8(), True, np.inf, np.nan),
    DataType.DT_FLOAT6_E3M2: (of_fields(3, 2, 3, always), False, 28.0, 0.0),
    DataType.DT_FLOAT6_E2M3: (of_fields(2, 3, 1, always), False, 7.5, 0.0),
    DataType.DT_FLOAT4_E2M1: (of_fields(2, 1, 1, always), False, 6.0, 0.0),
    DataType.DT_FLOAT4_E1M2: (of_fields(1, 2, 1, always), False, 1.75, 0.0),
}


@np.errstate(invalid="ignore", over="ignore")
def nearest(x: np.ndarray, kind: DataType) -> np.ndarray:
    """The number of the table next to each float32; of two equally near ones the even code, or the larger."""
    numbers, away, beyond, of_nan = TABLES[kind]
    x = x.astype(np.float64)
    codes = np.array(numbers)
    order = np.argsort(np.where(np.isfinite(codes), codes, np.inf), kind="stable")
    order = order[np.isfinite(codes[order])]
    values, size = codes[order], np.abs(x)
    step = values[-1] - values[-2]
    step = {DataType.DT_HIFLOAT8: 2.0**14}.get(kind, step)
    above = np.searchsorted(values, size).clip(1, len(values) - 1)
    low, high = values[above - 1], values[above]
    middle = (low + high) / 2
    even = order[above] % 2 == 0
    up = (size > middle) | ((size == middle) & (even | away))
    result = np.where(up, high, low)
    limit = values[-1] + step / 2  # the last number is of an odd code unless said otherwise
    odd = order[-1] % 2 == 1
    result = np.where((size > limit) | ((size == limit) & (odd | away)), beyond, result)
    result = np.where(np.isnan(size), of_nan, result).astype(np.float32)
    unsigned = np.isnan(x) | ((result == 0) & (kind is DataType.DT_HIFLOAT8))
    return np.where(unsigned, result, np.copysign(result, x)).astype(np.float32)


@np.errstate(invalid="ignore", over="ignore")
def operands(kind: DataType) -> np.ndarray:
    """All float16 and bfloat16, random float32 of all sizes and of the format's range, and its numbers and ties."""
    rng = np.random.default_rng(3)
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    bf16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    anything = rng.integers(0, 1 << 32, COUNT // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers = np.array(TABLES[kind][0])
    values = np.sort(numbers[np.isfinite(numbers)])
    near = (rng.choice(values, COUNT // 2) * rng.uniform(0.5, 2.0, COUNT // 2)).astype(np.float32)
    ties = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(ties, np.float32(s * np.inf), dtype=np.float32) for s in (1, -1)]
    positive = np.concatenate([values.astype(np.float32), ties, *beside])
    return np.concatenate(
        [half, bf16, anything, near * rng.choice([-1, 1], near.size).astype(np.float32), positive, -positive]
    )


def bits(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_every_float32_becomes_the_nearest_number(kind: DataType) -> None:
    x = operands(kind)
    got = FORMATS[kind](torch.from_numpy(x)).numpy()
    wrong = np.flatnonzero(bits(got) != bits(nearest(x, kind)))
    assert not wrong.size, [(x[i], got[i], nearest(x, kind)[i]) for i in wrong[:5]]


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_every_code_stays_what_it_is(kind: DataType) -> None:
    numbers = np.array(TABLES[kind][0], dtype=np.float32)
    numbers = np.concatenate([numbers[np.isfinite(numbers)], -numbers[np.isfinite(numbers) & (numbers != 0)]])
    assert np.array_equal(bits(FORMATS[kind](torch.from_numpy(numbers)).numpy()), bits(numbers))


def test_types_that_torch_has_are_those_of_its_codes() -> None:
    for dtype, kind in ((torch.float8_e4m3fn, DataType.DT_FLOAT8_E4M3FN), (torch.float8_e5m2, DataType.DT_FLOAT8_E5M2)):
        codes = torch.arange(128, dtype=torch.uint8).view(dtype).float().numpy()
        table = np.array(TABLES[kind][0], dtype=np.float32)
        assert np.array_equal(codes[np.isfinite(codes)], table[np.isfinite(table)])


@pytest.mark.parametrize("away", [False, True])
def test_hf32_has_eleven_bits_of_mantissa(away: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    bf16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    tie = ((rng.integers(0, 0x7F7FF, 4096, dtype=np.uint32) << 12) | 0x800).view(np.float32)
    x = np.concatenate([x, half, bf16, tie, -tie])
    got = hf32(torch.from_numpy(x), away=away).numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        mantissa, exponent = np.frexp(x.astype(np.float64))  # mantissa in [0.5, 1)
        quantum = np.maximum(exponent, -125) - 12.0
        steps = np.ldexp(x.astype(np.float64), -quantum.astype(int))
        whole = np.trunc(steps + np.copysign(0.5, steps)) if away else np.rint(steps)
        wanted = np.ldexp(whole, quantum.astype(int)).astype(np.float32)
    wanted = np.where(np.isfinite(x), wanted, x)
    assert np.array_equal(bits(got), bits(wanted))
    kept = got[np.isfinite(got)].view(np.uint32)
    assert not (kept & 0xFFF).any()
    assert np.array_equal(bits(hf32(torch.from_numpy(half), away=away).numpy()), bits(half))  # it holds every float16


def test_saturation_has_no_infinity_and_no_nan() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0]).to(dtype)
        largest = torch.finfo(dtype).max
        assert in_range(x, dtype).tolist() == [largest, -largest, 0.0, 2.0]
        assert in_range(x, dtype).dtype is dtype
    assert in_range(torch.tensor([torch.inf]), torch.float16).item() == 65504.0


def test_strided_and_empty_operands() -> None:
    x = torch.randn(6, 4)
    for kind, rounded in FORMATS.items():
        assert torch.equal(rounded(x.T), rounded(x.T.contiguous())), kind
        assert rounded(x[:0]).shape == (0, 4)
        assert rounded(x[0, 0]).shape == ()
    assert torch.equal(hf32(x.T), hf32(x).T)
