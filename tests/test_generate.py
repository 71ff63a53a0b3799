"""``generate`` of transformers on our backend, by its own switches: the tokens are eager's."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.generation.configuration_utils import CompileConfig

import torchair

PROMPTS = torch.tensor([[5, 9, 2, 7, 3], [1, 1, 8, 4, 6]])
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=64, eos_token_id=None))


def t5():
    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0))


def with_a_config():
    config = torchair.CompilerConfig()
    config.experimental_config.frozen_parameter = True
    return torchair.get_npu_backend(compiler_config=config)


BACKENDS = {
    "name": lambda: {"backend": "npu", "mode": "max-autotune"},
    "name, mode of transformers": lambda: {"backend": "npu"},  # reduce-overhead
    "callable": lambda: {"backend": with_a_config(), "mode": None},
    "npugraph_ex": lambda: {"backend": "npugraph_ex", "mode": None},
}


@pytest.mark.night(rows=5)
@pytest.mark.slow
@pytest.mark.parametrize(("make", "backend"), [*((llama, b) for b in BACKENDS), (t5, "name")])
def test_tokens_of_a_static_cache_are_those_of_eager(make, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().eval()
    more = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static"}
    want = model.generate(PROMPTS, **more, disable_compile=True)
    config = CompileConfig(fullgraph=False, **BACKENDS[backend]())
    config._compile_all_devices = True  # transformers leaves it off for the CPU
    with torchair.record_compilation() as reports:
        got = model.generate(PROMPTS, **more, compile_config=config)
    assert reports, "nothing was compiled"
    assert torch.equal(got, want)
    again = CompileConfig(fullgraph=False, **BACKENDS[backend]())  # as a server would make it for each request
    again._compile_all_devices = True
    with torchair.record_compilation() as reports:
        got = model.generate(PROMPTS, **more, compile_config=again)
    assert not reports, "an equal backend compiled again"
    assert torch.equal(got, want)
