"""torch's own operator samples as the judge: every OpInfo through `torch.compile` with our backend against eager.

    python -m labs.opinfo                      everything, with a progress bar and a report
    python -m labs.opinfo add mul --dtype f32  some operators
    python -m labs.opinfo --shard 0/4          a part
    python -m labs.opinfo --database hop_db    one of torch's databases
    python -m labs.opinfo --update             write the expected-failure table anew

A check is one OpInfo in one dtype: for each sample, values, dtype and shape of all outputs; in float32 the gradients
too. `f32-sym` has symbolic sizes: the samples share what was compiled, as far as torch's guards let them, so that a
graph made for one size runs at others. What is expected to fail stands in `tests/opinfo/expected.tsv` with its reason.
The table is strict both ways: a check that fails without a row, and a row whose check passes, are errors. With 16
samples and more the rows of `tests/opinfo/beyond.tsv` count, too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import functools
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch
from torch.utils import _pytree as pytree

import torchair

EXPECTED = Path(__file__).resolve().parent.parent / "tests" / "opinfo" / "expected.tsv"
BEYOND = EXPECTED.with_name("beyond.tsv")  # rows that only more samples show
DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "b8": torch.bool,
    "f64": torch.float64,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "c64": torch.complex64,
    "f32-sym": torch.float32,
    "f32-split": torch.float32,
    "f32-split-sym": torch.float32,
}
_EITHER = ("f32", "f32-sym")
# Database -> the forms in which it runs; `split` has the operators without converter run between graphs.
DATABASES = {
    "op_db": tuple(short for short in DTYPES if "split" not in short),
    "hop_db": _EITHER,
    "autograd_function_db": _EITHER,
    "custom_op_db": ("f32", "f32-split", "f32-split-sym"),
}
SAMPLES = 6  # of each check, spread over all that an OpInfo has: they differ in arguments and in sizes
MORE = 16  # samples with which the rows of BEYOND hold
SECONDS = 120  # one check; a few samples of decompositions trace for very long

# Values are not defined (uninitialised) or drawn by another generator than eager's: dtype and shape are compared.
VALUES_FREE = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "rand_like",
        "randn",
        "randn_like",
        "randint",
        "randint_like",
        "bernoulli",
        "multinomial",
        "normal",
        "uniform",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.alpha_dropout",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.rrelu",
    ]
)


# What differs between two correct results, for checks that fail by value.
_EQUALS = "eager leaves undefined: which of several equal elements is reported"
_ORDER = "eager leaves undefined: the order of equal elements when the sort is not stable"
NOTES = {
    **dict.fromkeys(("mode", "kthvalue", "median", "nanmedian", "topk"), _EQUALS),
    **dict.fromkeys(("sort", "argsort", "msort"), _ORDER),
    "linalg.eigh": "eager leaves undefined: the sign of eigenvectors",
    "fft.hfft2": "rounding: GE's inverse transforms divide by the length, what torch does not want is multiplied again",
    **dict.fromkeys(
        ("svd_lowrank", "pca_lowrank"), "random numbers, of another generator than eager's, choose the basis"
    ),
    "linspace": "torch's decomposition keeps the fraction of bounds that are tensors, eager drops it for integers",
    **dict.fromkeys(
        ("nn.functional.triplet_margin_loss", "nn.functional.triplet_margin_with_distance_loss"),
        "rounding: the distances of bytes are hundreds, and their difference keeps what their last digits lost",
    ),
    "special.hermite_polynomial_he": "rounding: terms of the recurrence cancel; eager fuses x * p with the difference, "
    "GE has a product and a difference",
    "nn.functional.scaled_dot_product_attention": "rounding: the last digit of a score of 80 is 4e-6, which the "
    "exponential makes a share of the result; the order of the sum decides it",
    "matrix_exp": "rounding: squarings amplify it; measured against float64, eager is as far from the exact result",
    "linalg.householder_product": "rounding: reflectors of random numbers are not orthogonal and amplify it; the "
    "product form is up to three times as far from float64 as eager",
}

# Why eager is not nearer to the exact result. Used only where the sample in float64 has shown that: see `rounding`.
_STATISTICS = "rounding: eager rounds mean and 1/deviation to the half type before it applies them"
_GRID = "rounding: eager computes the coordinates in the half type"
_WEIGHTS = "rounding: eager rounds the interpolation weights to the half type"
_WINDOWS = "rounding: eager sums a window in the half type"
_BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
ROUNDINGS = {
    **dict.fromkeys(
        ("add", "sub"), "rounding: eager adds the last elements of a half tensor with two roundings, AxpyV2 with one"
    ),
    "addbmm": "rounding: eager adds the products one by one, GE sums them; sums that cancel differ",
    "index_reduce": "rounding: eager reduces in the half type element by element, scatter_reduce in float32",
    **dict.fromkeys((*_BATCH_NORMS, "nn.functional.batch_norm", "nn.functional.instance_norm"), _STATISTICS),
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d", "nn.functional.grid_sample"), _GRID),
    **dict.fromkeys(("nn.functional.adaptive_avg_pool3d", "nn.functional.interpolate.area"), _WINDOWS),
    **dict.fromkeys(
        [f"nn.functional.interpolate.{m}" for m in ("linear", "bilinear", "bicubic", "trilinear")], _WEIGHTS
    ),
    "nn.functional.bilinear": "rounding: eager rounds the product with the weight to the half type",
    "nn.functional.mse_loss": "rounding: eager rounds the difference to the half type before it squares it",
    "nn.functional.soft_margin_loss": "rounding: eager's exponential is a half, which overflows",
    "nn.functional.scaled_dot_product_attention": "rounding: eager rounds the exponentials to the half type",
    "masked.logsumexp": "rounding: eager computes each step in the half type",
    "histc": "rounding: eager computes the place of an element among the bins in the half type",
}
_ASSERTED = "[GE4009] Assert:"  # a bound that torch's own tracing has put into the graph
_ROUNDING = "rounding: eager is not nearer to the result in float64"
_ROUNDINGS_APART = 4  # a result that is so many roundings off in its largest elements is no longer taken for the same


def values_defined(op: Any, sample: Any) -> bool:
    """Whether eager and compiled must agree in value: not where memory is uninitialised or random numbers are drawn."""
    drops = sample.kwargs.get("dropout_p")
    if op.name == "nn.functional.multi_head_attention_forward":
        drops = drops or sample.args[9]  # dropout_p, by position
    return op.name not in VALUES_FREE and not drops


@dataclass(frozen=True)
class CheckOutcome:
    """Result of one check; `reason` is empty if it passed."""

    name: str
    dtype: str
    reason: str
    samples: int

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.dtype


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def expire(signum: int, frame: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def clone(tree: Any) -> Any:
    """Own copies of the tensors, leaves that ask for gradients staying so."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        copy = t.detach().clone(memory_format=torch.preserve_format)
        return copy.requires_grad_(t.requires_grad)

    return pytree.tree_map(one, tree)


def run(call: Callable[..., Any], sample: Any, gradients: bool) -> tuple[list[Any], list[Any]]:
    """Outputs, with what became of the arguments; and, if asked, the gradients of all leaves for a fixed cotangent."""
    args, kwargs = clone((((sample.input, *sample.args)), sample.kwargs))
    torch.manual_seed(7)
    outputs = pytree.tree_leaves(call(*args, **kwargs))
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    left = [*outputs, *(t.detach() for t in given)]
    if not gradients:
        return left, []
    leaves = [t for t in given if t.requires_grad]
    targets = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad and not o.is_complex()]
    if not leaves or not targets:
        return left, []
    generator = torch.Generator().manual_seed(11)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=torch.float32).to(o.dtype) for o in targets]
    return left, list(torch.autograd.grad(targets, leaves, cotangents, allow_unused=True))


def compare(got: Iterable[Any], want: Iterable[Any], values: bool) -> None:
    """Equal in number, type, dtype, shape and (if defined) value, at torch's own default tolerances."""
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor):
            if values and g != w:
                raise AssertionError(f"got {g!r}, eager gives {w!r}")
            continue
        if g.dtype != w.dtype or g.shape != w.shape:
            raise AssertionError(f"got {g.dtype} {tuple(g.shape)}, eager gives {w.dtype} {tuple(w.shape)}")
        if values:
            torch.testing.assert_close(g.detach(), w.detach(), equal_nan=True)


def in_float64(sample: Any) -> Any:
    """The sample with the same values in float64, or complex128."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not (t.is_floating_point() or t.is_complex()):
            return t
        wide = torch.complex128 if t.is_complex() else torch.float64
        return t.detach().to(wide).requires_grad_(t.requires_grad)

    made = copy.copy(sample)
    made.input, made.args, made.kwargs = pytree.tree_map(one, (sample.input, sample.args, sample.kwargs))
    return made


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the element that is farthest from its exact value; infinite where only one of the two is a number."""
    wide = result.detach().to(exact.dtype)
    apart = torch.where((wide == exact) | (wide.isnan() & exact.isnan()), 0, (wide - exact).abs())
    return float(apart.nan_to_num(torch.inf).max()) if apart.numel() else 0.0


def rounding(got: Iterable[Any], want: Iterable[Any], exact: Iterable[Any]) -> bool:
    """Whether `got` differs from eager's `want` by roundings only: judged by the result in float64.

    Each tensor must equal the float64 result at torch's tolerances; or be off by a few roundings of its largest
    element, and by no more than twice what eager is off.
    """
    for g, w, e in zip(got, want, exact, strict=True):
        if not isinstance(w, torch.Tensor) or not (w.is_floating_point() or w.is_complex()):
            compare([g], [w], True)
            continue
        e = e.detach()
        if torch.allclose(g.detach(), e.to(g.dtype), *_tolerances(g.dtype), equal_nan=True):
            continue
        off = distance(g, e)
        largest = float(e.abs().nan_to_num(0, 0, 0).max())
        if off > min(2 * distance(w, e), _ROUNDINGS_APART * torch.finfo(w.dtype).eps * largest):
            return False
    return True


def _tolerances(dtype: torch.dtype) -> tuple[float, float]:
    """torch's own, those that `compare` uses."""
    relative, absolute = torch.testing._comparison.default_tolerances(dtype)
    return float(relative), float(absolute)


def summarise(error: BaseException) -> str:
    """The innermost cause in one short line without places: code, operator, reason; or the kind of mismatch."""
    lines = re.sub(r", converter at [^\]]*", "", str(error)).splitlines()
    for number, line in enumerate(lines):
        if "[GE" not in line:
            continue
        code = line[line.index("[GE") :].split("]")[0] + "]"
        if "cannot be lowered" in line and number + 1 < len(lines):
            columns = [c for c in re.split(r"\s{2,}", lines[number + 1].strip()) if c]
            return f"{code} {columns[0]}: {columns[-1]}"[:220]
        return f"{code} {line.split(']', 1)[1].strip()}"[:220]
    first = re.split(r"Explanation:|Hint:|Mismatched|at index", " ".join(lines).strip())[0]
    return f"{type(error).__name__}: {' '.join(first.split())}"[:160]


def spread(samples: list[Any], count: int) -> list[Any]:
    """At most `count` of the samples, first and last among them, evenly apart."""
    if len(samples) <= count:
        return samples
    return [samples[round(i * (len(samples) - 1) / (count - 1))] for i in range(count)]


def check(op: Any, short: str, samples: int = SAMPLES, seconds: int = SECONDS) -> CheckOutcome:
    """Run one OpInfo in one dtype."""
    dtype = DTYPES[short]
    gradients = dtype is torch.float32 and op.supports_autograd
    config = torchair.CompilerConfig()
    config.fallback = "split" if "split" in short else "error"
    subject = CompiledOpInfo(op, torchair.get_npu_backend(compiler_config=config), short.endswith("-sym"))
    ran, current, note = 0, None, ""
    try:
        with time_limit(seconds):
            torch.manual_seed(5)
            for sample in spread(list(op.sample_inputs("cpu", dtype, requires_grad=gradients)), samples):
                try:
                    want = run(op.op, sample, gradients)
                except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError):
                    continue  # eager itself refuses this sample on this build
                ran, current = ran + 1, (sample, want)
                note = subject.compare(sample, want, gradients) or note
    except Exception as error:  # noqa: BLE001 -- any failure is the outcome to be reported
        return CheckOutcome(full_name(op), short, explain(subject, current, error, gradients, seconds), ran)
    return CheckOutcome(full_name(op), short, note, ran)


class CompiledOpInfo:
    """An OpInfo under torch.compile. With symbolic sizes what was compiled is kept from sample to sample."""

    def __init__(self, op: Any, backend: Any, dynamic: bool) -> None:
        self.op, self.dynamic = op, dynamic
        torch._dynamo.reset()
        self.compiled = torch.compile(
            lambda *a, **k: op.op(*a, **k), backend=backend, fullgraph=True, dynamic=self.dynamic
        )

    def compare(self, sample: Any, want: Any, gradients: bool) -> str:
        """Run, and compare with what eager gave. Empty, or a note on roundings in which the two differ."""
        if not self.dynamic:
            torch._dynamo.reset()
        got = run(self.compiled, sample, gradients)
        values = values_defined(self.op, sample)
        try:
            compare(got[0], want[0], values)
            compare(got[1], want[1], values)
        except AssertionError:
            compare(got[0], want[0], values=False)
            compare(got[1], want[1], values=False)
            if not self.rounds(sample, got, want, gradients):
                raise
            return ROUNDINGS.get(full_name(self.op), ROUNDINGS.get(self.op.name, _ROUNDING))
        return ""

    def rounds(self, sample: Any, got: Any, want: Any, gradients: bool) -> bool:
        """Whether only roundings make the difference. Not known of an operator that has no float64."""
        try:
            exact = run(self.op.op, in_float64(sample), gradients)
            return all(rounding(*three) for three in zip(got, want, exact, strict=True))
        except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, AssertionError):
            return False


def explain(subject: CompiledOpInfo, current: Any, error: Exception, gradients: bool, seconds: int) -> str:
    """The reason of a failure. What torch's own tracing cannot do either is not a gap of this backend, and says so."""
    reason = summarise(error)
    if current is None or ("[GE" in reason and not reason.startswith(_ASSERTED)):
        return reason
    try:
        with time_limit(seconds):
            sample, want = current
            CompiledOpInfo(subject.op, "aot_eager", subject.dynamic).compare(sample, want, gradients)
    except Exception as same:  # noqa: BLE001 -- only whether it fails matters
        return f"backend aot_eager fails too: {summarise(same)}"
    return NOTES.get(subject.op.name, reason) if isinstance(error, AssertionError) else reason


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@functools.cache
def entries(database: str) -> list[Any]:
    """The entries of one of ``DATABASES``, in torch's order."""
    from torch.testing._internal import common_methods_invocations as methods
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.custom_op_db import custom_op_db
    from torch.testing._internal.hop_db import hop_db

    # entries of random ops seed the generator inside the function, which dynamo does not trace; run() has seeded it
    methods.wrapper_set_seed = _called
    found = {
        "op_db": [op for op in methods.op_db if not op.name.startswith("jiterator")],  # CUDA sources made at run time
        "hop_db": hop_db,
        "autograd_function_db": autograd_function_db,
        "custom_op_db": custom_op_db,
    }
    return list(found[database])


@functools.cache
def all_checks(
    names: tuple[str, ...] = (), dtypes: tuple[str, ...] = (), databases: tuple[str, ...] = ("op_db",)
) -> list[tuple[Any, str]]:
    """(OpInfo, dtype) for every supported dtype of every entry, in a fixed order."""
    every = [(op, short) for d in databases for op in entries(d) for short in DATABASES[d]]
    wanted, shorts = set(names), set(dtypes or DTYPES)
    unknown = wanted - {full_name(op) for op, _ in every} - {op.name for op, _ in every}
    if unknown:
        sys.exit(f"opinfo: no OpInfo is named {', '.join(sorted(unknown))}")
    return [
        (op, short)
        for op, short in every
        if (not wanted or op.name in wanted or full_name(op) in wanted)
        and short in shorts
        and DTYPES[short] in op.supported_dtypes("cpu")
    ]


def read_expected(samples: int = SAMPLES) -> dict[tuple[str, str], str]:
    """(name, dtype) -> reason, with so many samples of each check."""
    files = [f for f in (EXPECTED, *([BEYOND] if samples >= MORE else [])) if f.exists()]
    lines = [line for file in files for line in file.read_text().splitlines()]
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {(name, short): reason for name, short, reason in rows}


def write_expected(outcomes: list[CheckOutcome]) -> None:
    """Replace the rows of the checks that ran; rows of others stay."""
    ran = {o.key for o in outcomes}
    table = {k: r for k, r in read_expected().items() if k not in ran}
    table |= {o.key: o.reason for o in outcomes if o.reason}
    lines = ["# OpInfo\tdtype\treason"] + ["\t".join((*k, r)) for k, r in sorted(table.items())]
    partial = EXPECTED.with_suffix(".part")
    partial.write_text("\n".join(lines) + "\n")
    os.replace(partial, EXPECTED)


def verdict(outcome: CheckOutcome, expected: dict[tuple[str, str], str]) -> str:
    """Empty, or what is wrong about this outcome against the table."""
    listed = outcome.key in expected
    if outcome.reason and not listed:
        return f"{outcome.name} {outcome.dtype}: {outcome.reason}"
    if not outcome.reason and listed:
        return f"{outcome.name} {outcome.dtype}: passes, but is listed as failing ({expected[outcome.key]})"
    return ""


def report(outcomes: list[CheckOutcome], problems: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(title="torch OpInfo through torch.compile on the embedded engine")
    for heading in ("dtype", "checks", "pass", "known gaps", "samples"):
        table.add_column(heading, justify="right" if heading != "dtype" else "left")
    for short in DTYPES:
        mine = [o for o in outcomes if o.dtype == short]
        passed = sum(not o.reason for o in mine)
        table.add_row(short, str(len(mine)), str(passed), str(len(mine) - passed), str(sum(o.samples for o in mine)))
    console.print(table)
    reasons = collections.Counter(o.reason.split(" ")[0] for o in outcomes if o.reason)
    for reason, count in reasons.most_common(10):
        console.print(f"{count:5} {reason}", highlight=False, markup=False)
    for problem in problems:
        console.print(f"NOT EXPECTED {problem}", highlight=False, markup=False)
    print(f"{len(outcomes) - len(problems)} passed, {len(problems)} failed")


def _prepare() -> None:
    """What a process needs before it runs checks."""
    torch.set_num_threads(1)  # the samples are tiny
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.recompile_limit = 1000  # samples of one check may need a compilation each


def _check_by_index(index: int, chosen: tuple[tuple[str, ...], ...], samples: int) -> CheckOutcome:
    op, short = all_checks(*chosen)[index]
    return check(op, short, samples)


def main() -> None:
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="OpInfo names; all if none is given")
    parser.add_argument("--database", action="append", choices=list(DATABASES), default=[], help="all if none is given")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), default=[])
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th check, from the i-th")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of each check")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--update", action="store_true", help="write the expected-failure table anew")
    options = parser.parse_args()
    first, step = map(int, options.shard.split("/"))
    asked = (tuple(options.names), tuple(options.dtype), tuple(options.database or DATABASES))
    chosen = range(len(all_checks(*asked)))[first::step]
    call = functools.partial(_check_by_index, chosen=asked, samples=options.samples)
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, initializer=_prepare, maxtasksperchild=200) as pool:
        results = pool.imap_unordered(call, chosen)
        hidden = not sys.stdout.isatty()
        outcomes = []
        for outcome in track(results, description="OpInfo", total=len(chosen), disable=hidden):
            outcomes.append(outcome)
            if options.update and len(outcomes) % 100 == 0:
                write_expected(outcomes)  # a run that is interrupted has not been for nothing
    if options.update:
        write_expected(outcomes)
    expected = read_expected(options.samples)
    problems = sorted(p for p in (verdict(o, expected) for o in outcomes) if p)
    report(outcomes, problems)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
