"""Every operator that copies what a view would show has a formula or a converter; a formula gives its result."""

import pytest
import torch

from ge_converters.base.torch_traces import view_copies
from ge_converters.decompose.formulas import view_copies as formulas
from ge_converters.decompose.table import decomposition_table
from ge_converters.registry import REGISTRY

X, Z = torch.arange(12.0).view(4, 3), torch.randn(2, 3, dtype=torch.complex64)
# Op -> arguments of a call; a copy that torch adds needs a row.
CALLS = {
    "alias_copy.default": (X,),
    "as_strided_copy.default": (X, [2, 2], [1, 3], 1),
    "detach_copy.default": (X,),
    "diagonal_copy.default": (X, 1),
    "expand_copy.default": (X[:1], [5, 3]),
    "permute_copy.default": (X, [1, 0]),
    "narrow_copy.default": (X, 0, 1, 2),
    "select_copy.int": (X, 0, 1),
    "slice_copy.Tensor": (X, 0, 1, 4, 2),
    "split_copy.Tensor": (X, 3),
    "split_with_sizes_copy.default": (X, [1, 3]),
    "squeeze_copy.default": (X[:1],),
    "squeeze_copy.dim": (X[:1], 0),
    "squeeze_copy.dims": (X[:1], [0, 1]),
    "t_copy.default": (X,),
    "transpose_copy.int": (X, 0, 1),
    "unbind_copy.int": (X, 1),
    "unfold_copy.default": (X, 0, 2, 1),
    "unsqueeze_copy.default": (X, 1),
    "view_as_complex_copy.default": (X[:, :2].contiguous(),),
    "view_as_real_copy.default": (Z,),
    "view_copy.default": (X, [3, 4]),
    "view_copy.dtype": (X, torch.int32),
    "lift_fresh_copy.default": (X,),
    "_conj_copy.default": (Z,),
    "_neg_view_copy.default": (X,),
    "_reshape_alias_copy.default": (X, [3, 4], [4, 1]),
}
# Op -> why it is not one of dense tensors.
OTHERS = {
    **dict.fromkeys(
        (
            "values_copy",
            "_values_copy",
            "indices_copy",
            "_indices_copy",
            "crow_indices_copy",
            "ccol_indices_copy",
            "col_indices_copy",
            "row_indices_copy",
            "_sparse_broadcast_to_copy",
        ),
        "a part of a sparse tensor",
    ),
    **dict.fromkeys(
        ("_nested_get_values_copy", "_nested_view_from_jagged_copy", "_nested_view_from_buffer_copy"),
        "nested tensors",
    ),
    "_fw_primal_copy": "forward derivatives",
    "_make_dual_copy": "forward derivatives",
    "_test_autograd_multiple_dispatch_view_copy": "a test of torch",
}


def short(op):
    return str(op).removeprefix("aten.")


def test_each_has_a_call_or_a_reason():
    found = {short(op) for op in view_copies()}
    assert {n for n in found if n not in CALLS and n.partition(".")[0] not in OTHERS} == set()


@pytest.mark.parametrize("name", CALLS)
def test_the_formula_gives_the_result_of_the_operator(name):
    packet, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    assert REGISTRY.find(op) is not None or op in decomposition_table()
    formula = formulas.decompositions().get(op)
    if formula is None:  # torch does not call the original a view
        pytest.skip("a formula or a converter of its own")
    args = CALLS[name]
    got, want = formula(*args), op(*args)
    for g, w in zip(got, want, strict=True) if isinstance(want, (list, tuple)) else [(got, want)]:
        torch.testing.assert_close(g.resolve_conj().resolve_neg(), w.resolve_conj().resolve_neg())
        assert g.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr()
