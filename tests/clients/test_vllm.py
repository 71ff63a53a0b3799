"""vLLM with vllm-ascend, as they are, on the emulated NPU. Run by ``python -m tools.clients``, which installs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("vllm_ascend")
HERE = Path(__file__).parent
MODELS = sorted(path.stem for path in (HERE / "models").glob("*.json"))
# What stops in vllm-ascend 0.11.0 itself in its graph mode, with any torchair and on any device.
STOPS = {
    "qwen2": "RotaryEmbedding.forward_native() takes from 3 to 4 positional arguments but 5 were given",
    "qwen3_moe": "index 0 is out of bounds for dimension 0 with size 0",  # caches are asked for before there are any
}


def run(folder: Path, *command: str, given: str = "", **variables: str) -> str:
    line = [sys.executable, *command]
    env = {**os.environ, **variables}
    done = subprocess.run(line, cwd=folder, env=env, input=given, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@cache
def made(folder: Path, model: str) -> Path:
    """A folder with config and random weights."""
    place = folder / model
    place.mkdir()
    (place / "config.json").write_text((HERE / "models" / f"{model}.json").read_text())
    run(folder, str(HERE / "transformers_model.py"), "make", str(place))
    return place


@cache
def served(folder: Path, model: str, mode: str) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Prompts with the tokens that vLLM gives, and how many GE graphs the emulator received for them."""
    received = folder / f"{model}-{mode}"
    told = run(
        folder, str(HERE / "vllm_serving.py"), str(made(folder, model)), mode, TAIR_EMULATOR_GRAPHS=str(received)
    )
    (line,) = (line for line in told.splitlines() if line.startswith("TOKENS "))
    return json.loads(line[7:]), len(list(received.iterdir())) if received.is_dir() else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.mark.parametrize("model", MODELS)
def test_eager_tokens_are_the_best_by_transformers(folder: Path, model: str) -> None:
    answers, graphs = served(folder, model, "eager")
    assert [len(tokens) for _, tokens in answers] == [10, 10, 10]
    assert graphs == 0
    command = [str(HERE / "transformers_model.py"), "best", str(made(folder, model))]
    told = run(folder, *command, given=json.dumps(answers))
    # Of 256 tokens; where two experts are nearly even, float16 chooses the other one and with it other logits.
    assert int(told.partition("BEST ")[2]) >= (24 if "deepseek" in model else 29)


@pytest.mark.parametrize("model", [model for model in MODELS if model not in STOPS])
def test_graphs_give_the_same_tokens(folder: Path, model: str) -> None:
    answers, graphs = served(folder, model, "graph")
    assert graphs > 0
    assert answers == served(folder, model, "uncompiled")[0]


@pytest.mark.parametrize("model", STOPS)
def test_what_stops_in_the_client_itself(folder: Path, model: str) -> None:
    with pytest.raises(AssertionError) as raised:
        served(folder, model, "graph")
    assert STOPS[model] in str(raised.value)
