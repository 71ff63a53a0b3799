"""``docs/compatibility.md``: every name that programs use of the torchair inside torch_npu, and what it is here.

Written by ``python -m torchair.compat.compatibility``; with ``--check`` it fails if the file is out of date.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from ge_graph.files import generate
from torchair.config.options import table_row
from torchair.names import INSTEAD

# Names that are there and do less or something else than there; the first prefix that fits says why.
THEIRS: Final = ("torch.npu.", "torch_npu.")
"""Beginnings of names that torch_npu has of its own."""
NOTES: Final = (
    ("torch.npu.npugraph_ex.compile_fx", "this package's, where torch_npu's asks for a graph; else its own"),
    ("torch.npu.npugraph_ex.ops", "this package's, where torch_npu has none"),
    ("torch.npu.npugraph_ex.scope.npu_stream_switch", "this package's, where torch_npu has none"),
    ("torch_npu.dynamo.npugraph_ex", "this package's `npugraph_ex`, once `import torchair` means this package"),
    ("torch_npu.dynamo.torchair", "this package's `torchair`, once that name means it"),
    ("torch.npu.npugraph_ex.", "torch_npu's own, and stays there; `import npugraph_ex` has this package's"),
    ("torch_npu.", "torch_npu's own, and stays there"),
    ("torchair.npu_fx_compiler._NpuGraphConverter", "accepted: replaced methods are not called, nothing needs repair"),
    ("torchair.llm_datadist.create_npu_tensors", "on a device, emulated ones too; elsewhere GE4031"),
    ("torchair.ops.npu_fused_infer_attention_score", "in graphs only, as there"),
    ("torchair.core._backend.initialize_graph_engine", "nothing to start; options are named in the log"),
    ("torchair._contrib.custom_torch_ops", "an import without effect: these operators are known without it"),
    ("torchair._utils.adjust_implicit_decomposition", "an import without effect: decided in `ge_converters`"),
    ("torchair.use_internal_format_weight", "changes weights on a device, warns elsewhere that it changes nothing"),
    ("torchair.experimental.inference.use_internal_format_weight", "as `torchair.use_internal_format_weight`"),
    ("torchair.ge._ge_graph.get_invalid_desc", "through the compatibility layer"),
    ("torchair.register_replacement", "torch's own pattern matcher"),
)


@dataclass(frozen=True, slots=True)
class Name:
    """A name, whether the guide documents it, and in how many public projects and how often it is used."""

    path: str
    documented: bool
    projects: int
    uses: int


def names() -> Iterator[Name]:
    """All names, in order."""
    for row in files("torchair").joinpath("data/names.tsv").read_text(encoding="utf-8").splitlines():
        if not row.startswith("#"):
            path, documented, projects, uses = row.split("\t")
            yield Name(path, documented == "d", int(projects), int(uses))


def find(path: str) -> Any:
    """What a name stands for here.

    Raises:
        AttributeError, ImportError: It stands for nothing; the error says where to go.
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(path)


def state(path: str) -> str:
    """The state of a name in words: ``works``, a note, or what stands for it."""
    for prefix, note in NOTES:
        if path.startswith(prefix):
            return note
    try:
        find(path)
    except (AttributeError, ImportError) as error:
        return f"absent: {INSTEAD.get(path) or getattr(error, 'next', '') or 'nothing stands for it'}"
    return "works"


_HEADS: Final = {
    "en": (
        "# Compatibility",
        "",
        "Written by `python -m torchair.compat.compatibility`; do not edit. A test imports every name. What *works* is",
        "used by a test as programs use it; `tests/compatibility.tsv` names the test.",
        "",
        "Programs that were written for the torchair inside torch_npu import these names. A name that is absent raises",
        "GE1066 with what stands for it. *Documented*: in its public guide. *Projects* and *uses*: in 24 public",
        "repositories, November 2026.",
        "",
        "| Name | Documented | Projects | Uses | Here |",
        "|---|---|---|---|---|",
    ),
    "zh": (
        "# 兼容性",
        "",
        "由 `python -m torchair.compat.compatibility` 生成，请勿手改。每个名字都有测试导入。",
        "标为 works 的，有测试像程序那样使用它；`tests/compatibility.tsv` 写明是哪个测试。",
        "",
        "为 torch_npu 自带的 torchair 编写的程序会导入这些名字。没有的名字会抛出 GE1066，并说明用什么代替。",
        "“有文档”指其公开指南中有；“项目”和“使用”是 2026 年 11 月 24 个公开仓库中的数量。",
        "最后一列的说明为英文，与报错文本一致；works 表示可用。",
        "",
        "| 名字 | 有文档 | 项目 | 使用 | 在这里 |",
        "|---|---|---|---|---|",
    ),
}


def markdown(language: str = "en") -> str:
    """The text of ``docs/compatibility.md``, or of ``docs/compatibility.zh.md``."""
    lines = list(_HEADS[language])
    rows = sorted(names(), key=lambda n: (n.path.split(".")[0], -n.projects, -n.uses, n.path))
    for n in rows:
        cells = (f"`{n.path}`", "yes" if n.documented else "", str(n.projects or ""), str(n.uses or ""), state(n.path))
        lines.append(table_row(cells))
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the file, or compare with it under ``--check``; returns the exit status."""

    def pages(file: Path) -> dict[Path, str]:
        return {file: markdown(), file.with_suffix(".zh.md"): markdown("zh")}

    return generate("torchair.compat.compatibility", Path("docs/compatibility.md"), pages, argv)


if __name__ == "__main__":
    raise SystemExit(main())
