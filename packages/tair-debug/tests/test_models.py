"""A model by the name that a command line has for it: a file, an import, a configuration of transformers."""

import json

import pytest
import torch
from torch import nn

from ge_graph.errors import ConfigError
from tair_debug import models, tracing
from tair_debug.targets import is_model


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the user's below the working directory, which is not on ``sys.path``."""
    place = tmp_path / "nets_of_test"
    place.mkdir()
    (place / "__init__.py").touch()
    (place / "small.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.sin(x)\n"
        "class Wide(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
    )
    (place / "broken.py").write_text("import module_that_nobody_has\n")
    monkeypatch.syspath_prepend("/nonexistent")  # sys.path is as before afterwards
    return place


def test_a_class_by_import(package):
    subject = models.load("nets_of_test.small:Net", ["float32(2, 3)"])
    assert type(subject.model).__name__ == "Net"
    (graph,) = tracing.capture(subject)
    assert "aten.sin.default" in [str(n.target) for n in graph.gm.graph.nodes]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nets_of_test.small:Gone", "nets_of_test.small has no function 'Gone'; it has Net, Wide"),
        ("nets_of_test.small:Wide", "missing 1 required positional argument"),
        ("nets_of_test.nowhere:Net", "there is no module nets_of_test.nowhere"),
        ("nets_of_test.broken:Net", "No module named 'module_that_nobody_has'"),
        ("not a name:Net", "not of the form"),
        ("os.path:exists", "missing 1 required positional argument"),
        ("hf:gone.json", "no configuration of a model can be read"),
    ],
)
def test_what_a_target_lacks(package, target, said):
    with pytest.raises(ConfigError, match="GE1043") as caught:
        models.load(target)
    assert said in str(caught.value)


def test_what_names_a_model():
    assert all(map(is_model, ("a.py:f", "a.b:C", "hf:config.json", "/x/y.py:f")))
    assert not any(map(is_model, ("graph.air", "dump/ge.txt", "C:/graphs/a.txt", "a b:c")))


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
CONFIGS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, "num_key_value_heads": 2},
    "bert": {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **SIZES},
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64},
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": 32,
        "patch_size": 16,
        **{k: v for k, v in SIZES.items() if k != "vocab_size"},
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 64,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_of_transformers(tmp_path, name):
    """The class is the one that transformers makes of it, and its graph is the whole model."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    subject = models.load(f"hf:{tmp_path / 'config.json'}")
    wanted = CONFIGS[name].get("architectures", ["GPT2Model"])[0]
    assert type(subject.model) is getattr(transformers, wanted)
    assert all(hasattr(p, "fake_mode") for p in subject.model.parameters())
    graphs = tracing.capture(subject)
    assert sum("mm" in str(n.target) for g in graphs for n in g.gm.graph.nodes) >= 4


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "llama", "architectures": ["__import__"], **SIZES, "num_key_value_heads": 2},
        {"model_type": "llama", "architectures": ["pipeline", "BertModel"], **SIZES, "num_key_value_heads": 2},
        {"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}, **SIZES, "num_key_value_heads": 2},
    ],
)
def test_a_configuration_calls_nothing_by_name(tmp_path, more, monkeypatch):
    """A name that is no model of this kind of configuration is not looked up further, and no code beside it is run."""
    pytest.importorskip("transformers")
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    (tmp_path / "config.json").write_text(json.dumps(more))
    subject = models.load(f"hf:{tmp_path}")
    assert type(subject.model).__name__ == "LlamaModel"


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"model_type": 3}', '{"model_type": "nobody_knows"}'])
def test_a_configuration_that_is_none(tmp_path, text):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="GE1043"):
        models.load(f"hf:{tmp_path}")


def test_a_model_that_exists_is_not_touched():
    """Its copy has no data, tied weights stay tied, and the model is as it was."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    x = torch.randn(2, 4)
    subject = models.given(model, (x, x), {"more": x})
    assert subject.model[0].weight is subject.model[1].weight
    assert hasattr(subject.model[0].weight, "fake_mode")
    assert subject.args[0] is subject.args[1]
    assert not hasattr(model[0].weight, "fake_mode")
    assert not hasattr(x, "fake_mode")
