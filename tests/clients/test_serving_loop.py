"""A serving loop in the shape of published recipes, on NPU tensors: eager prefill, graph decode, paged cache, W8A8 in
FRACTAL_NZ, a compile cache, experts on two ranks. Ten steps give eager's tokens, which are the best by a model without
pages, caches, batches and ranks. Run under ``tair emulate``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._functorch.config
import torch_npu
from recipe_models import PARTS, Decoder, served, shortfall

import torchair

PROMPTS = [[3, 4, 5, 6], [7, 8], [9, 10, 11]]
STEPS = 10
FAR = 0.5  # of logits with a spread of about 8: an activation rounds to the other int8 where half a unit decides
MODES = ["max-autotune", "reduce-overhead"]


@pytest.fixture(autouse=True)
def as_recipes_set_it() -> Iterator[None]:
    """Internal formats; and operators of torch_npu give operands back, which torch refuses where CI is set."""
    torch_npu.npu.config.allow_internal_format = True
    with torch._functorch.config.patch(error_on_custom_op_aliasing=False):
        yield
    torch_npu.npu.config.allow_internal_format = False


def models(kind: str) -> tuple[Decoder, Decoder]:
    """On the CPU, and on the device with weights in FRACTAL_NZ."""
    torch.manual_seed(0)
    plain, model = Decoder(kind).eval(), Decoder(kind).eval()
    model.load_state_dict(plain.state_dict())
    model = model.npu()
    model.in_nz()
    return plain, model


@pytest.mark.night(rows=4)
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("deepseek_v3", "max-autotune"),
        ("qwen3", "max-autotune"),
        ("qwen3_moe", "max-autotune"),
        ("deepseek_v3", "reduce-overhead"),
        ("qwen3", "reduce-overhead"),
        ("qwen3_moe", "reduce-overhead"),
    ],
)
def test_graphs_decode(kind: str, mode: str) -> None:
    plain, model = models(kind)
    assert {int(torch_npu.get_npu_format(p)) for p in model.parameters() if p.dtype == torch.int8} == {29}
    config = torchair.CompilerConfig()
    config.mode = mode
    config.experimental_config.frozen_parameter = mode == "max-autotune"
    backend = torchair.get_npu_backend(compiler_config=config)
    decode = torch.compile(model.decode, backend=backend, dynamic=True, fullgraph=True)
    answers = served(model, decode, PROMPTS, STEPS)
    assert answers == served(model, model.decode, PROMPTS, STEPS)
    assert max(shortfall(plain, PROMPTS, answers)) < FAR


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("kind", PARTS)
def test_cached_graphs_decode(kind: str, tmp_path: Path) -> None:
    """The second server compiles nothing: it finds the graphs of the first, and its methods are never traced."""
    plain, model = models(kind)
    decode = torchair.inference.cache_compile(model.decode, cache_dir=str(tmp_path), dynamic=True)
    want = served(model, model.decode, PROMPTS, STEPS)
    assert served(model, decode, PROMPTS, STEPS) == want
    assert max(shortfall(plain, PROMPTS, want)) < FAR
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    again = torchair.inference.cache_compile(model.decode, cache_dir=str(tmp_path), dynamic=True)
    assert served(model, again, PROMPTS, STEPS) == want
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.night
@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
def test_experts_on_two_ranks(kind: str, level: str) -> None:
    """Tokens go to the ranks of their experts in decoding graphs; TASK_QUEUE_ENABLE=2, where torch_npu takes no
    captures, is what recipes ask for."""
    modes = MODES if level == "1" else MODES[:1]
    script = Path(__file__).with_name("serving_ranks.py")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "TASK_QUEUE_ENABLE": level, "TAIR_EMULATOR_DEVICES": "2"}
    done = subprocess.run([*line, kind, str(STEPS), *modes], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = [json.loads(row.partition("SERVED ")[2]) for row in done.stdout.splitlines() if "SERVED " in row]
    assert sorted(each["rank"] for each in told) == [0, 1]
    for each in told:
        assert [len(tokens) for tokens in each["tokens"]] == [STEPS + 1] * 3
        assert each["graphs"] == dict.fromkeys(modes, each["tokens"])
        assert each["behind"] < FAR


@pytest.mark.night
@pytest.mark.parametrize("kind", PARTS)
def test_with_the_queue_that_recipes_ask_for(kind: str) -> None:
    """TASK_QUEUE_ENABLE=2: operators start on another thread. torch_npu itself refuses captures at this level."""
    line = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    test = f"{__file__}::test_graphs_decode[{kind}-max-autotune]"
    done = subprocess.run(
        [*line, test], env={**os.environ, "TASK_QUEUE_ENABLE": "2"}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.startswith("."), done.stdout  # it ran: nobody left it out
