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
COPIED: Final = ("CONTRIBUTING.md", "SECURITY.md")
# What of each package a program is written against.
API: Final = {
    "torchair": (
        "torchair.compiler.backend", "torchair.config.compiler_config", "torchair.inference", "torchair.scope",
        "torchair.ops", "torchair.export.dynamo_export", "torchair.patterns", "torchair.oplib.converters",
        "torchair.config.log",
    ),
    "tair_export": ("tair_export.load", "tair_export.export", "tair_export.signing", "tair_export.foreign"),
    "tair_debug": ("tair_debug.tracing", "tair_debug.compare", "tair_debug.check", "tair_debug.observer"),
    "ge_converters": ("ge_converters.registry", "ge_converters.base.support", "ge_converters.report.smoke"),
    "ge_runtime": ("ge_runtime.api", "ge_runtime.discovery", "ge_runtime.cpu.registry"),
    "ge_graph": ("ge_graph.ir", "ge_graph.builder", "ge_graph.verify", "ge_graph.serde", "ge_graph.escape"),
}  # fmt: skip
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")

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
    figures.write(SOURCE / "figures")
    api = SOURCE / "api"
    api.mkdir()
    for package, modules in API.items():
        text = f"# {package}\n\n" + "\n".join(f"::: {module}\n" for module in modules)
        (api / f"{package}.md").write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("site.css"), SOURCE)
    for page in SOURCE.rglob("*.md"):
        text = _CHART.sub(functools.partial(_chart, page), page.read_text(encoding="utf-8"))
        text = _LINK.sub(functools.partial(_link, page), text)
        page.write_text(_joined(text) if page.name.endswith(".zh.md") else text, encoding="utf-8")


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
    print("docs: site/index.html, site/zh/index.html")


if __name__ == "__main__":
    main()
