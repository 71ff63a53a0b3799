"""``docs/moving_from_torchair.md``: what stood in programs, scripts and build instructions, and what it is here.

Commands and files are rows of ``moving.tsv``; options come from ``torchair.config.options``, names from
``torchair.compat.compatibility``. ``--check`` fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from torchair.compat import compatibility
from torchair.config.options import GRAPH_EX, OPTIONS, Option

HERE: Final = Path(__file__).resolve().parent
PAGES: Final = {"en": "moving_from_torchair.md", "zh": "moving_from_torchair.zh.md"}
WORDS: Final = {
    "en": {
        "title": "Moving from the torchair inside torch_npu",
        "generated": "Written by `python -m tools.docs.moving`; do not edit.",
        "lead": (
            "A program that uses `import torchair` runs here as it is, with or without an NPU: same names, same options, "
            "same files. This page lists what has another form. Every public name with its state is in "
            "[compatibility.md](compatibility.md), every option in [options.md](options.md)."
        ),
        "first": "The first five minutes",
        "steps": (
            "Install `torchair` beside torch_npu. `import torchair` then gives this one, in either import order; the log "
            "says so once at level INFO.\nRun your program. A name that is absent raises GE1066, which says what stands for "
            "it.\n`print(config.explain())` lists what each of your options does here.\n`tair doctor` says what of this "
            "machine fits."
        ),
        "command": "Commands",
        "file": "Files",
        "head": "| Before | Here | Note |",
        "options": "Options under other names",
        "option_lead": "Both names set the same option; the last one set wins.",
        "option_head": "| Before | Here |",
        "off": "switched off by it",
        "differs": "Options that do something else here",
        "differs_lead": "{device} of {all} options act on a device only; the first use warns. These are refused until they are built:",
        "names": "Names",
        "names_lead": "{works} of {all} names that the guide documents or public projects use are there and do the same. The others:",
        "names_head": "| Name | Here |",
        "choices": "Where the old documents contradict each other, [rationale.md](rationale.md) says which reading holds.",
    },
    "zh": {
        "title": "从 torch_npu 内置的 torchair 迁移",
        "generated": "由 `python -m tools.docs.moving` 生成，请勿手改。",
        "lead": (
            "使用 `import torchair` 的程序可以原样运行，有没有 NPU 都可以：名字、选项、文件都相同。本页只列出形式不同之处。"
            "全部公开名字及其状态见 [compatibility.md](compatibility.md)，全部选项见 [options.md](options.md)。"
        ),
        "first": "最初五分钟",
        "steps": (
            "把 `torchair` 装在 torch_npu 旁边。之后无论导入顺序如何，`import torchair` 得到的都是本项目；日志在 INFO 级别说明一次。\n"
            "运行你的程序。缺少的名字会抛出 GE1066，并说明由什么代替。\n"
            "`print(config.explain())` 列出你设置的每个选项在这里的作用。\n`tair doctor` 检查本机哪些条件满足。"
        ),
        "command": "命令",
        "file": "文件",
        "head": "| 以前 | 这里 | 说明 |",
        "options": "改了名字的选项",
        "option_lead": "两个名字设置同一个选项，后设置者生效。",
        "option_head": "| 以前 | 这里 |",
        "off": "含义相反",
        "differs": "作用不同的选项",
        "differs_lead": "{all} 个选项中有 {device} 个只在设备上起作用，首次使用时会警告。下列选项尚未实现，设置后会被拒绝：",
        "names": "名字",
        "names_lead": "文档记载或公开项目使用的 {all} 个名字中，{works} 个存在且作用相同。其余：",
        "names_head": "| 名字 | 这里 |",
        "choices": "旧文档互相矛盾之处，采用哪种读法见 [rationale.md](rationale.md)。",
    },
}


def rows(kind: str) -> list[dict[str, str]]:
    """The rows of ``moving.tsv`` of one kind."""
    head, *lines = (HERE / "moving.tsv").read_text(encoding="utf-8").splitlines()
    table = [dict(zip(head.split("\t"), line.split("\t"))) for line in lines]
    return [row for row in table if row["kind"] == kind]


# The few English words of the column that is the same in both languages.
_CHINESE: Final = (
    ("`./build.sh` with the same switches", "同样开关的 `./build.sh`"),
    ("the same, and a manifest", "相同，另有清单文件"),
    ("the same", "相同"),
    (", or ", "，或 "),
    ("npy under the names that CANN's tool gives", "npy，文件名与 CANN 工具所给相同"),
)


def _ours(text: str, language: str) -> str:
    if language == "en":
        return text or "none needed"
    for english, chinese in _CHINESE:
        text = text.replace(english, chinese)
    return text or "不需要"


def page(language: str) -> str:
    """The page in ``en`` or ``zh``."""
    words = WORDS[language]
    note = "note" if language == "en" else "note_zh"
    lines = [f"# {words['title']}", "", words["generated"], "", words["lead"], "", f"## {words['first']}", ""]
    lines += [f"{i}. {step}" for i, step in enumerate(words["steps"].split("\n"), 1)]
    for kind in ("command", "file"):
        lines += ["", f"## {words[kind]}", "", words["head"], "|---|---|---|"]
        lines += [f"| `{r['old']}` | {_ours(r['ours'], language)} | {r[note]} |" for r in rows(kind)]
    lines += ["", f"## {words['options']}", "", words["option_lead"], "", words["option_head"], "|---|---|"]
    lines += [f"| `{old}` | `{row.path}` |" for row in OPTIONS for old in row.also]
    lines += [f"| `{old}` | `{row.path}`, {words['off']} |" for row in OPTIONS for old in row.opposite]
    every: tuple[Option, ...] = (*OPTIONS, *GRAPH_EX)
    device = sum(row.effective == "device" for row in every)
    lead = words["differs_lead"].format(device=device, all=len(every))
    lines += ["", f"## {words['differs']}", "", lead, ""]
    lines += [f"- `{row.path}`" for row in every if row.effective == "later"]
    states = [(name.path, compatibility.state(name.path)) for name in compatibility.names()]
    other = [(path, state) for path, state in states if state != "works"]
    lead = words["names_lead"].format(works=len(states) - len(other), all=len(states))
    lines += ["", f"## {words['names']}", "", lead, "", words["names_head"], "|---|---|"]
    lines += [f"| `{path}` | {state} |" for path, state in other]
    return "\n".join([*lines, "", words["choices"], ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args().check
    stale = False
    for language, name in PAGES.items():
        target, text = HERE.parent.parent / "docs" / name, page(language)
        if check and (not target.exists() or target.read_text(encoding="utf-8") != text):
            print(f"{target.name} is out of date; run `make regen`", file=sys.stderr)
            stale = True
        elif not check:
            target.write_text(text, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
