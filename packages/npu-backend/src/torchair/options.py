"""Every option as a row: where it lives, what it may be, what it changes here and on a device.

``config.py`` builds the ``CompilerConfig`` tree from these rows, ``docs/options.md`` is written from them
(``python -m torchair.options``, ``--check`` fails if the file is out of date).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

INT64_MAX: Final = 9223372036854775807
ON_OFF: Final = {True: "1", False: "0"}
TRUE_FALSE: Final = {True: "true", False: "false"}

Kind = Literal["choice", "int", "text", "name", "directory", "file", "callable", "int_list", "dict", "tuple"]
Affects = Literal["graph", "runtime", "none"]
Effective = Literal["here", "device", "later"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        path: Place in the tree, ``debug.graph_dump.type``.
        kind: What values are: one of ``choices``, an int in ``low..high``, text of a form, a path, a callable …
        default: Value before anybody sets it.
        affects: ``graph`` (part of a cache key), ``runtime`` (same graph, other execution) or ``none`` (only looks).
        effective: ``here`` (on every engine), ``device`` (needs an NPU, reported once elsewhere), ``later`` (not
            built yet: a value other than the default is refused when compiling).
        here: Effect on the embedded engine, one sentence.
        device: Effect on a device, one sentence.
        choices: Allowed values of a ``choice``; may hold None.
        low: Smallest int.
        high: Largest int.
        holes: Ints inside the range that are refused.
        form: Regular expression of a ``text``.
        example: A value of that form, shown in errors.
        ge_key: GE option that carries the value.
        ge_values: Value to text; None means ``str``.
        ge_level: ``global`` (GEInitialize) or ``graph`` (AddGraph).
        ge_always: Send the key although the option has its default.
        env: Environment variable that gives the default, read when the config is made.
        content: Check of the file behind a path: ``fusion_switch`` or ``dump_json``.
        also: Older places that mean the same option.
        fixed: Not a plain value: left out of the option map (``_fixed_attrs``).
    """

    path: str
    kind: Kind
    default: Any
    affects: Affects
    effective: Effective
    here: str
    device: str = ""
    choices: tuple[Any, ...] = ()
    low: int = 0
    high: int = INT64_MAX
    holes: tuple[int, ...] = ()
    form: str = ""
    example: str = ""
    ge_key: str = ""
    ge_values: Mapping[Any, str] | None = field(default=None, hash=False)
    ge_level: Literal["global", "graph"] = "graph"
    ge_always: bool = False
    env: str = ""
    content: Literal["", "fusion_switch", "dump_json"] = ""
    also: tuple[str, ...] = ()
    fixed: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        none = " or None" if self.default is None else ""
        words = {
            "choice": ", ".join(map(repr, self.choices)),
            "int": f"int in [{self.low}, {self.high}]"
            + (f" except {', '.join(map(str, self.holes))}" if self.holes else ""),
            "text": f"text such as {self.example!r}",
            "name": "text",
            "directory": "an existing folder with read and write rights",
            "file": "an existing readable file",
            "callable": "a callable",
            "int_list": "a list of ints",
            "dict": "a dict",
            "tuple": "a tuple",
        }[self.kind]
        return words + ("" if self.kind == "choice" else none)


def _flag(path: str, default: bool, affects: Affects, effective: Effective, here: str, **more: Any) -> Option:
    return Option(path, "choice", default, affects, effective, here, choices=(True, False), **more)


_FX_PASS_DOC = "Runs on the ATen graph {} the built-in passes, edits it in place; its return value is ignored."
_DUMP_DEVICE = "Part of the device's data dump; needs dump_config.enable_dump."

TOP: Final = (
    Option(
        "mode", "choice", "max-autotune", "graph", "here",
        "max-autotune lowers to one GE graph; reduce-overhead replays a Python program of the ATen graph.",
        "max-autotune runs the GE graph; reduce-overhead captures the operators' launches.",
        choices=("max-autotune", "reduce-overhead"),
    ),
    Option(
        "fallback", "choice", "error", "graph", "here",
        "error refuses a graph with operators that GE lacks; split runs these eagerly between GE graphs and warns.",
        "Same; each change between GE and eager waits for the device.",
        choices=("error", "split"),
    ),
    Option("post_grad_custom_pre_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("before"), "Same.",
           fixed=True),
    Option("post_grad_custom_post_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("after"), "Same.",
           fixed=True),
)  # fmt: skip

DEBUG: Final = (
    Option("debug.fx_summary.type", "choice", None, "none", "here",
           "Writes summary_<time>.csv: which operators of the model have a converter.", "Same.",
           choices=(None, "csv")),
    _flag("debug.fx_summary.skip_compile", True, "runtime", "here",
          "With fx_summary.type: run the ATen graph eagerly instead of compiling it.", device="Same."),
    Option("debug.graph_dump.type", "choice", None, "none", "here",
           "Writes the GE graph before and after its passes as text, runnable Python or a page.", "Same.",
           choices=(None, "txt", "pbtxt", "py", "html"), also=("debug.graph_dump.dtype",)),
    Option("debug.graph_dump.path", "directory", "./", "none", "here", "Folder of the graph dumps.", "Same."),
    Option("debug.data_dump.type", "choice", None, "runtime", "here",
           "Runs the ATen graph operator by operator and saves inputs and outputs; graph options are inactive.",
           "Same.", choices=(None, "npy")),
    Option("debug.data_dump.filter", "callable", None, "none", "here",
           "Called with an FX node; returning None leaves the node out of the dump.", "Same.", fixed=True),
    Option("debug.data_dump.path", "directory", "./", "none", "here", "Folder of the tensor dumps.", "Same."),
    _flag("debug.run_eagerly", False, "runtime", "here",
          "Runs the ATen graph eagerly after the FX passes; nothing is lowered and GE options are inactive.",
          device="Same."),
    _flag("debug.deadlock_check", False, "none", "device", "None: one queue of work, nothing can dead-lock.",
          device="Reports pairs of communication tasks on two streams that together need more cores than there are."),
)  # fmt: skip

EXPORT: Final = (
    _flag("export.export_mode", False, "graph", "here",
          "What dynamo_export does; compiling with it set is refused, because an export has no result to run.",
          device="Same."),
    Option("export.export_path_dir", "name", None, "none", "here",
           "Folder of dynamo_export where its argument export_path is left out.", "Same."),
    Option("export.export_name", "name", None, "none", "here",
           "Name of the graph file where dynamo_export's argument export_name is left out.", "Same."),
    _flag("export.experimental.auto_atc_config_generated", False, "none", "here",
          "dynamo_export writes the ATC configuration templates beside the exported graph.", device="Same."),
    _flag("export.experimental.enable_record_nn_module_stack", False, "none", "here",
          "The exported graph carries the module path of each node.", device="Same."),
    _flag("export.experimental.enable_lite_export", False, "graph", "later",
          "Uses the lite converters when exporting.", device="Same."),
)  # fmt: skip

DUMP: Final = (
    _flag("dump_config.enable_dump", False, "runtime", "here", "Saves what goes in and out of the GE operators as npy.",
          device="Switches the device's data dump on.",
          ge_key="ge.exec.enableDump", ge_values=ON_OFF, ge_level="global"),
    Option("dump_config.dump_path", "directory", "./", "runtime", "here", "Folder of the dump.", _DUMP_DEVICE,
           ge_key="ge.exec.dumpPath", ge_level="global"),
    Option("dump_config.dump_mode", "choice", "all", "runtime", "here", "What is saved.", _DUMP_DEVICE,
           choices=("input", "output", "all"), ge_key="ge.exec.dumpMode", ge_level="global"),
    _flag("dump_config.quant_dumpable", False, "runtime", "device", "None.",
          device="Keeps the tensors before quantisation so that they can be dumped.",
          ge_key="ge.quant_dumpable", ge_values=ON_OFF, ge_level="global"),
    Option("dump_config.dump_step", "text", None, "runtime", "here", "Which runs are dumped, from 0.", _DUMP_DEVICE,
           form=r"\d+(-\d+)?(\|\d+(-\d+)?)*", example="0|3-5|10", ge_key="ge.exec.dumpStep", ge_level="global"),
    Option("dump_config.dump_layer", "name", None, "runtime", "here", "Names of the operators to dump, by blanks.",
           "Names of the operators to dump, separated by blanks.", ge_key="ge.exec.dumpLayer", ge_level="global"),
    Option("dump_config.dump_data", "choice", "tensor", "runtime", "here", "Arrays, or a csv of their statistics.",
           _DUMP_DEVICE, choices=("tensor", "stats"), ge_key="ge.exec.dumpData", ge_level="global"),
    Option("dump_config.dump_config_path", "file", None, "runtime", "device", "None.",
           "A JSON file that describes the whole dump.", content="dump_json", ge_key="ge_dump_with_acl_config",
           ge_level="global"),
)  # fmt: skip

GE: Final = (
    Option("fusion_config.fusion_switch_file", "file", None, "graph", "device",
           "The file is read and checked; nothing is fused here.", "Switches fusion passes on and off.",
           content="fusion_switch", ge_key="ge.fusionSwitchFile"),
    Option("inference_config.dynamic_gears_merge_policy", "choice", "zip", "graph", "later",
           "How the gear lists of several inputs combine.", "Same.", choices=("zip", "product")),
    Option("ge_config.export_compile_stat", "choice", "2", "none", "device", "None.",
           "fusion_result.json: '0' never, '1' at exit, '2' when a graph is compiled.", choices=("0", "1", "2"),
           ge_key="ge.exportCompileStat", ge_level="global"),
    _flag("ge_config.enable_single_stream", False, "runtime", "device",
          "None for the run; refused together with a stream switch in the graph.",
          device="The whole static graph runs on one stream.", ge_key="ge.enableSingleStream", ge_values=TRUE_FALSE,
          ge_level="global", also=("experimental_config.enable_single_stream",)),
    Option("ge_config.oo_level", "choice", "O3", "graph", "device", "None.",
           "O1 switches fusion off, O3 is everything.", choices=("O1", "O3"), ge_key="ge.oo.level", ge_level="global"),
    Option("ge_config.oo_constant_folding", "choice", None, "graph", "device", "None.",
           "Constant folding; None follows oo_level.", choices=(None, True, False), ge_key="ge.oo.constantFolding",
           ge_values=TRUE_FALSE, ge_level="global"),
    Option("ge_config.oo_dead_code_elimination", "choice", None, "graph", "device", "None.",
           "Removal of dead branches; None follows oo_level.", choices=(None, True, False),
           ge_key="ge.oo.deadCodeElimination", ge_values=TRUE_FALSE, ge_level="global"),
    Option("ge_config.optimization_switch", "text", None, "graph", "device",
           "The text is checked; nothing is fused here.", "Any pass on or off; beats fusion_switch_file.",
           form=r"[A-Za-z_]\w*:(on|off)(;[A-Za-z_]\w*:(on|off))*;?", example="PassA:on;PassB:off",
           ge_key="ge.optimizationSwitch", ge_level="global"),
    Option("ge_config.aicore_num", "text", None, "runtime", "device", "None.",
           "Upper limits of AI cores and vector cores; an operator's own limit wins.", form=r"[1-9]\d*\|[1-9]\d*",
           example="24|48", ge_key="ge.aicoreNum", ge_level="global"),
    Option("aoe_config.aoe_mode", "choice", None, "graph", "device", "None.", "'2' tunes operators.",
           choices=(None, "2"), ge_key="ge.jobType", ge_level="global"),
    Option("aoe_config.work_path", "directory", "./", "none", "device", "None.", "Folder of the tuning.",
           ge_key="ge.tuningPath", ge_level="global"),
    Option("aoe_config.aoe_config_file", "file", None, "graph", "device", "None.", "Configuration of the tuning.",
           ge_key="ge.aoe_config_file", ge_level="global"),
)  # fmt: skip

EXPERIMENTAL: Final = (
    _flag("experimental_config.remove_noop_ops", True, "graph", "here",
          "FX pass RemoveNoops: full slices, same-dtype casts, clones and the like are dropped.", device="Same."),
    _flag("experimental_config.pattern_fusion_pass", True, "graph", "here",
          "FX passes FusePatterns (rules of register_replacement) and FuseRmsNorm.",
          device="Same, and the rules for operators of torch_npu."),
    _flag("experimental_config.enable_view_optimize", True, "graph", "here",
          "FX pass MergeViews: chains of views become one; nothing in graphs with scopes.", device="Same."),
    _flag("experimental_config.frozen_parameter", False, "runtime", "device",
          "None: the embedded engine reads parameters where they lie.",
          device="Engine options frozen_parameter and frozenInput: addresses of parameters, buffers and tensors marked "
          "static are taken as fixed; saves refreshing them."),
    _flag("experimental_config.enable_ref_data", False, "graph", "here",
          "Inputs that the graph writes become RefData, written by Assign inside the graph; no copy back.",
          device="Same."),
    _flag("experimental_config.keep_inference_input_mutation", True, "graph", "here",
          "Writes to inputs stay in the inference graph; False leaves the copy to AOTAutograd.", device="Same."),
    Option("experimental_config.topology_sorting_strategy", "choice", "DFS", "graph", "here",
           "Order of the nodes; DFS keeps the order in which they were traced.",
           "Order in which operators are laid out; StableRDFS keeps the traced order.",
           choices=("DFS", "BFS", "RDFS", "StableRDFS"), ge_key="ge.topoSortingMode",
           ge_values={"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}, ge_always=True),
    _flag("experimental_config.cc_parallel_enable", False, "graph", "device", "None.",
          device="Splits AllReduce and its neighbours so that computing and communication overlap.",
          ge_key="ge.exec.enableEngineParallel", ge_values=ON_OFF, ge_level="global"),
    Option("experimental_config.jit_compile", "choice", "auto", "graph", "device", "None.",
           "Static shapes: operators are compiled; dynamic shapes: prebuilt binaries first.", choices=("auto",),
           ge_key="ge.jit_compile", ge_values={"auto": "2"}, ge_always=True),
    Option("experimental_config.static_model_ops_lower_limit", "int", None, "graph", "device", "None.",
           "Static parts of a dynamic graph with fewer operators run dynamically; -1: all of them.", low=-1,
           holes=(0, 1), ge_key="ge.exec.static_model_ops_lower_limit"),
    _flag("experimental_config.tiling_schedule_optimize", False, "graph", "device", "None.",
          device="Tiling of value-dependent operators moves to the device; static graphs only.",
          ge_key="ge.tiling_schedule_optimize", ge_values=ON_OFF, ge_always=True),
    _flag("experimental_config.memory_efficiency", False, "runtime", "device", "None.",
          device="Feature memory may be moved between runs.", ge_key="ge.featureBaseRefreshable", ge_values=ON_OFF,
          ge_always=True),
    _flag("experimental_config.separate_atomic_clean", True, "runtime", "device", "None.",
          device="Memory of all atomic operators is cleared in one go.", ge_key="ge.exec.atomicCleanPolicy",
          ge_values=ON_OFF, ge_always=True),
    _flag("experimental_config.npu_fx_pass", False, "graph", "here",
          "Older name of pattern_fusion_pass, which has them on already; refused together with its False.",
          device="Same."),
    _flag("experimental_config.aot_config_enable_joint_graph", False, "graph", "here",
          "Training: the backward graph holds the forward too and starts from the inputs, nothing else is saved.",
          device="Same."),
    Option("experimental_config.aot_config_output_loss_index", "choice", None, "graph", "here",
           "With a joint graph and 0: the forward graph computes the gradients of the loss, which must be the only "
           "result with one; backward scales them.", "Same.", choices=(None, 0)),
)  # fmt: skip

GRAPH_EX: Final = (
    _flag("force_eager", False, "runtime", "here", "FX passes run, nothing is captured.", device="Same."),
    _flag("force_recapture", False, "runtime", "here", "Captures again before every run, in memory of its own.",
          device="Same."),
    Option("use_graph_pool", "tuple", None, "runtime", "device", "None.",
           "All graphs with these options share this memory pool.", fixed=True),
    _flag("reuse_graph_pool_in_same_fx", True, "runtime", "device", "None.",
          device="Captured graphs of one FX graph share a memory pool."),
    Option("capture_limit", "int", 64, "runtime", "here", "Shapes captured per FX graph; beyond it runs are eager.",
           "Same.", low=1),
    _flag("clone_input", True, "runtime", "here", "User inputs are copied into static buffers.", device="Same."),
    _flag("clone_output", False, "runtime", "here", "Outputs are copies that later runs leave alone.",
          device="Same."),
    _flag("static_kernel_compile", False, "graph", "device", "None.", device="Kernels are compiled for their shapes."),
    _flag("disable_static_kernel_compile_cache", False, "none", "device", "None.",
          device="With static_kernel_compile: no cache of compiled kernels."),
    _flag("frozen_parameter", False, "runtime", "device", "None.",
          device="Addresses of Parameters are taken as fixed."),
    _flag("remove_noop_ops", True, "graph", "here", "FX pass RemoveNoops.", device="Same."),
    _flag("remove_cat_ops", True, "graph", "here", "cat along dim 0 becomes writes into one buffer.", device="Same."),
    _flag("inplace_pass", True, "graph", "here", "Intermediate results are reused in place.", device="Same."),
    _flag("input_inplace_pass", True, "graph", "here", "An operator followed by a copy into an input is in place.",
          device="Same."),
    _flag("pattern_fusion_pass", True, "graph", "here", "FX passes FusePatterns and FuseRmsNorm.",
          device="Same, and the rules for operators of torch_npu."),
    Option("post_grad_custom_pre_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("before"), "Same.",
           fixed=True),
    Option("post_grad_custom_post_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("after"), "Same.",
           fixed=True),
    _flag("dump_tensor_data", False, "runtime", "here",
          "Runs operator by operator and saves the graph's inputs and each operator's output.", device="Same."),
    Option("data_dump_stage", "choice", "optimized", "runtime", "here", "Which FX graph is dumped.", "Same.",
           choices=("original", "optimized")),
    Option("data_dump_dir", "directory", "./", "none", "here", "Folder of the tensor dump.", "Same."),
    _flag("deadlock_check", False, "none", "device", "None.", device="As debug.deadlock_check."),
    Option("capture_error_mode", "choice", "global", "runtime", "device", "None.",
           "Which threads' unsafe calls are errors while capturing.", choices=("global", "thread_local", "relaxed")),
    _flag("super_kernel_optimize", False, "graph", "device", "None.", device="Super kernels in captured graphs."),
    Option("super_kernel_optimize_options", "dict", None, "graph", "device", "None.", "Options of super kernels."),
    Option("super_kernel_debug_options", "dict", None, "none", "device", "None.", "Debug options of super kernels."),
    Option("_vllm_aclnn_static_kernel_sym_index", "int", 0, "graph", "device", "None.", "Private to one framework."),
    Option("_vllm_aclnn_static_kernel_sym_range", "int_list", None, "graph", "device", "None.",
           "Private to one framework."),
    Option("mode", "choice", "npugraph_ex", "none", "here", "Names the backend.", "Same.", choices=("npugraph_ex",)),
)  # fmt: skip

OPTIONS: Final = TOP + DEBUG + EXPORT + DUMP + GE + EXPERIMENTAL
"""The tree of ``CompilerConfig``."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two settings that cannot both hold: option path and value that must not meet, and why.

    ``one`` and ``other`` map paths to a value; a value of ``...`` means "anything but the default".
    """

    one: tuple[str, Any]
    other: tuple[str, Any]
    why: str


def _against_dump_file(name: str) -> Conflict:
    return Conflict(
        ("dump_config.dump_config_path", ...), (f"dump_config.{name}", ...), "the file describes the whole dump"
    )


CONFLICTS: Final = (
    Conflict(("experimental_config.frozen_parameter", True), ("export.export_mode", True),
             "an exported graph has no addresses to hold"),
    Conflict(("experimental_config.aot_config_output_loss_index", 0),
             ("experimental_config.aot_config_enable_joint_graph", False), "only a joint graph has a loss"),
    Conflict(("experimental_config.npu_fx_pass", True), ("experimental_config.pattern_fusion_pass", False),
             "both name the switch of the fusion rules"),
    Conflict(("aclgraph_config.disable_static_kernel_compile_cache", True),
             ("aclgraph_config.static_kernel_compile", False), "without compiled kernels there is no cache of them"),
    Conflict(("aclgraph_config.force_eager", True), ("aclgraph_config.force_recapture", True),
             "what runs eagerly is not captured"),
    Conflict(("debug.run_eagerly", True), ("export.export_mode", True), "what runs eagerly is not exported"),
    *(_against_dump_file(n) for n in ("enable_dump", "dump_mode", "quant_dumpable", "dump_step", "dump_layer",
                                      "dump_data")),
)  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(rows: Iterable[Option]) -> list[str]:
    lines = [
        "| Option | Allowed | Default | Effect here | Effect on a device | GE key |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        here = row.here
        if row.effective == "later":
            here += " **Not built yet: refused when compiling.**"
        key = f"`{row.ge_key}`" if row.ge_key else ""
        cells = (f"`{row.path}`", row.allowed, f"`{row.default!r}`", here, row.device, key)
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
        lines[-1] += "".join(f"\n| `{old}` | older name of `{row.path}` | | | | |" for old in row.also)
    return lines


def markdown() -> str:
    """The text of ``docs/options.md``."""
    parts = [
        "# Options",
        "",
        "Written from `torchair/options.py` by `python -m torchair.options`; do not edit.",
        "",
        "`config = torchair.CompilerConfig()` holds the options of the first tables. `config.mode = x` and",
        "`config.mode.value = x` both set one. A value that is not allowed, an unknown name and two settings that",
        "exclude each other are errors. An option that only a device honours is reported once in the log when a",
        "graph is compiled for another engine.",
        "",
    ]
    sections = (
        ("Top level", TOP), ("debug", DEBUG), ("export", EXPORT), ("dump_config", DUMP),
        ("fusion_config, inference_config, ge_config, aoe_config", GE), ("experimental_config", EXPERIMENTAL),
        ("Options of captured graphs: `torch.compile(options=…)` of npugraph_ex, `config.aclgraph_config`", GRAPH_EX),
    )  # fmt: skip
    for title, rows in sections:
        parts += [f"## {title}", "", *_table(rows), ""]
    parts += ["## Settings that exclude each other", "", "| One | Other | Why |", "|---|---|---|"]
    for c in CONFLICTS:
        one, other = (f"`{p}`" + ("" if v is ... else f" = `{v!r}`") for p, v in (c.one, c.other))
        parts.append(f"| {one} | {other} | {c.why} |")
    return "\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write ``docs/options.md``, or compare with it under ``--check``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torchair.options", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the file differs")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/options.md"))
    args = parser.parse_args(argv)
    text = markdown()
    if not args.check:
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, encoding="utf-8")
        return 0
    if args.file.is_file() and args.file.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{args.file} is out of date: run python -m torchair.options\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
