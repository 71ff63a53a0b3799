"""Build the documentation site into ``site/``: English and Chinese, search included, to be read from disk or a server.

The tools of the site have an environment of their own, made from wheels in ``wheelhouse/docs`` (downloaded once); the
build itself reaches no network. Any warning, so any dead link, is a failure.

python -m tools.docs.site              build
python -m tools.docs.site --prepare    only make build/docs
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.docs import figures

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SOURCE: Final = ROOT / "build" / "docs"
SITE: Final = ROOT / "site"
VENV: Final = ROOT / "build" / "docs-venv"
WHEELS: Final = ROOT / "wheelhouse" / "docs"
REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
COPIED: Final = ("CONTRIBUTING.md", "SECURITY.md")  # each with its .zh.md
# What of each package a program is written against.
API: Final = {
    "torchair": (
        "torchair.compiler.backend",
        "torchair.config.compiler_config",
        "torchair.inference",
        "torchair.scope",
        "torchair.ops",
        "torchair.export.dynamo_export",
        "torchair.passes.patterns",
        "torchair.oplib.converters",
        "torchair.config.log",
    ),
    "tair_export": ("tair_export.load", "tair_export.export", "tair_export.signing", "tair_export.foreign"),
    "tair_debug": ("tair_debug.tracing", "tair_debug.compare", "tair_debug.check", "tair_debug.observer"),
    "ge_converters": ("ge_converters.registry", "ge_converters.base.support", "ge_converters.report.smoke"),
    "ge_runtime": ("ge_runtime.api", "ge_runtime.discovery", "ge_runtime.cpu.registry"),
    "ge_graph": ("ge_graph.ir", "ge_graph.builder", "ge_graph.verify", "ge_graph.serde", "ge_graph.escape"),
}
# What each of these modules is for, where the page is read in Chinese; docstrings are English.
ABOUT: Final = {
    "torchair.compiler.backend": "`torch.compile` 的后端：`get_npu_backend`、`get_compiler`",
    "torchair.config.compiler_config": "选项：`CompilerConfig` 及其各组",
    "torchair.inference": "推理服务：编译缓存与档位",
    "torchair.scope": "作用域：图中一段代码的流、核数、优先级",
    "torchair.ops": "图内算子",
    "torchair.export.dynamo_export": "为 ATC 或另一台主机导出模型",
    "torchair.passes.patterns": "融合规则：`register_replacement`",
    "torchair.oplib.converters": "注册转换器",
    "torchair.config.log": "日志",
    "tair_export.load": "加载并运行归档",
    "tair_export.export": "保存归档",
    "tair_export.signing": "为归档签名、验证签名",
    "tair_export.foreign": "加载其他工具的图文件",
    "tair_debug.tracing": "追踪模型，得到 ATen 图和 GE 图",
    "tair_debug.compare": "逐算子比较 eager 与 GE 图",
    "tair_debug.check": "芯片上有没有各算子的 kernel",
    "tair_debug.observer": "观察编译的各个阶段",
    "ge_converters.registry": "转换器的注册表",
    "ge_converters.base.support": "声明转换器支持的调用形式",
    "ge_converters.report.smoke": "运行声明的调用形式，与 eager 比较",
    "ge_runtime.api": "引擎的接口",
    "ge_runtime.discovery": "找出已安装的引擎并选择",
    "ge_runtime.cpu.registry": "为内嵌引擎注册 kernel",
    "ge_graph.ir": "GE 图：节点、张量、边",
    "ge_graph.builder": "构建图",
    "ge_graph.verify": "按 GE 的规则校验图",
    "ge_graph.serde": "图与字节之间的转换",
    "ge_graph.escape": "安全地显示来自文件和用户的文本",
}
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")

_BASE: Final = re.compile(r'(id="?__config"?[^>]*>\s*\{.*?"base":\s*)"[^"]*"', re.S)
CHINESE: Final = "zh"  # the folder of the site

_CHART: Final = re.compile(r"^```mermaid\nxychart-beta\n(.*?)^```", re.S | re.M)
_BREAK: Final = re.compile(
    r"(?<=[\u3001-\u301b\u4e00-\u9fff\uff01-\uff1f])\n *(?=[\u201c\u300a-\u301b\u4e00-\u9fff\uff08])"
)


def prepare() -> None:
    """Make ``build/docs``: pages, figures, API pages; links that leave the site become the path as text."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE)
    for name in COPIED:
        shutil.copy(ROOT / name, SOURCE)
        shutil.copy((ROOT / name).with_suffix(".zh.md"), SOURCE)
    figures.write(SOURCE / "figures")
    api = SOURCE / "api"
    api.mkdir()
    for package, modules in API.items():
        text = f"# {package}\n\n" + "\n".join(f"::: {module}\n" for module in modules)
        (api / f"{package}.md").write_text(text, encoding="utf-8")
        chinese = f"# {package}\n\n" + "\n".join(f"{ABOUT[module]}。\n\n::: {module}\n" for module in modules)
        (api / f"{package}.zh.md").write_text(chinese, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("site.css"), SOURCE)
    for page in SOURCE.rglob("*.md"):
        text = _CHART.sub(functools.partial(_chart, page), page.read_text(encoding="utf-8"))
        text = _LINK.sub(functools.partial(_link, page), text)
        if page.name.endswith(".zh.md"):  # a page of the site names the figure of its language without saying so
            text = _joined(text).replace(".zh.svg)", ".svg)").replace(".zh.md)", ".md)").replace(".zh.md#", ".md#")
        page.write_text(text, encoding="utf-8")


def _chart(page: Path, found: re.Match[str]) -> str:
    """A chart that a forge draws, as a figure: to draw it here a page would need a script from the network."""
    series = [[float(v) for v in line.split(",")] for line in re.findall(r"line \[(.*)\]", found[1])]
    text = figures.trend(series)
    name = f"trend_{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"
    (SOURCE / "figures" / name).write_text(text, encoding="utf-8")
    return f"![]({os.path.relpath(SOURCE / 'figures' / name, page.parent)})"


def _joined(text: str) -> str:
    """Chinese lines without the blank that a line break in a paragraph would put between them; code stays."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    return "".join(p if i % 2 else _BREAK.sub("", p) for i, p in enumerate(parts))


def _link(page: Path, found: re.Match[str]) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if "://" in target or (page.parent / target).is_file():
        return found[0]
    inside = re.sub(r"^(\.\./)*(docs/)?", "", target)
    if (SOURCE / inside).is_file():
        return f"[{text}]({os.path.relpath(SOURCE / inside, page.parent)}{anchor})"
    return text if text.startswith("`") else f"`{inside}`"


def tools() -> Path:
    """The Python with the site's tools; made anew when the requirements change."""
    python, stamp = VENV / "bin" / "python", VENV / "requirements.txt"
    wanted = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    pip = [sys.executable, "-m", "pip"]
    offline = ["--no-index", "--find-links", str(WHEELS), "-r", str(REQUIREMENTS)]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", *offline]
    if subprocess.run(install, capture_output=True).returncode:
        print("docs: downloading the site's tools into wheelhouse/docs", flush=True)
        download = [*pip, "wheel", "-qq", "-w", str(WHEELS), "-r", str(REQUIREMENTS)]
        if subprocess.run(download).returncode or subprocess.run(install).returncode:
            sys.exit("docs: pip could not bring the wheels of tools/docs/requirements.txt")
    stamp.write_text(wanted)
    return python


def serve_the_shim() -> None:
    """The search of pages read from disk needs a small script that Material takes from the network: bring it along."""
    shim = SITE / "assets" / "iframe-worker.js"
    shutil.copy(Path(__file__).parent / "iframe-worker" / "shim.js", shim)
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        local = os.path.relpath(shim, page.parent)
        page.write_text(re.sub(r"https?://[^\"' ]*/iframe-worker/shim", local, text), encoding="utf-8")


def one_search_per_language(site: Path) -> None:
    """Divide the index of the search: a page finds what is in its language, from disk and from a server."""
    whole = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    other = f"{CHINESE}/"
    docs: dict[bool, list[dict[str, str]]] = {True: [], False: []}
    for doc in whole["docs"]:
        docs[doc["location"].startswith(other)].append({**doc, "location": doc["location"].removeprefix(other)})
    for chinese, folder in ((False, site / "search"), (True, site / CHINESE / "search")):
        folder.mkdir(exist_ok=True)
        text = json.dumps({**whole, "docs": docs[chinese]}, ensure_ascii=False)
        (folder / "search_index.json").write_text(text, encoding="utf-8")
        (folder / "search_index.js").write_text(f"var __index = {text}", encoding="utf-8")
    for page in (site / CHINESE).rglob("*.html"):  # the search starts from what a page calls its base
        base = os.path.relpath(site / CHINESE, page.parent)
        text = page.read_text(encoding="utf-8")
        page.write_text(_BASE.sub(rf'\g<1>"{base}"', text, count=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="only make build/docs")
    only = parser.parse_args().prepare
    prepare()
    if only:
        return
    done = subprocess.run([str(tools()), "-m", "mkdocs", "build", "--strict", "--clean", "-q"], cwd=ROOT)
    if done.returncode:
        sys.exit("docs: the warnings above are to be repaired")
    serve_the_shim()
    one_search_per_language(SITE)
    print("docs: site/index.html, site/zh/index.html")


if __name__ == "__main__":
    main()
