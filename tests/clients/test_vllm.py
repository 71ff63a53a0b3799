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


@cache
def served(folder: Path, model: str, mode: str) -> tuple[list[list[int]], int]:
    """The tokens that vLLM gives, and how many GE graphs the emulator received for them."""
    place = folder / model
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text((HERE / "models" / f"{model}.json").read_text())
    received = folder / f"{model}-{mode}"
    variables = {**os.environ, "TAIR_EMULATOR_GRAPHS": str(received)}
    command = [sys.executable, str(HERE / "vllm_serving.py"), str(place), mode]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TOKENS "))
    return json.loads(line[7:]), len(list(received.iterdir())) if received.is_dir() else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


MODELS = sorted(path.stem for path in (HERE / "models").glob("*.json"))


@pytest.mark.parametrize("model", MODELS)
def test_eager_serves(folder: Path, model: str) -> None:
    tokens, graphs = served(folder, model, "eager")
    assert [len(each) for each in tokens] == [10, 10, 10]
    assert graphs == 0


@pytest.mark.parametrize("model", [model for model in MODELS if model != "qwen2"])
def test_graphs_serve_the_same_tokens(folder: Path, model: str) -> None:
    tokens, graphs = served(folder, model, "graph")
    assert graphs > 0
    assert tokens == served(folder, model, "eager")[0]


def test_what_stops_in_the_client_itself(folder: Path) -> None:
    """vllm-ascend 0.11.0 calls vLLM 0.11.0's rotary embedding of Qwen2 with an argument that it does not take."""
    with pytest.raises(AssertionError, match="RotaryEmbedding.forward_native"):
        served(folder, "qwen2", "graph")
