"""``*_ex`` of torch.linalg: info equals eager's, and so do the results of matrices that did not break down."""

import pytest
import torch

from ge_converters.decompose.formulas.lapack_info import WITH_INFO
from ge_converters.decompose.whole import KeepWhole

S, EYE = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.eye(2)
MIXED = torch.stack([S, EYE, S - 5 * EYE, torch.zeros(2, 2), torch.diag(torch.tensor([1.0, -1.0]))])


def positive(dtype=torch.float32):
    torch.manual_seed(0)
    a = torch.randn(3, 4, 4, dtype=dtype)
    return a @ a.mH + torch.eye(4)


def broken(dtype=torch.float32):
    a = positive(dtype)
    a[1, 2, 2] = -1
    return a


def same(function, *args, **kwargs):
    want = function(*args, **kwargs)
    with KeepWhole():
        got = function(*args, **kwargs)
    assert type(got) is type(want)
    assert torch.equal(got.info, want.info)
    assert got.info.dtype == want.info.dtype
    good = want.info == 0
    torch.testing.assert_close(got[0][good], want[0][good], rtol=1e-4, atol=1e-4)
    assert bool(got[0][~good].isnan().all())
    return good


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("a", [MIXED, broken(), broken(torch.float64), broken(torch.complex64)])
def test_cholesky(a, upper):
    assert not same(torch.linalg.cholesky_ex, a.triu() if upper else a.tril(), upper=upper).all()


@pytest.mark.parametrize("a", [MIXED, positive(), positive(torch.complex64), S])
def test_inverse(a):
    same(torch.linalg.inv_ex, a)


@pytest.mark.parametrize("left", [False, True])
def test_solution(left):
    same(torch.linalg.solve_ex, MIXED, torch.ones(5, 2, 2), left=left)
    if left:
        same(torch.linalg.solve_ex, MIXED, torch.ones(5, 2))


@pytest.mark.parametrize("function", WITH_INFO, ids=lambda f: f.__name__)
def test_check_errors_is_torch_s(function):
    args = (S,) if function is not torch.linalg.solve_ex else (S, S)
    with KeepWhole(), pytest.raises(torch.linalg.LinAlgError):
        function(*(a - 5 * EYE if "cholesky" in function.__name__ else a for a in args), check_errors=True)
