"""Every declared form of every built-in converter: lowered, run on the embedded engine, compared with eager.

With symbolic sizes runs each form that has a value of an argument which no earlier one has, apart from element types
and bounds; what a type changes, and values in other combinations, show with fixed sizes.
"""

import itertools
import re
from pathlib import Path

import pytest
import torch

from ge_converters.registry import REGISTRY
from ge_converters.report import smoke

CASES = list(smoke.cases())
CASES_OF = {name: list(cases) for name, cases in itertools.groupby(CASES, lambda c: c.entry.name)}
NAMES = sorted(CASES_OF)
# Ops whose shapes torch itself cannot trace with symbolic sizes; they are served with fixed ones.
UNTRACED = {
    "aten._standard_gamma_grad.default",
    "aten.binomial.default",
    "aten.hardshrink_backward.default",
    "aten.resize.default",
    "aten.softshrink_backward.default",
}
# Converters without a declared form: eager does not run the op here, its library may be absent, or it needs several
# processes.
ELSEWHERE = {
    "quantized_decomposed.quantize_per_tensor.default": "test_quantized_formulas.py",
    "aten._fused_rms_norm_backward.default": "test_attention_and_norms.py",
    "torchair._fused_rms_norm.default": "test_attention_and_norms.py",
    "aten._scaled_dot_product_fused_attention_overrideable.default": "test_attention_and_norms.py",
    "transformers.grouped_mm_fallback.default": "test_attention_and_norms.py",
    "transformers.grouped_mm_fallback_backward.default": "test_attention_and_norms.py",
}
_TYPE = re.compile(r"\b(?:[BF]?F|I|U|C)\d+(?=\()|\bBOOL(?=\()|\btorch\.(?:b?float|complex|u?int|bool)\d*\b")
_BOUNDS = re.compile(r"(?:, )?\b(?:low|high)=[^,)]+")


def _param(value, name, *, quick):
    return pytest.param(value, id=name, marks=() if quick else pytest.mark.slow)


def _forms(name):
    """The forms of an op that bring a new value of some argument, or other arguments; types and bounds apart."""
    seen, chosen = set(), []
    for case in CASES_OF[name]:
        form = case.support
        arguments = [*enumerate(form.args), *form.kwargs.items()]
        values = {(key, _BOUNDS.sub("", _TYPE.sub("T", repr(value)))) for key, value in arguments}
        values.add(("given", tuple(key for key, _ in arguments), form.fixed, form.outputs))
        if not values <= seen:
            chosen.append(case)
        seen |= values
    return chosen


def _failures(outcomes):
    return "\n".join(f"{o.status} {o.form}\n{o.detail}" for o in outcomes if o.status not in ("ok", "untraced"))


@pytest.mark.parametrize("case", [c for c in CASES if c.index == 0], ids=lambda c: c.entry.name)
def test_the_first_form_equals_eager(case, engine):
    assert _failures([smoke.run(case, engine)]) == ""


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if len(CASES_OF[n]) > 1])
def test_all_other_forms_equal_eager(name, engine):
    _, *others = CASES_OF[name]
    assert _failures(smoke.run(case, engine) for case in others) == ""


@pytest.mark.night(rows=9)
@pytest.mark.parametrize("name", [_param(n, n, quick=i % 5 == 0) for i, n in enumerate(NAMES)])
def test_equals_eager_with_symbolic_sizes(name, engine):
    outcomes = [smoke.run(case, engine, dynamic=True) for case in _forms(name)]
    untraced = [o for o in outcomes if o.status == "untraced"]
    assert bool(untraced) == (name in UNTRACED), untraced
    assert _failures(outcomes) == ""


def test_every_converter_has_a_form_or_is_proven_elsewhere():
    entries = [e for e in REGISTRY.entries() if e.layer == "built-in" and not e.refuses]
    bare = {e.name for e in entries if not e.supports}
    collectives = {n for n in bare if n.startswith("_c10d_functional.")}  # test_collectives.py asks for a case of each
    of_torch_npu = {n for n in bare if n.startswith("npu.")}  # here once a test has defined them; see test_npu_ops.py
    # served once transformers, torch.ao.quantization or torchair is loaded; the operator that came with torch 2.9
    absent = {n for n in ELSEWHERE if n.startswith(("transformers.", "quantized_decomposed.", "torchair."))} - bare
    if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        absent.add("aten._fused_rms_norm_backward.default")
    assert bare - collectives - of_torch_npu == set(ELSEWHERE) - absent
    for name, file in ELSEWHERE.items():
        assert name.split(".")[1] in Path(__file__).with_name(file).read_text(encoding="utf-8")


def test_every_converter_names_its_source():
    assert [e.name for e in REGISTRY.entries() if e.layer == "built-in" and not e.source] == []
