"""Cross-package tests run the public API in one process; dynamo's caches are cleared between tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
