"""Small models of three families, and how their ranks cut them: heads and MLPs over ``tp``, experts over ``ep``.

    tair ranks examples/ranks/small_models.py:llama --mesh tp=8
    tair ranks examples/ranks/small_models.py:mixtral --mesh tp=2,ep=4
    tair ranks examples/ranks/small_models.py:deepseek --mesh tp=8,ep=8

``shard`` is what such a function looks like for any run of ``torchrun``: it knows nothing of these tools.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import transformers
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HEADS, EXPERTS = 8, 16


def _ids():
    return (torch.arange(12).reshape(2, 6),)


def llama():
    """A Llama of two layers, and its input."""
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        vocab_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval(), _ids()


def mixtral():
    """A Mixtral of two layers: each token goes to two of 16 experts."""
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        vocab_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(config).eval(), _ids()


def deepseek():
    """A DeepSeek-V3 of two layers: latent attention, one dense layer, one of routed and shared experts."""
    config = transformers.DeepseekV3Config(
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        vocab_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.DeepseekV3ForCausalLM(config).eval(), _ids()


class LocalExperts(nn.Module):
    """The experts of one rank; the group adds up what each rank's experts make of a token."""

    def __init__(self, experts: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, count = group, experts.gate_up_proj.shape[0] // group.size()
        self.first = count * group.rank()
        own = slice(self.first, self.first + count)
        self.gate_up = nn.Parameter(experts.gate_up_proj[own].detach().clone())
        self.down = nn.Parameter(experts.down_proj[own].detach().clone())
        self.act = experts.act_fn

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(tokens)
        for number in range(self.gate_up.shape[0]):
            weight = (weights * (chosen == self.first + number)).sum(-1, keepdim=True)
            gate, up = nn.functional.linear(tokens, self.gate_up[number]).chunk(2, -1)
            total = total + nn.functional.linear(self.act(gate) * up, self.down[number]) * weight.to(tokens.dtype)
        return funcol.all_reduce(total, "sum", self.group)


_ATTENTION = {
    "q_proj": ColwiseParallel(),
    "k_proj": ColwiseParallel(),
    "v_proj": ColwiseParallel(),
    "q_b_proj": ColwiseParallel(),
    "kv_b_proj": ColwiseParallel(),
    "o_proj": RowwiseParallel(),
}
_MLP = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}


def _cut(module, mesh, plan):
    parallelize_module(module, mesh, {name: how for name, how in plan.items() if getattr(module, name, None)})


def shard(model, mesh):
    """Cut a model for the rank that calls this."""
    names = mesh.mesh_dim_names
    for layer in model.model.layers:
        if "tp" in names:
            _cut(layer.self_attn, mesh["tp"], _ATTENTION)
            _cut(layer.mlp, mesh["tp"], _MLP)
            if hasattr(layer.mlp, "shared_experts"):
                _cut(layer.mlp.shared_experts, mesh["tp"], _MLP)
        if "ep" in names and hasattr(layer.mlp, "experts"):
            layer.mlp.experts = LocalExperts(layer.mlp.experts, mesh["ep"].get_group())
