"""Two nodes that torchrun starts on this host; they find each other by a rendezvous on the loopback address."""

import pytest

from tair_testing.rank_patterns import on_two_nodes


@pytest.mark.night
@pytest.mark.slow
def test_two_nodes():
    """Steps of tensor parallel, FSDP2 and of both on a mesh over both nodes equal the unsharded model."""
    on_two_nodes("gloo", ("tensor_parallel", "fully_sharded", "tensor_parallel_and_fully_sharded"))
