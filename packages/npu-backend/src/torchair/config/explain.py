"""What every option does where a configuration is used: acts, acts on a device only, or is ignored and why.

``config.explain()`` shows it, and a compilation or an export warns once of options that were set for nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ge_graph import escape
from torchair.config.log import logger

Use = Literal["max-autotune", "reduce-overhead", "eager", "export"]

_EVERYWHERE: Final = frozenset(
    (
        "mode",
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
        "debug.fx_summary.type",
        "debug.verify_rewrites",
        "experimental_config.remove_noop_ops",
        "experimental_config.pattern_fusion_pass",
        "experimental_config.npu_fx_pass",
    )
)
_NOT_EXPORTING: Final = frozenset(
    (
        "debug.fx_summary.skip_compile",
        "debug.data_dump.type",
        "debug.data_dump.filter",
        "debug.data_dump.path",
        "debug.run_eagerly",
        "debug.deadlock_check",
        "experimental_config.keep_inference_input_mutation",
        "experimental_config.aot_config_enable_joint_graph",
        "experimental_config.aot_config_output_loss_index",
    )
)
_GE_GRAPH: Final = frozenset(
    (
        "debug.graph_dump.type",
        "debug.graph_dump.path",
        "experimental_config.enable_view_optimize",
        "experimental_config.enable_ref_data",
        "experimental_config.topology_sorting_strategy",
    )
)
_CAPTURED: Final = "aclgraph_config."
_CAPTURED_PASSES: Final = frozenset(
    _CAPTURED + name
    for name in (
        "remove_noop_ops",
        "remove_cat_ops",
        "inplace_pass",
        "input_inplace_pass",
        "pattern_fusion_pass",
        "dump_tensor_data",
        "data_dump_stage",
        "data_dump_dir",
        "force_eager",
        "deadlock_check",
    )
)

_NO_KERNELS: Final = "kernels are compiled by CANN's op_compiler, which is not called"
_NOT_BUILT: Final = {
    "record_statistics_debug_info": "torch_npu does not document what it records",
    "_vllm_aclnn_static_kernel_sym_index": _NO_KERNELS,
    "_vllm_aclnn_static_kernel_sym_range": _NO_KERNELS,
}  # options of captured graphs that no device gets from us


@dataclass(frozen=True, slots=True)
class Effect:
    """One option and what it does.

    Attributes:
        option: Its path, or its name in the flat options of npugraph_ex.
        acts: Whether it does something here.
        why: ``acts``, ``acts on a device only`` or on what else, or ``ignored: `` and the reason.
    """

    option: str
    value: str
    acts: bool
    why: str


class Explanation(tuple[Effect, ...]):
    """Effects as a table; ``str`` and ``repr`` are the text."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [("option", "value", "effect here"), *((e.option, e.value, e.why) for e in self)]
        if len(rows) == 1:
            return "every option has its default"
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)

    __repr__ = __str__


def explain(config: Any, use: Use, *, on_device: bool, everything: bool = False) -> Explanation:
    """What the options of a configuration do.

    Args:
        config: The options, a CompilerConfig, which stands above this module.
        use: What is made of a graph.
        on_device: Whether tensors and engine are those of a device.
        everything: Also options that have their default.
    """
    effects = []
    values = dict(config.values())
    for path, row in config._rows:
        option = values[path]
        if not everything and option.is_default:
            continue
        why = _ignored(path, use)
        if why:
            why = f"ignored: {why}"
        elif row.effective == "later":
            why = "refused: not built in this version"
        elif row.effective == "device" and not on_device:
            why = "acts on a device only"
        elif row.effective == "numerics" and not on_device and values["numerics"].value is None:
            why = "acts on a device, or here under config.numerics"
        elif path == "numerics" and on_device:
            why = "ignored: the chip rounds by itself"
        flat = config.graph_ex is not None and path.startswith(_CAPTURED)
        value = escape.line(repr(option.value), 60)
        effects.append(Effect(path.removeprefix(_CAPTURED) if flat else path, value, not why, why or "acts"))
    return Explanation(effects)


def _ignored(path: str, use: Use) -> str:
    """Why an option says nothing to this use; empty if it does."""
    if path in _EVERYWHERE:
        return ""
    if path.startswith("export."):
        return "" if use == "export" else "only dynamo_export looks at it"
    if path.startswith(_CAPTURED):
        return _captured_ignored(path, use)
    if path in _NOT_EXPORTING:
        return "an export runs nothing" if use == "export" else ""
    if use == "reduce-overhead":
        return "" if path == "cache_dir" else "mode reduce-overhead makes no GE graph"
    if use == "eager":
        return "the ATen graph runs as it stands, no GE graph is made"
    if use == "export" and path not in _GE_GRAPH:
        return "an exported graph carries no engine options"
    return ""


def _captured_ignored(path: str, use: Use) -> str:
    if use == "reduce-overhead":
        return _NOT_BUILT.get(path.removeprefix(_CAPTURED), "")
    if use == "eager":
        return "" if path in _CAPTURED_PASSES else "the ATen graph runs as it stands, nothing is captured"
    return "an export captures nothing" if use == "export" else "mode max-autotune captures nothing"


def use_of(config: Any) -> Use:
    """What compiling with a configuration makes of a graph."""
    debug, captured = config.debug, config.mode.value == "reduce-overhead"
    if config.export.export_mode:
        return "export"
    summary_only = debug.fx_summary.type.value is not None and debug.fx_summary.skip_compile
    if debug.data_dump.type.value is not None or debug.run_eagerly or summary_only:
        return "eager"
    if captured and (config.aclgraph_config.dump_tensor_data or config.aclgraph_config.force_eager):
        return "eager"
    return "reduce-overhead" if captured else "max-autotune"


def has_device() -> bool:
    """Whether this process has an NPU."""
    import torch

    npu = getattr(torch, "npu", None)
    return bool(npu is not None and getattr(npu, "is_available", bool)())


_warned: Final[set[str]] = set()


def warn_of_idle(effects: Iterable[Effect]) -> None:
    """Warn, once in a process for the same options, of what was set and does nothing.

    It is a Python warning, which is shown by default, while the log shows errors only.
    """
    idle = [f"{e.option} = {e.value} ({e.why.removeprefix('ignored: ')})" for e in effects if not e.acts]
    text = f"options without effect here: {'; '.join(idle)}. config.explain() tells of every option."
    if idle and text not in _warned:
        _warned.add(text)
        logger.info("%s", text)
        warnings.warn(f"torchair: {text}", UserWarning, stacklevel=2)
