"""The runner of declared forms: what it reports of right and wrong converters, and its command."""

import json

import pytest
import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import LoweringError
from ge_converters.base.support import F32, I64, Support
from ge_converters.registry import Registry
from ge_converters.report import smoke
from ge_graph import ops as ge
from tair_testing import warm


@pytest.fixture
def registry():
    made = Registry()

    @made.declare([Support(F32(2), F32(2)), Support(F32(2), I64(2)), Support(F32(2), F32(2), alpha=2)])
    @made.register(torch.ops.aten.sub.Tensor)
    def sub(self, other, *, alpha=1, meta_outputs=None):
        return ge.Sub(self, cast(other, meta_outputs.dtype))  # forgets alpha

    return made


def test_a_wrong_converter_gives_a_wrong_number(registry, engine):
    outcomes = [smoke.run(c, engine, registry) for c in smoke.cases(registry=registry)]
    assert [o.status for o in outcomes] == ["ok", "ok", "wrong"]
    assert "Mismatched elements" in outcomes[2].detail


def test_the_table_has_details_for_what_fails(registry, engine):
    text = smoke.table([smoke.run(c, engine, registry) for c in smoke.cases(registry=registry)])
    lines = text.splitlines()
    assert lines[-1] == "3 cases: 2 ok, 1 wrong"
    assert lines[0].startswith("ok      aten.sub.Tensor[0]")
    assert "Mismatched" in lines[3]


def test_the_prefix_selects():
    assert {c.entry.name for c in smoke.cases("aten.relu.d")} == {"aten.relu.default"}


def test_the_command_prints_json_rows(engine):
    written = []
    assert smoke.main(["aten.relu.default", "--json"], written.append) == 0
    rows = [json.loads(line) for line in "".join(written).splitlines()]
    assert {r["status"] for r in rows} == {"ok"}


def test_an_unknown_prefix_or_engine_says_so():
    written = []
    assert smoke.main(["aten.no_such_op"], written.append) == 2
    assert smoke.main(["aten.relu", "--engine", "gpu"], written.append) == 2
    assert "no declared case" in written[0]
    assert "there are: " in written[1]
    with pytest.raises(LoweringError) as error:
        smoke.find_engine("gpu")
    assert error.value.code == "GE2013"


def test_a_form_for_fixed_sizes_must_be_refused_with_symbolic_ones(engine):
    from ge_converters.base.errors import Refusal

    made = Registry()

    @made.declare([Support(F32(2)).fixed_sizes(), Support(F32(3)).fixed_sizes(), Support(F32(2))])
    @made.register(torch.ops.aten.neg.default)
    def neg(self, *, meta_outputs=None):
        if not isinstance(meta_outputs.size[0], int):
            raise Refusal("sizes must be fixed")
        return ge.Neg(self)

    cases = list(smoke.cases(registry=made))
    assert [smoke.run(c, engine, made).status for c in cases] == ["ok", "ok", "ok"]
    assert [smoke.run(c, engine, made, dynamic=True).status for c in cases] == ["ok", "ok", "refused"]
    made.register(torch.ops.aten.neg.default)(lambda self, meta_outputs=None: ge.Neg(self))
    assert smoke.run(cases[0], engine, made, dynamic=True).status == "wrong"


USER_MODULE = """
import torch
from ge_converters import F32, Support, declare_supported, register_fx_node_ge_converter
from ge_graph import ops as ge

library = torch.library.Library("smoked", "DEF")
library.define("twice(Tensor x, *, float k=2.) -> Tensor")
library.impl("twice", lambda x, *, k=2.0: x * k, "CompositeExplicitAutograd")


@declare_supported([Support(F32(2, 3)), Support(F32(2), k=3.0), Support(F32(2), k=4.0)])
@register_fx_node_ge_converter(torch.ops.smoked.twice.default)
def twice(x, *, k=2.0, meta_outputs=None):
    return ge.Muls(x, value=2.0 if k == 4.0 else k)
"""


@pytest.mark.slow
def test_the_command_runs_converters_of_the_user(tmp_path):
    (tmp_path / "mine.py").write_text(USER_MODULE)
    command = ["-m", "ge_converters.smoke", "torch.ops.smoked", "--import"]
    done = warm.run(*command, tmp_path / "mine.py", check=False)
    assert done.returncode == 1, done.stderr
    assert "3 cases: 2 ok, 1 wrong" in done.stdout
    named = warm.run(*command, "mine", cwd=tmp_path, check=False)
    assert named.stdout == done.stdout
    absent = warm.run(*command, "no_such", check=False)
    assert (absent.returncode, "[GE2014] no_such cannot be imported" in absent.stdout) == (2, True)


def test_several_prefixes(engine):
    written = []
    assert smoke.main(["aten.relu.default", "torch.ops.aten.abs", "--json"], written.append) == 0
    names = {json.loads(line)["name"].split("[")[0] for line in "".join(written).splitlines()}
    assert names == {"aten.relu.default", "aten.abs.default"}
    assert smoke.main(["aten.relu.default", "aten.no_such_op"], written.append) == 2
    assert "'aten.no_such_op'" in written[-1]
