"""``tair compare --numerics``: the operator that costs the digits is named; ten models with one weak operator each."""

import json
import math

import pytest
import torch

from ge_graph.errors import ConfigError, EngineError
from tair_debug import ask, compare, digits
from tair_debug.cli import app
from tair_debug.digits import weigh_model
from tair_debug.models import Subject
from torchair import CompilerConfig

typer_testing = pytest.importorskip("typer.testing")


def near(mean, *sizes):
    """Numbers beside a large one: what a short mantissa keeps of them is mostly that one."""
    return mean + torch.randn(*sizes)


def centred(*sizes):
    """Columns that sum to zero, so that a product takes the large number away again."""
    w = torch.randn(*sizes)
    return w - w.mean(0, keepdim=True)


def layers():
    return torch.randn(8, 32), torch.randn(32, 16) / 6, torch.randn(16, 16) / 4


def product(x, w, v, big, zero):
    h = torch.tanh(x @ w)
    weak = big @ zero
    return torch.sigmoid(h @ v) + torch.tanh(weak) @ v


def operands_of_product():
    return *layers(), near(1000.0, 8, 64), centred(64, 16) / 8


def convolution(x, w, v, big, zero):
    h = torch.relu(torch.nn.functional.conv2d(x, w))
    weak = torch.nn.functional.conv2d(big, zero)
    return torch.nn.functional.conv2d(h, v) + torch.nn.functional.conv2d(torch.tanh(weak), v)


def operands_of_convolution():
    zero = torch.randn(4, 3, 3, 3)
    zero = zero - zero.mean((1, 2, 3), keepdim=True)
    filters = torch.randn(4, 3, 3, 3) / 5, torch.randn(4, 4, 3, 3) / 6
    return torch.randn(2, 3, 9, 9), *filters, near(800.0, 2, 3, 9, 9), zero / 5


def difference(x, w, v, big, base):
    h = torch.tanh(x @ w)
    weak = big - base
    return torch.sigmoid(h @ v) + torch.tanh(weak)


def operands_of_difference():
    return *layers(), near(3000.0, 8, 16), near(3000.0, 8, 16)


def batched(x, w, v, big, zero):
    h = torch.softmax(torch.bmm(x, w), -1)
    weak = torch.bmm(big, zero)
    return torch.bmm(h, v) + torch.tanh(weak)


def operands_of_batched():
    zero = torch.randn(2, 32, 8)
    zero = zero - zero.mean(1, keepdim=True)
    return torch.randn(2, 4, 8), torch.randn(2, 8, 8) / 3, torch.randn(2, 8, 8) / 3, near(300.0, 2, 4, 32), zero / 6


def overflowing(x, w, v, big, zero):
    h = torch.relu(x @ w)
    weak = big @ zero
    return h @ v + torch.tanh(weak / 1e5) @ v


def operands_of_overflowing():
    return torch.randn(4, 8), torch.randn(8, 8) / 3, torch.randn(8, 8) / 3, near(1e5, 4, 8), torch.randn(8, 8)


def exponential(x, w, v, large):
    h = torch.sigmoid(x @ w)
    weak = torch.exp(large)
    return torch.sigmoid(h @ v) + torch.log(weak)


def operands_of_exponential():
    return torch.randn(4, 8), torch.randn(8, 8) / 3, torch.randn(8, 8) / 3, near(14.0, 4, 8)


def precise_exponential():
    return torch.randn(4, 8), torch.randn(8, 8) / 3, torch.randn(8, 8) / 3, near(7.9, 4, 8) / 8 + 8


def shifted(x, w, v, large):
    h = torch.sigmoid(x @ w)
    weak = torch.exp(large)
    return torch.sigmoid(h @ v) * 1e-3 + (weak - 3000.0) / 3000.0


def training(x, w, v, big, zero):
    h = torch.tanh(x @ w) @ v
    weak = h @ zero
    return (weak * big).sum() / 100 + h.square().sum()


def operands_of_training():
    x, w, v = torch.randn(8, 32), torch.randn(32, 16) / 6, torch.randn(16, 16) / 4
    zero = torch.randn(16, 64)
    zero = zero - zero.mean(1, keepdim=True)  # rows: the gradient is ``big @ zero.T``
    return x, w.requires_grad_(), v, near(5000.0, 8, 64), zero / 8


TYPES = "OpType::Exp:InputDtype:float16,OutputDtype:float16\nOpType::Sigmoid:InputDtype:float16,OutputDtype:float16\n"
LISTS = json.dumps({"white-list": {"to-add": ["Exp", "Sigmoid"]}})
PRECISION = "ge.exec.precision_mode_v2"
# name: function, operands, chip, options; a value with a newline or a brace is the text of a file
WEAK = {
    "hf32 product": (product, operands_of_product, "ascend910b", {"ge.exec.allow_hf32": "01"}),
    "hf32 convolution": (convolution, operands_of_convolution, "ascend910b", {}),
    "float16 difference": (difference, operands_of_difference, "ascend910b", {PRECISION: "fp16"}),
    "mixed float16 batched product": (batched, operands_of_batched, "ascend910_93", {PRECISION: "mixed_float16"}),
    "mixed bfloat16 product": (product, operands_of_product, "ascend910b", {PRECISION: "mixed_bfloat16"}),
    "hifloat8 batched product": (batched, operands_of_batched, "ascend950", {PRECISION: "cube_hif8"}),
    "float16 operands that overflow": (
        overflowing,
        operands_of_overflowing,
        "ascend910b",
        {PRECISION: "cube_fp16in_fp32out"},
    ),
    "a type by operator that overflows": (
        exponential,
        operands_of_exponential,
        "ascend910b",
        {"ge.customizeDtypes": TYPES},
    ),
    "an operator on the white list": (
        shifted,
        precise_exponential,
        "ascend910b",
        {PRECISION: "mixed_float16", "ge.exec.modify_mixlist": LISTS},
    ),
    "hf32 in the backward pass": (training, operands_of_training, "ascend910b", {"ge.exec.allow_hf32": "01"}),
}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.filterwarnings("ignore:torchair")
def test_the_weak_operator_is_named(name, tmp_path):
    model, operands, chip, options = WEAK[name]
    given = {}
    for key, text in options.items():
        if "\n" in text or "{" in text:
            (tmp_path / key).write_text(text)
        given[key] = str(tmp_path / key) if "\n" in text or "{" in text else text
    found = weigh_model(
        Subject(model, operands()), engine=compare.engine(), chip=chip, options=given, backward=model is training
    )
    assert found.first.code.startswith("weak = "), found.costs[:3]
    second = next((c.moved for c in found.costs[1:]), 0.0)
    assert found.first.moved > 2 * second  # by far
    assert not found.ok
    assert found.first.graph == ("backward 1" if model is training else "forward 1")


def test_a_model_that_is_fine():
    x, w, v, *_ = operands_of_product()
    found = weigh_model(
        Subject(lambda x, w, v: torch.tanh(x @ w) @ v, (x, w, v)), engine=compare.engine(), chip="ascend910b"
    )
    assert found.ok
    assert found.first is None
    assert found.moved == {"forward 1": 0.0}
    assert found.rounded == 0  # products are float32 by default, and nothing else rounds


def test_halves_are_measured_in_their_own_type():
    x, w = torch.randn(4, 512).bfloat16(), torch.randn(512, 4).bfloat16()
    found = weigh_model(Subject(torch.mm, (x, w)), engine=compare.engine(), chip="ascend910b")
    assert found.ok
    assert found.rounded == 1
    assert found.tolerance == pytest.approx(3e-2)


def test_as_a_function_with_what_only_a_device_shows():
    config = CompilerConfig()
    config.ge_config.precision_mode = "mixed_float16"
    found = ask.digits(torch.mm, torch.randn(2, 8), torch.randn(8, 2), numerics="ascend910b", config=config)
    assert found.rounded
    assert any("lists of mixed precision" in note for note in found.notes), found.notes


def test_dynamic_sizes():
    model, operands, chip, options = WEAK["hf32 product"]
    found = weigh_model(Subject(model, operands()), engine=compare.engine(), chip=chip, options=options, dynamic=True)
    assert found.first.code.startswith("weak = ")


def test_a_chip_that_is_none():
    with pytest.raises(EngineError, match="GE4007"):
        weigh_model(Subject(torch.mm, (torch.randn(2, 2), torch.randn(2, 2))), engine=compare.engine(), chip="gpu")


def test_an_engine_that_rounds_like_nobody():
    class Other:
        name = "other"

        def compile(self, graph, options):
            return object()

    with pytest.raises(ConfigError, match="GE1044.*does not round"):
        weigh_model(Subject(torch.mm, (torch.randn(2, 2), torch.randn(2, 2))), engine=Other(), chip="ascend910b")


def test_few_runs_find_the_few_that_count():
    """Of 1,000 operators three cost something; all others nearly nothing."""
    costs = {i: 1e-9 for i in range(1000)} | {17: 0.5, 512: 0.3, 999: 0.1}
    runs = []

    def alone(part):
        runs.append(part)
        return math.sqrt(sum(costs[i] ** 2 for i in part))

    found, left = digits._dearest(range(1000), alone)
    assert [rule for rule, _ in found][:3] == [17, 512, 999]
    assert len(runs) <= 64
    assert len(found) + left == 1000


def test_digits_left():
    assert digits.digits_of(1e-3) == pytest.approx(3.0)
    assert digits.digits_of(0.0) == 17.0
    assert digits.digits_of(math.inf) == 0.0


MODEL = """
import torch, torchair
def weak():
    torch.manual_seed(0)
    def net(x, w):
        return torch.tanh(x @ w)
    w = torch.randn(64, 8); w = w - w.mean(0)
    return net, (1000 + torch.randn(4, 64), w)
def config():
    made = torchair.CompilerConfig()
    made.ge_config.allow_hf32 = "11"
    made.ge_config.op_precision_mode = "precision.ini"
    return made
"""


def test_the_command(tmp_path):
    (tmp_path / "models.py").write_text(MODEL)
    (tmp_path / "precision.ini").write_text("Tanh=high_precision\n")
    run = typer_testing.CliRunner().invoke
    asked = ["compare", "models.py:weak", "--numerics", "ascend910b", "--config", "models.py:config"]
    plain = run(app, asked)
    assert plain.exit_code == 1, plain.output
    assert "costs most: MatMulV2 (MatMulV2), forward 1:" in plain.output
    assert "operands as HF32" in plain.output
    assert "return torch.tanh(x @ w)" in plain.output
    assert "op_precision_mode Tanh = high_precision: only a device shows it" in plain.output
    answer = json.loads(run(app, [*asked, "--json"]).output)
    assert answer["ok"] is False
    assert answer["costs"][0]["op"] == "MatMulV2"
    assert run(app, [*asked, "--rtol", "10"]).exit_code == 0
    assert run(app, ["compare", "a", "b", "--numerics", "ascend910b"]).exit_code == 2
