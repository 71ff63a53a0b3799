"""A program of vLLM's user: a folder with a model, three prompts, ten tokens each, eager or through GE graphs.

python vllm_serving.py FOLDER eager|graph|uncompiled

`uncompiled` takes the client's code for graphs and has torch run it without compiling.
"""

import json
import os
import sys

# One process, no network: what a test on a host without either can start.
os.environ.update(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HCCL_IF_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
)

import torch
from vllm import LLM, SamplingParams

PROMPTS = ([5, 6, 7, 8], [11, 12, 13], [100, 3, 4, 9, 30, 31])


def main(folder: str, mode: str) -> None:
    more = {"ascend_scheduler_config": {"enabled": True}}
    if mode == "uncompiled":
        torch.compiler.set_stance("force_eager")
    if mode != "eager":
        more["torchair_graph_config"] = {"enabled": True, "graph_batch_sizes": [4]}
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        block_size=128,
        num_gpu_blocks_override=16,
        gpu_memory_utilization=0.5,
        seed=0,
        enable_prefix_caching=False,
        enforce_eager=mode == "eager",
        additional_config=more,
    )
    sampling = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    results = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    answers = [[prompt, list(result.outputs[0].token_ids)] for prompt, result in zip(PROMPTS, results, strict=True)]
    print("TOKENS", json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
