"""Every option as a row: where it lives, what it may be, what it changes here and on a device.

``compiler_config.py`` builds the ``CompilerConfig`` tree from these rows, ``docs/options.md`` is written from them
(``python -m torchair.config.options``, ``--check`` fails if the file is out of date).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ge_graph.files import generate
from ge_graph.option_levels import Level, home

INT64_MAX: Final = 9223372036854775807
ON_OFF: Final = {True: "1", False: "0"}
TRUE_FALSE: Final = {True: "true", False: "false"}

Kind = Literal["choice", "int", "text", "name", "directory", "file", "path", "callable", "int_list", "dict", "tuple"]
Affects = Literal["graph", "runtime", "none"]
Effective = Literal["here", "device", "numerics", "later"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        path: Place in the tree, ``debug.graph_dump.type``.
        kind: What values are: one of ``choices``, an int in ``low..high``, text of a form, a path, a callable …
        default: Value before anybody sets it.
        affects: ``graph`` (part of a cache key), ``runtime`` (same graph, other execution) or ``none`` (only looks).
        effective: ``here`` (on every engine), ``device`` (needs an NPU, reported once elsewhere), ``numerics`` (as
            ``device``, but the embedded engine honours it under ``config.numerics``), ``later`` (not built yet: a value
            other than the default is refused when compiling).
        here: Effect on the embedded engine, one sentence.
        device: Effect on a device, one sentence.
        choices: Allowed values of a ``choice``; may hold None.
        same: Another name of a value, and that value.
        holes: Ints inside the range that are refused.
        form: Regular expression of a ``text``.
        example: A value of that form, shown in errors.
        ge_key: GE option that carries the value.
        ge_values: Value to text; None means ``str``.
        ge_always: Send the key although the option has its default.
        env: Environment variable that gives the default, read when the config is made.
        content: Check of the file behind a path: ``fusion_switch`` or ``dump_json``.
        also: Older places that mean the same option.
        opposite: Older places of a switch that turns this one off.
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
    same: Mapping[str, str] = field(default_factory=dict, hash=False)
    low: int = 0
    high: int = INT64_MAX
    holes: tuple[int, ...] = ()
    form: str = ""
    example: str = ""
    ge_key: str = ""
    ge_values: Mapping[Any, str] | None = field(default=None, hash=False)
    ge_always: bool = False
    env: str = ""
    content: Literal["", "fusion_switch", "dump_json"] = ""
    also: tuple[str, ...] = ()
    opposite: tuple[str, ...] = ()
    fixed: bool = False

    @property
    def ge_level(self) -> Level:
        """The level of GE that the key is sent to."""
        return home(self.ge_key)


def words(value: Any) -> str:
    """What an option may be, from its row or its value object: kind, default and what the kind has besides."""
    if value.kind == "choice":
        others = [f"{name!r} (means {meant!r})" for name, meant in value.same.items()]
        return "anything" if value.choices is None else ", ".join([*map(repr, value.choices), *others])
    said = _WORDS.get(value.kind, "")
    if value.kind == "int":
        holes = f" except {', '.join(map(str, value.holes))}" if value.holes else ""
        said = f"int in [{value.low}, {value.high}]{holes}"
    elif value.kind == "text" and value.example:
        said = f"text such as {value.example!r}"
    return said + (" or None" if value.default is None else "")


_WORDS: Final = {
    "text": "text", "name": "text", "directory": "a folder with read and write rights, made if it is missing",
    "file": "an existing readable file", "path": "an existing path", "callable": "a callable",
    "int_list": "a list of ints", "dict": "a dict", "tuple": "a tuple",
}  # fmt: skip


def _flag(path: str, default: bool, affects: Affects, effective: Effective, here: str, **more: Any) -> Option:
    return Option(path, "choice", default, affects, effective, here, choices=(True, False), **more)


_FX_PASS_DOC = "Runs on the ATen graph {} the built-in passes, edits it in place; its return value is ignored."
_DUMP_DEVICE = "Part of the device's data dump; needs dump_config.enable_dump."

TOP: Final = (
    Option(
        "mode", "choice", "max-autotune", "graph", "here",
        "max-autotune lowers to one GE graph; npugraph_ex (older name: reduce-overhead) replays a program of the ATen "
        "graph.",
        "max-autotune runs the GE graph; npugraph_ex captures the operators' launches.",
        choices=("max-autotune", "reduce-overhead"), same={"npugraph_ex": "reduce-overhead"},
    ),
    Option(
        "fallback", "choice", "error", "graph", "here",
        "error refuses a graph with operators that GE lacks; split runs these eagerly between GE graphs and warns.",
        "Same; each change between GE and eager waits for the device.",
        choices=("error", "split"),
    ),
    Option("check_soc", "text", None, "graph", "here",
           "The chip, such as ascend910b, for which every graph is made and checked: operators take the form that it "
           "runs on AI Core; those without a kernel and those on AI CPU are warned of with the line they come from. "
           "See docs/check.md.", "Same.",
           form=r"[A-Za-z0-9_]+", example="ascend910b"),
    _flag("check_soc_error", False, "none", "here",
          "With check_soc: an operator without a kernel is an error instead of a warning.", device="Same."),
    Option("numerics", "choice", None, "runtime", "here",
           "The chip whose rounding the embedded engine shows: HF32, float16 and bfloat16 with float32 accumulation, "
           "casts, and the options of precision in ge_config; ':saturation' is the overflow mode without infinity and "
           "NaN. See docs/device.md.", "None: the chip rounds itself.",
           choices=(None, "ascend910b", "ascend910b:saturation", "ascend910_93", "ascend910_93:saturation",
                    "ascend950")),
    Option("cann_version", "text", None, "graph", "here",
           "The CANN, of 8.2 to 9.1, whose operator definitions graphs are built and checked against; None: the newest "
           "known.", "Same.",
           form=r"\d+\.\d+(\.\w+)*", example="8.5.0"),
    Option("post_grad_custom_pre_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("before"), "Same.",
           fixed=True),
    Option("post_grad_custom_post_pass", "callable", None, "graph", "here", _FX_PASS_DOC.format("after"), "Same.",
           fixed=True),
    Option("cache_dir", "name", None, "none", "here",
           "Folder of the compile cache, made if missing; None compiles every graph in every process.", "Same.",
           env="TORCHAIR_CACHE_DIR"),
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
    _flag("debug.verify_rewrites", False, "none", "here",
          "Evaluates what each FX pass, pattern and GE pass replaces beside what it puts there, on inputs that are "
          "hard to get right, and raises GE1025 with a counter-example; slow.", device="Same.",
          env="TAIR_VERIFY_REWRITES"),
    _flag("debug.deadlock_check", False, "none", "here",
          "Warns of pairs of communication tasks on two streams that together want more vector cores than the chip of "
          "check_soc has, else ascend910b.", device="Same."),
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
          ge_key="ge.exec.enableDump", ge_values=ON_OFF),
    Option("dump_config.dump_path", "directory", "./", "runtime", "here", "Folder of the dump.", _DUMP_DEVICE,
           ge_key="ge.exec.dumpPath"),
    Option("dump_config.dump_mode", "choice", "all", "runtime", "here", "What is saved.", _DUMP_DEVICE,
           choices=("input", "output", "all"), ge_key="ge.exec.dumpMode"),
    _flag("dump_config.quant_dumpable", False, "runtime", "device", "None.",
          device="Keeps the tensors before quantisation so that they can be dumped.",
          ge_key="ge.quant_dumpable", ge_values=ON_OFF),
    Option("dump_config.dump_step", "text", None, "runtime", "here", "Which runs are dumped, from 0.", _DUMP_DEVICE,
           form=r"\d+(-\d+)?(\|\d+(-\d+)?)*", example="0|3-5|10", ge_key="ge.exec.dumpStep"),
    Option("dump_config.dump_layer", "name", None, "runtime", "here", "Names of the operators to dump, by blanks.",
           "Names of the operators to dump, separated by blanks.", ge_key="ge.exec.dumpLayer"),
    Option("dump_config.dump_data", "choice", "tensor", "runtime", "here", "Arrays, or a csv of their statistics.",
           _DUMP_DEVICE, choices=("tensor", "stats"), ge_key="ge.exec.dumpData"),
    Option("dump_config.dump_config_path", "file", None, "runtime", "device", "None.",
           "A JSON file that describes the whole dump.", content="dump_json", ge_key="ge_dump_with_acl_config"),
)  # fmt: skip

GE: Final = (
    Option("fusion_config.fusion_switch_file", "file", None, "graph", "device",
           "The file is read and checked; nothing is fused here.", "Switches fusion passes on and off.",
           content="fusion_switch", ge_key="ge.fusionSwitchFile"),
    Option("inference_config.dynamic_gears_merge_policy", "choice", "zip", "graph", "here",
           "How the lists of set_dim_gears combine: the i-th entries of all, or every combination.", "Same.",
           choices=("zip", "product")),
    Option("ge_config.export_compile_stat", "choice", "2", "none", "device", "None.",
           "fusion_result.json: '0' never, '1' at exit, '2' when a graph is compiled.", choices=("0", "1", "2"),
           ge_key="ge.exportCompileStat"),
    _flag("ge_config.enable_single_stream", False, "runtime", "device",
          "None for the run; refused together with a stream switch in the graph.",
          device="The whole static graph runs on one stream.", ge_key="ge.enableSingleStream", ge_values=TRUE_FALSE,
          also=("experimental_config.enable_single_stream",)),
    Option("ge_config.oo_level", "choice", "O3", "graph", "device", "None.",
           "O1 switches fusion off, O3 is everything.", choices=("O1", "O3"), ge_key="ge.oo.level"),
    Option("ge_config.oo_constant_folding", "choice", None, "graph", "device", "None.",
           "Constant folding; None follows oo_level.", choices=(None, True, False), ge_key="ge.oo.constantFolding",
           ge_values=TRUE_FALSE),
    Option("ge_config.oo_dead_code_elimination", "choice", None, "graph", "device", "None.",
           "Removal of dead branches; None follows oo_level.", choices=(None, True, False),
           ge_key="ge.oo.deadCodeElimination", ge_values=TRUE_FALSE),
    Option("ge_config.optimization_switch", "text", None, "graph", "device",
           "The text is checked; nothing is fused here.", "Any pass on or off; beats fusion_switch_file.",
           form=r"[A-Za-z_][\w-]*:(on|off)(;[A-Za-z_][\w-]*:(on|off))*;?", example="PassA:on;PassB:off",
           ge_key="ge.optimizationSwitch"),
    Option("ge_config.aicore_num", "text", None, "runtime", "device", "None.",
           "Upper limits of AI cores and vector cores, at most the chip's; a chip with one kind of core takes '24' or "
           "'24|'. An operator's own limit wins.", form=r"[1-9]\d*(\|([1-9]\d*)?)?",
           example="24|48", ge_key="ge.aicoreNum"),
    Option("ge_config.precision_mode", "choice", None, "graph", "numerics",
           "With config.numerics: operands and results of the operators it names are rounded to its type.",
           "Types that GE may compute in; None leaves it to the chip.",
           choices=(None, "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "mixed_hif8",
                    "cube_hif8"), ge_key="ge.exec.precision_mode_v2"),
    Option("ge_config.op_precision_mode", "file", None, "graph", "numerics",
           "With config.numerics: enable_float_32_execution and enable_hi_float_32_execution act; others are reported.",
           "An ini file with the precision of single operators.", ge_key="ge.exec.op_precision_mode"),
    Option("ge_config.modify_mixlist", "file", None, "graph", "numerics",
           "With config.numerics and a mixed precision_mode: which operators round; GE's own lists are not known.",
           "A JSON file that moves operators between the lists of mixed precision; needs a mixed precision_mode.",
           ge_key="ge.exec.modify_mixlist"),
    Option("ge_config.customize_dtypes", "file", None, "graph", "numerics",
           "With config.numerics: operands and results of the named operators are rounded to these types.",
           "A file with the element types of single operators.", ge_key="ge.customizeDtypes"),
    Option("ge_config.allow_hf32", "choice", None, "graph", "numerics",
           "With config.numerics: operands of these operators are rounded to HF32; '10' if it is not set.",
           "Convolutions (first digit) and matrix products (second) of float32 may round to HF32; GE's default is "
           "'10'.", choices=(None, "00", "01", "10", "11"), ge_key="ge.exec.allow_hf32"),
    Option("ge_config.deterministic_level", "choice", None, "graph", "device", "None.",
           "0 off, 1 equal results run by run, 2 stronger, 3 independent of the batch; slower.",
           choices=(None, 0, 1, 2, 3), ge_key="ge.deterministicLevel"),
    Option("ge_config.disable_optimizations", "text", None, "graph", "device", "None.",
           "Names of GE passes that do not run.", form=r"[A-Za-z_]\w*(,[A-Za-z_]\w*)*", example="PassA,PassB",
           ge_key="ge.disableOptimizations"),
    Option("ge_config.auto_multi_stream", "text", None, "runtime", "device", "None.",
           "GE spreads operators over streams: cv, LoadBalance:N or MainStream:N with N streams.",
           form=r"cv|(LoadBalance|MainStream):([1-9]|[1-5]\d|6[0-4])", example="LoadBalance:4",
           ge_key="ge.autoMultistreamParallelMode"),
    Option("ge_config.memory_optimization_policy", "choice", None, "runtime", "device", "None.",
           "MemoryPriority delays operators to lower the peak of memory.",
           choices=(None, "MemoryPriority", "BalancePriority"), ge_key="ge.exec.memoryOptimizationPolicy"),
    Option("ge_config.static_memory_policy", "choice", None, "runtime", "device", "None.",
           "'0' memory for each graph, '2' one pool a session that grows, '3' and '4' for dynamic graphs too.",
           choices=(None, "0", "2", "3", "4"), ge_key="ge.exec.staticMemoryPolicy"),
    _flag("ge_config.reuse_zero_copy_memory", False, "runtime", "device", "None.",
          device="Memory of inputs and outputs is planned as one block that can be reused.",
          ge_key="ge.exec.reuseZeroCopyMemory", ge_values=ON_OFF),
    Option("ge_config.const_lifecycle", "choice", None, "runtime", "device", "None.",
           "Constants live as long as the graph, or the session, which shares them by name.",
           choices=(None, "graph", "session"), ge_key="ge.constLifecycle"),
    Option("ge_config.external_weight", "choice", None, "none", "device", "None.",
           "Where GE keeps constants: '0' in the model, '1' a file each, '2' one file.", choices=(None, "0", "1", "2"),
           ge_key="ge.externalWeight"),
    Option("ge_config.external_weight_dir", "directory", None, "none", "device", "None.", "Folder of these files.",
           ge_key="ge.externalWeightDir"),
    _flag("ge_config.all_tensor_not_empty", False, "graph", "device", "None.",
          device="A promise that no tensor has zero elements; kernels of dynamic shapes skip their checks.",
          ge_key="ge.exec.allTensorNotEmpty", ge_values=ON_OFF),
    Option("ge_config.host_scheduling_max_threshold", "int", None, "graph", "device", "None.",
           "Static graphs with fewer operators are scheduled from the host.",
           ge_key="ge.exec.hostSchedulingMaxThreshold"),
    Option("ge_config.op_execute_timeout", "int", None, "runtime", "device", "None.",
           "Time limit of an operator in milliseconds.", low=1, ge_key="ge.exec.opExecuteTimeout"),
    Option("ge_config.op_wait_timeout", "int", None, "runtime", "device", "None.",
           "Time limit of waiting for an event in seconds.", low=1, ge_key="ge.exec.opWaitTimeout"),
    Option("ge_config.stream_sync_timeout", "int", None, "runtime", "device", "None.",
           "Time limit of waiting for a stream in milliseconds; -1: none.", low=-1, ge_key="stream_sync_timeout"),
    Option("ge_config.exception_dump", "choice", None, "none", "device", "None.",
           "What is saved of an operator that fails: '0' nothing, '1' everything, '2' the essentials.",
           choices=(None, "0", "1", "2"), ge_key="ge.exec.enable_exception_dump"),
    Option("ge_config.op_debug_level", "choice", None, "none", "device", "None.",
           "'0' to '4': which files of compiling operators stay, and flags for debugging them.",
           choices=(None, "0", "1", "2", "3", "4"), ge_key="ge.opDebugLevel"),
    Option("ge_config.op_debug_config", "file", None, "none", "device", "None.",
           "A cfg file: memory checks and compiler flags of single operators.", ge_key="op_debug_config"),
    Option("ge_config.debug_dir", "directory", None, "none", "device", "None.",
           "Folder of the files that op_debug_level keeps.", ge_key="ge.debugDir"),
    Option("ge_config.op_compiler_cache_mode", "choice", None, "none", "device", "None.",
           "The cache of compiled operators: used, made anew, or off.", choices=(None, "enable", "force", "disable"),
           ge_key="ge.op_compiler_cache_mode"),
    Option("ge_config.op_compiler_cache_dir", "directory", None, "none", "device", "None.", "Its folder.",
           ge_key="ge.op_compiler_cache_dir"),
    Option("aoe_config.aoe_mode", "choice", None, "graph", "device", "None.",
           "Tuning of '1' subgraphs, '2' operators, '4' gradients.",
           choices=(None, "1", "2", "4"), ge_key="ge.jobType"),
    Option("aoe_config.work_path", "directory", "./", "none", "device", "None.", "Folder of the tuning.",
           ge_key="ge.tuningPath"),
    Option("aoe_config.aoe_config_file", "file", None, "graph", "device", "None.", "Configuration of the tuning.",
           ge_key="ge.aoe_config_file"),
)  # fmt: skip

EXPERIMENTAL: Final = (
    _flag("experimental_config.remove_noop_ops", True, "graph", "here",
          "FX pass RemoveNoops: full slices, same-dtype casts, clones and the like are dropped.", device="Same."),
    _flag("experimental_config.pattern_fusion_pass", True, "graph", "here",
          "FX passes FusePatterns (rules of register_replacement), FuseRmsNorm and FuseQuantisedProducts, GE pass "
          "fuse_operators.",
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
          "Writes to inputs stay in the inference graph; False leaves the copy to AOTAutograd.", device="Same.",
          also=("experimental_config.keep_inference_input_mutations",)),
    Option("experimental_config.topology_sorting_strategy", "choice", "DFS", "graph", "here",
           "Order of the nodes; DFS keeps the order in which they were traced.",
           "Order in which operators are laid out; StableRDFS keeps the traced order.",
           choices=("DFS", "BFS", "RDFS", "StableRDFS"), ge_key="ge.topoSortingMode",
           ge_values={"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}, ge_always=True),
    _flag("experimental_config.cc_parallel_enable", False, "graph", "device", "None.",
          device="Splits AllReduce and its neighbours so that computing and communication overlap.",
          ge_key="ge.exec.enableEngineParallel", ge_values=ON_OFF),
    Option("experimental_config.jit_compile", "choice", "auto", "graph", "device", "None.",
           "Static shapes: operators are compiled; dynamic shapes: prebuilt binaries first.", choices=("auto",),
           ge_key="ge.jit_compile", ge_values={"auto": "2"}, ge_always=True),
    Option("experimental_config.static_model_ops_lower_limit", "int", None, "graph", "device", "None.",
           "Static parts of a dynamic graph with fewer operators run dynamically; -1: all of them.", low=-1,
           ge_key="ge.exec.static_model_ops_lower_limit"),
    _flag("experimental_config.tiling_schedule_optimize", False, "graph", "device", "None.",
          device="Tiling of value-dependent operators moves to the device; static graphs only.",
          ge_key="ge.tiling_schedule_optimize", ge_values=ON_OFF, ge_always=True),
    _flag("experimental_config.memory_efficiency", False, "runtime", "device", "None.",
          device="Feature memory may be moved between runs.", ge_key="ge.featureBaseRefreshable", ge_values=ON_OFF,
          ge_always=True),
    _flag("experimental_config.separate_atomic_clean", True, "runtime", "device", "None.",
          device="Each operator that adds atomically clears its own memory; False: one clearing for all of them.",
          ge_key="ge.exec.atomicCleanPolicy",
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

_NOT_BUILT: Final = "None in this version, with a warning."

GRAPH_EX: Final = (
    _flag("force_eager", False, "graph", "here", "FX passes run, nothing is captured.", device="Same."),
    _flag("force_recapture", False, "runtime", "here", "Captures again before every run, in memory of its own.",
          device="Same."),
    Option("use_graph_pool", "tuple", None, "runtime", "device", "None.",
           "All graphs with these options share this memory pool.", fixed=True,
          also=("aclgraph_config.use_custom_pool",)),
    _flag("reuse_graph_pool_in_same_fx", True, "runtime", "device", "None.",
          device="Captured graphs of one FX graph share a memory pool.",
          opposite=("debug.aclgraph.disable_mempool_reuse_in_same_fx",)),
    Option("capture_limit", "int", 64, "runtime", "here", "Shapes captured per FX graph; a further one takes the "
           "place of the one that was replayed least, with a warning.", "Same.", low=1,
           also=("debug.aclgraph.static_capture_size_limit",)),
    _flag("clone_input", True, "runtime", "here", "User inputs are copied into static buffers.", device="Same.",
          also=("debug.aclgraph.clone_input",)),
    _flag("clone_output", False, "runtime", "here",
          "Results are always copies. Without it a copy is made only where the caller still holds a result in the next "
          "run; both keep the numbers of what is held.",
          device="Same.",
          also=("debug.aclgraph.clone_output", "debug.aclgraph.enable_output_clone")),
    _flag("static_kernel_compile", False, "runtime", "device", "None.",
          device="Before a capture the program runs once, and what it launches is described in "
          "static_kernel_compile_outputs for CANN's op_compiler.",
          also=("experimental_config.aclgraph._aclnn_static_shape_kernel",)),
    _flag("disable_static_kernel_compile_cache", False, "none", "device", "None.",
          device="As without it: every capture has its operators described anew, none is looked up."),
    _flag("frozen_parameter", False, "runtime", "here",
          "As without it: a replay takes a moment to see that no parameter has moved; one that has is captured anew.",
          device="Same."),
    _flag("remove_noop_ops", True, "graph", "here", "FX pass RemoveNoops.", device="Same."),
    _flag("remove_cat_ops", True, "graph", "here", "cat along dim 0 becomes writes into one buffer.", device="Same.",
          also=("debug.aclgraph.remove_cat_ops",)),
    _flag("inplace_pass", True, "graph", "here", "Intermediate results are reused in place.", device="Same.",
          opposite=("debug.aclgraph.disable_reinplace_inplaceable_ops_pass",)),
    _flag("input_inplace_pass", True, "graph", "here", "An operator followed by a copy into an input is in place.",
          device="Same.",
          opposite=("debug.aclgraph.disable_reinplace_input_mutated_ops_pass",)),
    _flag("pattern_fusion_pass", True, "graph", "here",
          "FX passes FusePatterns, FuseRmsNorm and FuseQuantisedProducts.",
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
    _flag("deadlock_check", False, "none", "here", "As debug.deadlock_check, for captured graphs.", device="Same."),
    Option("capture_error_mode", "choice", "global", "runtime", "device", "None.",
           "Which threads' unsafe calls are errors while capturing.", choices=("global", "thread_local", "relaxed")),
    _flag("record_statistics_debug_info", False, "none", "device", "None.", device=_NOT_BUILT),
    _flag("unsafe_skip_npugraph_capture_validation", False, "none", "device", "None.",
          device="What needs the host is not looked for before a capture; torch_npu says what fails in it."),
    Option("_aclnn_static_shape_kernel_build_dir", "name", None, "none", "device", "None.",
           "With static_kernel_compile: the folder of static_kernel_compile_outputs; None is the current one.",
           also=("experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir",)),
    _flag("super_kernel_optimize", False, "runtime", "device", "None.",
          device="Each captured graph is handed to NPUGraph.super_kernel_optimize of torch_npu.",
          also=("experimental_config.aclgraph._super_kernel_optimize",)),
    Option("super_kernel_optimize_options", "dict", None, "runtime", "device", "None.",
           "With super_kernel_optimize: its optimize_options; torch_npu refuses names that it does not know."),
    Option("super_kernel_debug_options", "dict", None, "runtime", "device", "None.",
           "With super_kernel_optimize: its debug_options."),
    Option("_vllm_aclnn_static_kernel_sym_index", "int", 0, "graph", "device", "None.", _NOT_BUILT,
          also=("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index",)),
    Option("_vllm_aclnn_static_kernel_sym_range", "int_list", None, "graph", "device", "None.",
           _NOT_BUILT,
          also=("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range",)),
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
    Conflict(("ge_config.auto_multi_stream", ...), ("ge_config.enable_single_stream", True),
             "one stream cannot be several"),
    Conflict(("check_soc_error", True), ("check_soc", None), "there is no chip to check for"),
    *(_against_dump_file(n) for n in ("enable_dump", "dump_mode", "quant_dumpable", "dump_step", "dump_layer",
                                      "dump_data")),
)  # fmt: skip


def _table(rows: Iterable[Option]) -> list[str]:
    lines = [
        "| Option | Allowed | Default | Effect here | Effect on a device | GE key |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        here = row.here
        if row.effective == "later":
            here += " **Not built yet: refused when compiling.**"
        key = f"`{row.ge_key}` ({row.ge_level})" if row.ge_key else ""
        cells = (f"`{row.path}`", words(row), f"`{row.default!r}`", here, row.device, key)
        lines.append(table_row(cells))
        lines[-1] += "".join(f"\n| `{old}` | older name of `{row.path}` | | | | |" for old in row.also)
        lines[-1] += "".join(f"\n| `{old}` | turns `{row.path}` off | | | | |" for old in row.opposite)
    return lines


def table_row(cells: Iterable[str]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def markdown() -> str:
    """The text of ``docs/options.md``."""
    parts = [
        "# Options",
        "",
        "Written from `torchair/config/options.py` by `python -m torchair.config.options`; do not edit.",
        "",
        "`config = torchair.CompilerConfig()` holds the options of the first tables. `config.mode = x` and",
        "`config.mode.value = x` both set one. A value that is not allowed, an unknown name and two settings that",
        "exclude each other are errors. The word after a GE key is the level of GE that takes it: the process",
        "(`global`), a session, a graph, or `engine` for what is not an option of GE.",
        "",
        "An option that was set and does nothing, because only a device honours it or the mode does not look at it, is",
        "named once in a Python warning; `config.explain()` and `tair doctor --config` list what every option does.",
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
    return generate("torchair.config.options", Path("docs/options.md"), lambda file: {file: markdown()}, argv)


if __name__ == "__main__":
    raise SystemExit(main())
