"""What a compiled program does with CPU tensors it does with NPU tensors: results, refusal and number of graphs.

The truth is what the embedded engine gives, which other tests hold against eager. What differs stands in ``known.tsv``
with its reason; the table is strict both ways. ``TAIR_NPU_SHARE`` is how many of torch's operators are passed over
between two: 1 runs all.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import torchair
from ge_graph.errors import on_purpose
from labs.fuzz.program import Program, draw, read
from labs.opinfo import full_name, values_defined
from tools import models

HERE = Path(__file__).parent
CORPUS = sorted((HERE.parent / "corpus" / "programs").glob("*.json"))
MODES = ("max-autotune", "reduce-overhead")
SHARE = int(os.environ.get("TAIR_NPU_SHARE", "16"))


def _known() -> dict[str, str]:
    lines = (HERE / "known.tsv").read_text().splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


KNOWN = _known()


@dataclass
class Outcome:
    """What became of a program.

    Attributes:
        refusal: Code of our error, or the type of another; empty if there was none.
        text: The error's text, for people.
        graphs: How many graphs were compiled.
        values: Results, then the arguments afterwards, on the CPU; leaves that are no tensors as they are.
    """

    refusal: str
    text: str
    graphs: int
    values: list[Any]


def moved(tree: Any, device: str) -> Any:
    """Copies on a device that lie as the tensors do: strides, gaps, shared memory and gradients asked for are kept."""
    memory: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or (leaf == "cpu" and isinstance(leaf, str)):
            return torch.device(device)
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        storage = leaf.untyped_storage()
        key = storage.data_ptr() or id(leaf)
        if key not in memory:
            whole = torch.empty(0, dtype=leaf.dtype).set_(storage)
            memory[key] = whole.clone().to(device)
        place = memory[key]
        made = place.view(leaf.dtype).as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())
        return made.detach().requires_grad_(leaf.requires_grad)

    return pytree.tree_map(one, tree)


def on_host(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf


def outcome(call: Callable[..., Any], given: Any, device: str) -> Outcome:
    """Run on copies of the arguments there; the results of ``call`` may be any tree."""
    args, kwargs = moved(given, device)
    torch.manual_seed(7)
    values: list[Any] = []
    refusal = text = ""
    with torchair.record_compilation() as reports:
        try:
            values = [on_host(v) for v in pytree.tree_leaves(call(*args, **kwargs))]
            values += [on_host(v) for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        except Exception as error:  # noqa: BLE001 - any error is an outcome
            ours = on_purpose(error)
            refusal, text = (ours.code if ours else type(error).__name__), str(error)
    return Outcome(refusal, text, len(reports), values)


def difference(npu: Outcome, cpu: Outcome, defined: bool = True) -> str:
    """Empty, or in what the outcomes differ."""
    if npu.refusal != cpu.refusal:
        return f"refusal {npu.refusal or 'none'}, on CPU tensors {cpu.refusal or 'none'}: {npu.text or cpu.text}"
    if npu.graphs != cpu.graphs:
        return f"{npu.graphs} graphs, on CPU tensors {cpu.graphs}"
    for got, want in zip(npu.values, cpu.values, strict=True):
        if not isinstance(want, torch.Tensor):
            if defined and got != want and got == got:
                return f"{got!r}, on CPU tensors {want!r}"
        elif got.dtype != want.dtype or got.shape != want.shape:
            return f"{got.dtype}{list(got.shape)}, on CPU tensors {want.dtype}{list(want.shape)}"
        elif defined:
            try:
                torch.testing.assert_close(got, want, equal_nan=True)
            except AssertionError as error:
                return f"values: {error}"
    return ""


def captured(call_of: Callable[[str, bool], Callable[..., Any]], given: Any, defined: bool = True) -> str:
    """The difference in mode reduce-overhead, where a device captures and the CPU does not.

    Where the device needs the host (GE1058) it runs this part between captured graphs instead; the values are the same.
    A graph that cannot be cut (scopes, checks of errors) stays refused, with the code that says so.
    """
    npu, cpu = both(lambda device: call_of(device, False), given)
    if npu.refusal == "GE1058" and not cpu.refusal:
        torch._dynamo.reset()
        npu = outcome(call_of("npu", True), given, "npu")
        npu.graphs = cpu.graphs
        if npu.refusal == "GE1058":
            return ""
    return difference(npu, cpu, defined)


def judge(name: str, found: str) -> None:
    """A difference without a row, and a row without a difference, are errors."""
    if name in KNOWN:
        assert found, f"{name} does the same on both now: take its row out of known.tsv"
        pytest.xfail(KNOWN[name])
    assert not found, found[:1500]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    patched = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True, "recompile_limit": 1000}
    with torch._dynamo.config.patch(**patched):
        yield
    torch._dynamo.reset()


def backend(mode: str = "max-autotune", split: bool = False) -> Any:
    config = torchair.CompilerConfig()
    config.mode = mode
    if split:
        config.fallback = "split"
    return torchair.get_npu_backend(compiler_config=config)


def both(call_of: Callable[[str], Callable[..., Any]], given: Any) -> tuple[Outcome, Outcome]:
    """The outcomes on NPU tensors and on CPU tensors; dynamo forgets between."""
    cpu = outcome(call_of("cpu"), given, "cpu")
    torch._dynamo.reset()
    return outcome(call_of("npu"), given, "npu"), cpu


def _whole(call_of: Callable[..., Any], given: Any, defined: bool = True) -> str:
    return difference(*both(call_of, given), defined)


WAYS = {MODES[0]: _whole, MODES[1]: captured}


@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.night)])
@pytest.mark.parametrize("op", op_db[::SHARE], ids=full_name)
def test_operator(op: Any, mode: str) -> None:
    """The first sample of each of torch's operators that eager takes, in float32 if the operator knows that."""
    known = op.supported_dtypes("cpu")
    if not known:
        pytest.skip("not an operator of the CPU")
    dtype = torch.float32 if torch.float32 in known else next(iter(known))
    torch.manual_seed(5)
    for sample in op.sample_inputs("cpu", dtype):
        given = (sample.input, *sample.args), sample.kwargs
        try:
            op.op(*copy.deepcopy(given[0]), **copy.deepcopy(given[1]))
        except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, AssertionError):
            continue

        def call_of(_: str, split: bool = False) -> Any:
            return torch.compile(lambda *a, **k: op.op(*a, **k), backend=backend(mode, split), fullgraph=True)

        judge(f"{full_name(op)} {mode}", WAYS[mode](call_of, given, values_defined(op, sample)))
        return
    pytest.skip("eager takes none of its samples here")


def test_gradient_of_gather() -> None:
    """torch_npu has an operator of its own for it."""
    places = torch.tensor([[0, 0], [3, 1], [2, 2]])

    def call_of(_: str) -> Any:
        compiled = torch.compile(lambda x, at: x.gather(1, at) * 2, backend=backend(), fullgraph=True)

        def step(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor | None:
            compiled(x, at).sum().backward()
            return x.grad

        return step

    found = both(call_of, ((torch.randn(3, 4, requires_grad=True), places), {}))
    assert found[1].values[0].shape == (3, 4)
    judge("gradient of gather", difference(*found))


def _program(program: Program, mode: str) -> str:
    call = program.module()

    def call_of(_: str, split: bool = False) -> Any:
        return torch.compile(call, backend=backend(mode, split), dynamic=program.dynamic, fullgraph=True)

    return WAYS[mode](call_of, (tuple(program.arguments()), {}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_program(path: Path, mode: str) -> None:
    judge(f"{path.stem} {mode}", _program(read(path.read_text()), mode))


@pytest.mark.night(rows=2)
@pytest.mark.parametrize("seed", range(2_000_000, 2_000_100))
def test_random_program(seed: int) -> None:
    """As GE graphs; a captured one is torch_npu's own operators, which round and know types as they do."""
    program = draw(seed, steps=12, without=("channels_last",))  # torch_npu knows no such memory in eager mode
    judge(f"{seed}", _program(program, MODES[0]))


def _inference(case: models.ModelCase, dynamic: bool, mode: str) -> str:
    def call_of(device: str) -> Any:
        model = copy.deepcopy(case.model).to(device)
        return torch.compile(model, backend=backend(mode), fullgraph=True, dynamic=dynamic)

    with torch.no_grad():
        return difference(*both(call_of, (tuple(case.inputs), {})))


@pytest.mark.night(rows=9)
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", models.ZOO)
def test_model(name: str, mode: str) -> None:
    judge(f"{name} {mode}", _inference(models.ZOO[name]("tiny"), mode == MODES[0], mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.night)])
def test_decoding_with_a_growing_cache(mode: str) -> None:
    decoder, prompt = models.llama_decoder("tiny", layers=2)

    def call_of(device: str) -> Any:
        compiled = torch.compile(copy.deepcopy(decoder).to(device), backend=backend(mode), fullgraph=True, dynamic=True)

        def steps(ids: torch.Tensor) -> list[torch.Tensor]:
            logits, *cache = compiled(ids)
            for _ in range(4):
                logits, *cache = compiled(logits.argmax(-1, keepdim=True), *cache)
            return [logits, *cache]

        return steps

    with torch.no_grad():
        judge(f"decoding {mode}", difference(*both(call_of, ((prompt,), {}))))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.night)])
def test_training_step(mode: str) -> None:
    case = models.resnet50("tiny")
    labels = torch.tensor([3, 7])

    def call_of(device: str) -> Any:
        model = copy.deepcopy(case.model).to(device).train()
        compiled = torch.compile(model, backend=backend(mode), fullgraph=True, dynamic=False)

        def step(pixels: torch.Tensor, truth: torch.Tensor) -> list[torch.Tensor | None]:
            torch.nn.functional.cross_entropy(compiled(pixels)[0], truth).backward()
            return [*(p.grad for p in model.parameters()), *model.state_dict().values()]

        return step

    judge(f"training {mode}", difference(*both(call_of, ((*case.inputs, labels), {}))))
