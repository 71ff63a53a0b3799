"""Sums of bools are true however many are added: a byte that counts them is zero again after 256."""

import pytest
import torch

import torchair

SUMS = {
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
    "scatter": lambda x, i, v: x.scatter(0, i, v, reduce="add"),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "put": lambda x, i, v: x.put(i, v, accumulate=True),
    "sum": lambda x, i, v: v.sum(dtype=torch.bool),
    "prod": lambda x, i, v: v.prod(dtype=torch.bool),
    "rows": lambda x, i, v: v.view(-1, 2).sum(0, dtype=torch.bool),
}


@pytest.mark.parametrize("name", SUMS)
def test_of_256_and_512(name):
    torch._dynamo.reset()
    run = torch.compile(SUMS[name], backend=torchair.get_npu_backend(), dynamic=False)
    for count in (256, 512):
        args = (torch.tensor([False, True]), torch.zeros(count, dtype=torch.int64), torch.ones(count, dtype=torch.bool))
        torch.testing.assert_close(run(*args), SUMS[name](*args))
