"""Windows and frequencies made by formula are those of torch."""

import pytest
import torch

from ge_converters.decompose.formulas.made_numbers import FORMULAS

aten = torch.ops.aten
MORE = {"periodic_alpha": (0.6,), "periodic_alpha_beta": (0.6, 0.3), "beta": (7.5,)}


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float16])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 16])
@pytest.mark.parametrize("name", [n for n in FORMULAS if "window" in n])
def test_windows(name, length, dtype):
    packet, overload = name.split(".")
    for periodic in (True, False) if overload != "default" else (None,):
        args = (length, *([] if periodic is None else [periodic]), *MORE.get(overload, ()))
        want = getattr(getattr(aten, packet), overload)(*args, dtype=dtype)
        got = FORMULAS[name](*args, dtype=dtype)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, atol=2e-3 if dtype is torch.float16 else 1e-6, rtol=0)


@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_frequencies(name, length, step):
    got = FORMULAS[f"fft_{name}.default"](length, step)
    torch.testing.assert_close(got, getattr(torch.fft, name)(length, step))
