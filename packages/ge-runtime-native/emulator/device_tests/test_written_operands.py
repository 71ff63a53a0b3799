"""Operators of torch_npu that overwrite operands without saying so in their schema. Run under ``tair emulate``."""

import pytest
import torch
import torch._functorch.config
import torch_npu

import torchair


def step(kv, gamma, angles, slots, caches):
    """A token for each of two sequences, into pages; what comes back is read where attention would."""
    keys, latents, _, _ = torch_npu.npu_kv_rmsnorm_rope_cache(
        kv, gamma, angles, angles, slots, *caches, epsilon=1e-5, cache_mode="PA"
    )
    return keys.float().sum(-1) + latents.float().sum(-1)


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
@torch.inference_mode()
@torch._functorch.config.patch(error_on_custom_op_aliasing=False)  # the operator gives its operands back: no test of it
def test_the_next_step_reads_what_this_one_wrote(mode, dynamic):
    torch.manual_seed(0)
    config = torchair.CompilerConfig()
    config.mode = mode
    torch._dynamo.reset()
    compiled = torch.compile(step, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)
    gamma, angles = torch.rand(512).half().npu(), torch.rand(2, 1, 1, 64).half().npu()
    eager, graph = ([torch.zeros(3, 128, 1, size).half().npu() for size in (64, 512)] for _ in range(2))
    for slots in ([0, 128], [1, 129], [2, -1]):
        kv, slots = torch.randn(2, 1, 1, 576).half().npu(), torch.tensor(slots).npu()
        got, want = compiled(kv, gamma, angles, slots, graph), step(kv, gamma, angles, slots, eager)
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-2, atol=1e-2)
        for a, b in zip(graph, eager):
            torch.testing.assert_close(a.cpu(), b.cpu(), rtol=2e-3, atol=2e-3)
    assert eager[0].cpu()[0, :3].ne(0).all()
