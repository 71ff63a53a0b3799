"""The model that vLLM is given, and what transformers says of its tokens, both on the CPU.

python transformers_model.py make FOLDER         random weights for the config.json of the folder
python transformers_model.py best FOLDER         reads [[prompt, tokens], ...] from standard input; prints how many
                                                 tokens have the best logit of their rows
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
def best(folder: str) -> int:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    count = 0
    for prompt, tokens in json.load(sys.stdin):
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        count += int((logits.argmax(-1) == torch.tensor(tokens)).sum())
    return count


if __name__ == "__main__":
    command, folder = sys.argv[1:]
    print(make(folder) if command == "make" else f"BEST {best(folder)}")
