"""The authoring contract: what may be registered, what wins, what is explained."""

import importlib.util
import logging
import math
import operator
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters import F32, LoweringError, Refusal, Support, dtype_promote
from ge_converters.base import operators
from ge_converters.base.provenance import target_name
from ge_converters.lowering import lower
from ge_converters.lowering.explain import Absent, Convertible, Refused, explain
from ge_converters.registry import REGISTRY, Registry
from ge_converters.registry import registry as registry_module
from ge_graph import ops as ge
from tair_testing import warm

aten = torch.ops.aten


@pytest.fixture
def registry():
    return Registry()


def add(self, other, *, alpha=1, meta_outputs=None):
    self, other = dtype_promote(self, other, target_dtype=meta_outputs.dtype)
    return ge.Add(self, other)


def refused(registry, target, fn, code):
    with pytest.raises(LoweringError) as error:
        registry.register(target)(fn)
    assert error.value.code == code
    return error.value


def test_the_schema_s_own_signature_is_accepted(registry):
    assert registry.register(aten.add.Tensor)(add) is add
    assert registry.find(aten.add.Tensor).fn is add


def test_meta_outputs_may_be_left_out_and_out_may_be_there(registry):
    def twice(self, out=None):
        return ge.Add(self, self)

    registry.register(aten.neg.default)(twice)
    assert not registry.find(aten.neg.default).wants_meta


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda self, othr, *, alpha=1, meta_outputs=None: None, ["'other' is missing", "'othr' is not in the schema"]),
        (lambda self, other, alpha=1, *, meta_outputs=None: None, ["'alpha' must be keyword-only"]),
        (lambda self, *, other, alpha=1, meta_outputs=None: None, ["'other' must be positional"]),
        (lambda other, self, *, alpha=1, meta_outputs=None: None, ["order other, self"]),
        (lambda self, other, *, meta_outputs=None: None, ["'alpha' is missing"]),
    ],
)
def test_a_wrong_signature_is_refused_with_place_and_right_signature(registry, fn, words):
    error = refused(registry, aten.add.Tensor, fn, "GE2002")
    assert all(w in error.what for w in words)
    assert error.where.endswith(f"test_registry.py:{fn.__code__.co_firstlineno}")
    assert "(self, other, *, alpha=1, meta_outputs)" in error.next


def test_a_schema_name_that_python_reserves_gets_an_underscore(registry):
    def uniform(self, from_=0.0, to=1.0, *, generator=None, meta_outputs=None): ...

    registry.register(aten.uniform.default)(uniform)


def test_a_packet_is_refused_with_its_overloads(registry):
    error = refused(registry, aten.add, add, "GE2003")
    assert "torch.ops.aten.add.Tensor" in error.next
    assert ".out" not in error.next


@pytest.mark.parametrize("target", [3, int])
def test_other_targets_are_refused(registry, target):
    refused(registry, target, add, "GE2003")


def test_functions_can_be_targets(registry):
    registry.register(math.floor)(lambda x, meta_outputs=None: x)
    assert target_name(math.floor) == "math.floor"
    assert target_name(operator.add) == "operator.add"
    assert registry.find(math.floor) is not None


def test_a_later_user_converter_overrides_and_can_be_taken_back(registry):
    registry._loading = True
    registry.register(aten.add.Tensor)(add)
    registry._loading = False

    def mine(self, other, *, alpha=1, meta_outputs=None): ...

    def newer(self, other, *, alpha=1, meta_outputs=None): ...

    before = registry.revision
    registry.register(aten.add.Tensor)(mine)
    registry.register(aten.add.Tensor)(newer)
    assert registry.revision > before
    assert registry.find(aten.add.Tensor).fn is newer
    registry.unregister(aten.add.Tensor)
    assert registry.find(aten.add.Tensor).fn is add


def test_two_built_in_converters_of_one_op_are_an_error(registry):
    def module():
        def mine(self, other, *, alpha=1, meta_outputs=None): ...

        return mine

    def other(self, other, *, alpha=1, meta_outputs=None): ...

    registry._loading = True
    registry.register(aten.add.Tensor)(module())
    registered = registry.register(aten.add.Tensor)(module())  # a module that is imported twice
    refused(registry, aten.add.Tensor, other, "GE2004")
    refused(registry, aten.add.Tensor, registered, "GE2004")  # the upper of two decorators, which takes the forms away


def test_a_converter_by_name_waits_for_the_library_and_is_checked_then(registry):
    @registry.register("waiting.good.default")
    def good(x, *, meta_outputs=None): ...

    @registry.register("waiting.bad.default")
    def bad(y, *, meta_outputs=None): ...

    library = torch.library.Library("waiting", "DEF")
    library.define("good(Tensor x) -> Tensor")
    library.define("bad(Tensor x) -> Tensor")
    assert registry.find(torch.ops.waiting.good.default).fn is good
    for _ in range(2):
        with pytest.raises(LoweringError, match="'x' is missing"):
            registry.find(torch.ops.waiting.bad.default)


def test_a_name_taken_twice_keeps_both_layers():
    """The user names an op before and after the families do: the user's converter wins, the built-in one stays."""
    registry = Registry()

    def built_in(x, *, meta_outputs=None): ...

    def mine(x, *, meta_outputs=None): ...

    built_in.__module__ = "ge_converters.ops.somewhere"
    name = "waiting_twice.same.default"
    registry.register(name)(mine)
    registry.register(name)(built_in)
    before = registry.foreign()
    assert before == [(name, (mine, None))]
    assert [n for n, _ in registry.awaited()] == [name]
    library = torch.library.Library("waiting_twice", "DEF")
    try:
        library.define("same(Tensor x) -> Tensor")
        op = torch.ops.waiting_twice.same.default
        assert registry.find(op).fn is mine
        assert not list(registry.awaited())
        assert registry.foreign() == before
        registry.unregister(op)
        assert registry.foreign() == [(name, (built_in, None))]  # ours by its module, registered by this file
        assert registry.find(op).fn is built_in
    finally:
        library._destroy()


def test_a_converter_by_name_serves_a_library_that_is_made_anew(registry):
    def mine(x, *, meta_outputs=None): ...

    registry.register("made_anew.same.default")(mine)
    for last in (False, True):
        library = torch.library.Library("made_anew", "DEF")
        try:
            library.define("same(Tensor x) -> Tensor")
            op = torch.ops.made_anew.same.default
            assert registry.find(op).fn is mine
            if last:
                registry.unregister(op)
                assert registry.find(op) is None
        finally:
            library._destroy()
    library = torch.library.Library("made_anew", "DEF")
    try:
        library.define("same(Tensor x) -> Tensor")
        assert registry.find(torch.ops.made_anew.same.default) is None  # who was told to go stays away
    finally:
        library._destroy()


def test_a_converter_by_name_of_a_loaded_op_is_registered_at_once(registry):
    registry._loading = True
    registry.register(aten.add.Tensor)(add)
    registry._loading = False

    @registry.register("aten.add.Tensor")
    def mine(self, other, *, alpha=1, meta_outputs=None): ...

    assert registry.find(aten.add.Tensor).fn is mine
    refused(registry, "aten.sub.Tensor", lambda self, *, meta_outputs=None: None, "GE2002")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nonsense", "is not a name of an overload"),
        ("aten.add", "is not a name of an overload"),
        ("aten.no_such_op.default", "torch has no operator"),
        ("aten.add.Tnsor", "aten.add.Tensor"),
        (torch.add, "torch.add never occurs"),
        (torch.nn.functional.relu, "never occurs"),
        (torch.ops.higher_order.cond, "runs functions"),
        (torch.cond, "torch.cond never occurs"),
        (add, "given the converter add instead of an operator"),
    ],
    ids=lambda v: v if isinstance(v, str) else getattr(v, "__name__", str(v)),
)
def test_targets_that_no_graph_has_are_refused(registry, target, words):
    with pytest.raises(LoweringError, match=words.replace(".", r"\.")) as error:
        registry.register(target)(add)
    assert error.value.code == "GE2003"


def test_converters_of_composite_ops_are_warned_about(registry, caplog):
    caplog.set_level(logging.WARNING, "ge_converters")
    registry.register(aten.linear.default)(lambda input, weight, bias=None, *, meta_outputs=None: None)
    assert "aten.linear.default is composite" in caplog.text
    caplog.clear()
    registry.register(aten.add.Tensor)(add)
    assert not caplog.text


def test_a_family_that_cannot_be_imported_is_named():
    with pytest.raises(LoweringError, match="no_such_module_here") as error:
        Registry(lambda: ["no_such_module_here"]).find(aten.add.Tensor)
    assert error.value.code == "GE2010"


def of_another_torch(name, text, monkeypatch, tmp_path):
    """A registry with one built-in family, the text of a module."""
    folder = tmp_path / "ge_converters_tests"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(f"ge_converters.{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    registry = Registry(lambda: [f"ge_converters.{name}"])
    module.REGISTRY = registry
    monkeypatch.setattr("importlib.import_module", lambda _: spec.loader.exec_module(module))
    return registry


BUILT_IN = """
from ge_converters.base.operators import aten
from ge_graph import ops as ge

@REGISTRY.register(aten.sin.default, source="s")
def sin(other_name, *, meta_outputs): return ge.Sin(other_name)

@REGISTRY.register(aten.no_such_operator.default, source="s")
def gone(self, *, meta_outputs): return ge.Sin(self)

@REGISTRY.register(aten.cos.no_such_overload, source="s")
def cos(self, *, meta_outputs): return ge.Cos(self)

@REGISTRY.register("aten.no_such_name.default", source="s")
def named(self, *, meta_outputs): return ge.Cos(self)

@REGISTRY.register(aten.add.Tensor, source="s")
def add(other, self, *, alpha=1, meta_outputs): return ge.Add(self, other)

@REGISTRY.register(aten.leaky_relu.default, source="s")
def leaky_relu(self, slopes: "Sequence[float]" = (), *, meta_outputs): return ge.LeakyRelu(self)

@REGISTRY.register(aten.permute.default, source="s")
def permute(self, order: "Sequence[int]", *, meta_outputs): return ge.Transpose(self, order)

@REGISTRY.register({aten.clamp.default: ()}, source="s", names={"lowest": "min"})
def clamp(self, min=None, max=None, *, meta_outputs): return self

@REGISTRY.register(aten.neg.default, source="s")
def neg(self, *, meta_outputs): return ge.Neg(self)
"""


def test_a_built_in_converter_that_does_not_fit_this_torch_costs_its_op_only(monkeypatch, tmp_path):
    registry = of_another_torch("family_of_this_test", BUILT_IN, monkeypatch, tmp_path)
    assert registry.find(aten.neg.default).layer == "built-in"
    assert registry.find(aten.sin.default).layer == "built-in"  # another name for the argument in its place
    assert registry.find(aten.permute.default).layer == "built-in"  # likewise, for a list
    assert registry.find(aten.leaky_relu.default) is None  # a number, where the converter takes a list
    assert registry.find(aten.add.Tensor) is None
    assert "does not fit torch" in registry.why_not_derived(aten.add.Tensor)
    reasons = {row.name: (row.absent, row.reason) for row in registry.left_out()}
    assert reasons.keys() == {
        "aten.no_such_operator.default",
        "aten.cos.no_such_overload",
        "aten.no_such_name.default",
        "aten.add.Tensor",
        "aten.clamp.default",
        "aten.leaky_relu.default",
    }
    assert "order other, self" in reasons["aten.add.Tensor"][1]
    assert "names renames 'lowest'" in reasons["aten.clamp.default"][1]
    assert [name for name, (absent, _) in reasons.items() if not absent] == [
        "aten.add.Tensor",
        "aten.clamp.default",
        "aten.leaky_relu.default",
    ]


def test_the_graph_that_needs_such_an_op_is_refused_with_the_reason(monkeypatch, tmp_path):
    registry = of_another_torch("family_of_this_test", BUILT_IN, monkeypatch, tmp_path)
    gm = make_fx(lambda x: x + x, tracing_mode="fake")(torch.ones(2))
    with pytest.raises(LoweringError, match=r"GE2001[\s\S]*does not fit torch [\s\S]*order other, self"):
        lower(gm, registry=registry)


def test_every_built_in_converter_fits_this_torch():
    assert [row for row in REGISTRY.left_out() if not row.absent] == []


def test_families_load_whatever_torch_lacks():
    """With no operator of aten at all, every family loads, and what it lacks is named."""
    code = """
import torch
from ge_converters.base import operators
operators.Namespace.__getattr__ = lambda self, name: operators._Packet(f"{self._name}.{name}", None)
from ge_converters.registry import REGISTRY
left_out = REGISTRY.left_out()
print(len(left_out), all(row.absent for row in left_out))
"""
    count, absent = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(count) > 400
    assert absent == "True"


def test_an_operator_that_torch_lacks_is_known_by_its_name():
    missing = operators.aten.no_such_operator.default
    assert missing == "aten.no_such_operator.default"
    with pytest.raises(LoweringError, match="has no operator aten.no_such_operator.default") as error:
        missing(torch.ones(2))
    assert error.value.code == "GE2003"
    assert operators.aten.add.Tensor is aten.add.Tensor


def test_threads_that_come_first_wait_for_each_other():
    import sys
    import threading
    import time

    registry = Registry(lambda: ["slow_family_of_this_test"])

    class Finder:
        def find_spec(self, name, path=None, target=None):
            import importlib.machinery

            if name != "slow_family_of_this_test":
                return None
            return importlib.machinery.ModuleSpec(name, self)

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            time.sleep(0.2)
            registry.register(aten.add.Tensor)(add)

    finder = Finder()
    sys.meta_path.append(finder)
    found = []
    try:
        threads = [threading.Thread(target=lambda: found.append(registry.find(aten.add.Tensor))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("slow_family_of_this_test", None)
    assert len(found) == 4
    assert all(e is not None and e.fn is add for e in found)


@pytest.mark.parametrize("declare_first", [True, False])
def test_declarations_stack_in_either_order(registry, declare_first):
    forms = [Support(F32(2, 2), 2.0)]
    if declare_first:
        registry.register(aten.add.Tensor)(registry.declare(forms)(add))
    else:
        registry.declare(forms)(registry.register(aten.add.Tensor)(add))
    assert registry.find(aten.add.Tensor).supports == tuple(forms)


def test_a_declaration_takes_supports_only(registry):
    with pytest.raises(LoweringError, match="entry 1 is TensorLike"):
        registry.declare([Support(F32(2)), F32(2)])


@pytest.mark.parametrize("wrong", [lambda r: r.declare(Support(F32(2))), lambda r: r.declare(F32(2))])
def test_a_declaration_takes_a_list(registry, wrong):
    with pytest.raises(LoweringError, match="GE2005"):
        wrong(registry)


@pytest.mark.parametrize("size", ["a", -1, 2.5, [2, 2]])
def test_stand_ins_take_sizes(size):
    with pytest.raises(LoweringError, match="F32 takes sizes"):
        F32(size)


# -- one function for several ops ------------------------------------------------------------------------------------


def quotient(self, other, *, rounding_mode=None, meta_outputs=None):
    return self, other, rounding_mode


def test_one_function_serves_several_overloads_each_with_its_own_forms(registry):
    tensors, numbers = [Support(F32(2), F32(2))], [Support(F32(2), 2.0)]
    registry.register({aten.div.Tensor: tensors, aten.div.Scalar_mode: numbers, aten.mul.Tensor: []})(quotient)
    registry.register({aten.floor_divide.default: numbers}, fixed={"rounding_mode": "floor"})(quotient)
    assert registry.find(aten.div.Tensor).supports == tuple(tensors)
    assert registry.find(aten.div.Scalar_mode).supports == tuple(numbers)
    assert registry.find(aten.mul.Tensor).supports == ()
    assert registry.find(aten.div.Scalar_mode).fn is quotient  # its arguments stand where the parameters do
    floor = registry.find(aten.floor_divide.default)
    assert floor.fn(1, 2, meta_outputs=None) == (1, 2, "floor")
    assert floor.where == registry.find(aten.div.Tensor).where
    registry.declare(numbers)(quotient)  # what is declared of the function holds for all of them
    assert registry.find(aten.div.Tensor).supports == (*tensors, *numbers)


def test_arguments_reach_the_parameters_that_stand_for_them(registry):
    def held(x, low=None, high=None, *, meta_outputs=None):
        return x, low, high

    names = {"self": "x", "max": "high", "min_val": "low", "max_val": "high"}
    registry.register(dict.fromkeys((aten.clamp_max.default, aten.hardtanh.default), ()), names=names)(held)
    assert registry.find(aten.clamp_max.default).fn(1, 2, meta_outputs=None) == (1, None, 2)
    assert registry.find(aten.hardtanh.default).fn(1, 2, 3, meta_outputs=None) == (1, 2, 3)


def test_the_arguments_of_a_decorator_count_for_those_above_it(registry):
    @registry.register({aten.ones.default: ()}, fixed={"fill_value": 1})
    @registry.register({aten.full.default: (), aten.new_full.default: ()})
    def full(size, fill_value, self=None, *, dtype=None, meta_outputs=None):
        return size, fill_value, self

    assert registry.find(aten.ones.default).fn([2], meta_outputs=None) == ([2], 1, None)
    assert registry.find(aten.new_full.default).fn("x", [2], 3, meta_outputs=None) == ([2], 3, "x")


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        ((aten.div.Tensor_mode, aten.add.Tensor), {}, "'alpha' is missing"),
        ((aten.div.Tensor,), {}, "'rounding_mode' is not in the schema"),
        ((aten.div.Tensor,), {"fixed": {"rounding_mode": "floor", "mode": 1}}, "'mode' is fixed and no parameter"),
        ((aten.div.Tensor_mode,), {"fixed": {"rounding_mode": "floor"}}, "'rounding_mode' is fixed and an argument"),
        ((aten.div.Tensor_mode,), {"names": {"otter": "other"}}, "no op has such an argument"),
        ((aten.div.Tensor_mode,), {"names": {"other": "divisor"}}, "'divisor', for 'other', is no parameter"),
    ],
)
def test_each_overload_s_arguments_are_compared_with_the_parameters(registry, targets, options, words):
    with pytest.raises(LoweringError, match=words) as error:
        registry.register(dict.fromkeys(targets, ()), **options)(quotient)
    assert error.value.code == "GE2002"


def test_a_parameter_that_another_overload_lacks_needs_a_default(registry):
    def scaled(self, other, alpha, *, meta_outputs=None): ...

    with pytest.raises(LoweringError, match="'alpha' is not in the schema"):
        registry.register({aten.add.Tensor: (), aten.mul.Tensor: ()})(scaled)


def test_a_function_of_any_arguments_has_no_names_to_be_called_by(registry):
    with pytest.raises(LoweringError, match=r"'\*args' has no names"):
        registry.register({aten.neg.default: ()})(lambda *args, meta_outputs=None: None)


def test_fixed_values_are_for_overloads(registry):
    with pytest.raises(LoweringError, match="math.floor has no schema") as error:
        registry.register(math.floor, fixed={"mode": 1})(lambda x, mode: x)
    assert error.value.code == "GE2003"


def test_forms_beside_an_op_are_supports(registry):
    with pytest.raises(LoweringError, match="entry 0 is TensorLike") as error:
        registry.register({aten.neg.default: [F32(2)]})
    assert error.value.code == "GE2005"


def test_ops_of_a_library_that_is_not_loaded_wait_with_their_forms(registry):
    forms = [Support(F32(2))]

    @registry.register({"waiting_row.scaled.default": forms, aten.neg.default: ()}, fixed={"factor": 3})
    def scaled(self, *, factor, meta_outputs=None):
        return self, factor

    library = torch.library.Library("waiting_row", "DEF")
    try:
        library.define("scaled(Tensor self) -> Tensor")
        entry = registry.find(torch.ops.waiting_row.scaled.default)
        assert entry.fn(1, meta_outputs=None) == (1, 3)
        assert entry.supports == tuple(forms)
    finally:
        library._destroy()


def test_explain_runs_the_converter(registry):
    registry.register(aten.add.Tensor)(add)

    @registry.register(aten.sum.default)
    def total(self, *, dtype=None, meta_outputs=None):
        raise Refusal("dtype=None is not served")

    gm = make_fx(lambda x: (x + x).sum() + x.add(1).cos() + torch.add(x, 1, alpha=2), tracing_mode="fake")(
        torch.ones(2)
    )
    answers = {n.name: explain(n, registry) for n in gm.graph.nodes if n.op == "call_function"}
    assert isinstance(answers["add"], Convertible)
    assert answers["sum_1"] == Refused("dtype=None is not served")
    assert isinstance(answers["cos"], Absent)


def test_near_names_other_overloads_first(registry):
    registry.register(aten.add.Tensor)(add)
    assert registry.near(aten.add.Scalar) == ("aten.add.Tensor",)
    assert registry.near(aten.cos.default) == ()


@pytest.mark.slow
def test_the_import_loads_no_converter():
    code = (
        "import torch, sys; known = len(sys.modules); import ge_converters;"
        "assert not any(m.startswith('ge_converters.ops') for m in sys.modules); assert len(sys.modules) - known < 60"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PRINTS = """
import torch
from ge_converters.registry import REGISTRY
from ge_converters.registry.registry import register_fx_node_ge_converter
{before}
print("+".join(n for n, _ in REGISTRY.foreign()) or "-", len(REGISTRY._built_in))
REGISTRY.load()
print("+".join(n for n, _ in REGISTRY.foreign()) or "-", len(REGISTRY._built_in))
"""
MINE = """
def mine(self, *, meta_outputs): ...
register_fx_node_ge_converter(torch.ops.aten.abs.default)(mine)
"""
BORROWED = """
from ge_converters.ops.elementwise import abs_default as borrowed
register_fx_node_ge_converter(torch.ops.aten.sgn.default)(borrowed)
"""


@pytest.mark.slow
def test_the_fingerprint_needs_none_of_our_converters_and_knows_those_of_others():
    """The same before and after our own load, another with a converter of somebody, be its function ours or not."""
    found = []
    for before in ("", MINE, BORROWED):
        done = warm.run("-c", PRINTS.format(before=before))
        (first, few), (second, many) = (line.split() for line in done.stdout.splitlines())
        assert first == second
        assert int(few) < int(many)
        found.append(first)
    assert len(set(found)) == 3


ON_DEMAND = """
import sys
import torch
from ge_converters.decompose.table import _built, decomposition_table
from ge_converters.registry import REGISTRY
from ge_converters.registry.registry import _index

promised = {op.removesuffix("?") for ops in _index().values() for op in ops}
first = {str(op): function.__qualname__ for op, function in decomposition_table().items()}
revision = REGISTRY.revision
found = REGISTRY.find(torch.ops.aten.mm.default)
families = [m for m in sys.modules if m.startswith("ge_converters.ops.")]
assert "matmul.py" in found.where and families == ["ge_converters.ops.matmul"], families
assert REGISTRY.revision == revision
REGISTRY.load()
then = {str(op): function.__qualname__ for op, function in _built(REGISTRY).items()}
assert then.items() <= first.items(), then.items() - first.items()
assert not [op for op in first if op not in then and REGISTRY.find(op) is not None]
there = {e.name for e in REGISTRY.entries()} | {name for name, _ in REGISTRY.awaited()}
assert there == promised, there ^ promised
assert all(REGISTRY.layer(e.target) == e.layer for e in REGISTRY.entries())
print(len(first), len(there))
"""


@pytest.mark.slow
def test_a_lookup_imports_one_family_and_what_is_decomposed_is_the_same_before_all_are_there():
    decomposed, converted = warm.run("-c", ON_DEMAND).stdout.split()
    assert int(decomposed) > 300
    assert int(converted) > 700


def ops_folder():
    return Path(importlib.util.find_spec("ge_converters.ops").submodule_search_locations[0])


def test_a_module_that_was_edited_since_is_not_in_the_index(monkeypatch):
    monkeypatch.setattr(
        registry_module, "index_version", lambda: (ops_folder() / "index.tsv").read_text().splitlines()[0]
    )
    whole = registry_module._index()
    assert "ge_converters.ops.matmul" in whole
    size_of = registry_module.size_of
    monkeypatch.setattr(
        registry_module, "size_of", lambda folder, module: "1" if module == "matmul" else size_of(folder, module)
    )
    assert whole.keys() - registry_module._index().keys() == {"ge_converters.ops.matmul"}


def test_families_that_the_index_lacks_come_with_the_first_lookup(monkeypatch):
    loaded = []
    monkeypatch.setattr("ge_converters.registry.registry._load_family", loaded.append)
    registry = Registry(lambda: ("unlisted", "sums", "others"), lambda: {"sums": ["aten.add.Tensor"], "others": []})
    assert registry.layer(aten.add.Tensor) == "built-in"
    assert registry.layer(aten.sub.Tensor) == ""
    assert loaded == ["unlisted"]
    assert registry.find(aten.sub.Tensor) is None
    assert loaded == ["unlisted"]
    registry.find(aten.add.Tensor)
    registry.find(aten.add.Tensor)
    assert loaded == ["unlisted", "sums"]
    registry.load()
    assert loaded == ["unlisted", "sums", "others"]
