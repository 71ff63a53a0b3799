"""The model that vLLM is given, and what transformers says of its tokens, both on the CPU.

python transformers_model.py make FOLDER         random weights for the config.json of the folder
python transformers_model.py shortfall FOLDER    reads [[prompt, tokens], ...] from standard input; prints by how much the
                                                 logit of a token falls behind the best of its row, at most
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def make(folder: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:  # each layer then matters as much as the last
                parameter.normal_(std=1.0 if "embed" in name else parameter.shape[-1] ** -0.5)
    model.half().save_pretrained(folder)


@torch.inference_mode()
def shortfall(folder: str) -> float:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    behind = 0.0
    for prompt, tokens in json.load(sys.stdin):
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])
        behind = max(behind, float((logits.amax(-1, keepdim=True) - chosen).max()))
    return behind


if __name__ == "__main__":
    command, folder = sys.argv[1:]
    print(make(folder) if command == "make" else f"SHORTFALL {shortfall(folder)}")
