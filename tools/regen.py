"""Make all generated files anew, or check that they are up to date. One row per generator; each knows `--check`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# module, what it writes
GENERATORS = (
    ("tools.metadata", "pyproject.toml of the packages"),
    ("ge_graph.codegen.stubs", "packages/ge-graph/src/ge_graph/ops.pyi"),
    ("ge_converters.report.index", "packages/ge-converters/src/ge_converters/ops/index.tsv"),
    ("ge_runtime.cpu.kernel_index", "packages/ge-runtime-native/src/ge_runtime/cpu/kernels/index.tsv"),
    ("torchair.config.options", "docs/options.md"),
    ("torchair.compat.stubs", "*.pyi of torchair and npugraph_ex"),
    ("torchair.compat.compatibility", "docs/compatibility.md"),
    ("tools.docs.moving", "docs/moving_from_torchair.md"),
    ("ge_converters.report.coverage", "docs/coverage.md"),
    ("tools.docs.torch_npu", "docs/torch_npu_operators.md"),
    ("tools.docs.chinese", "docs/options.zh.md, docs/coverage.zh.md, docs/graphs.zh.md"),  # from the pages above
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date")
    check = ["--check"] if parser.parse_args().check else []
    stale = []
    for module, target in GENERATORS:
        if subprocess.run([sys.executable, "-m", module, *check], cwd=ROOT).returncode:
            stale.append(target)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make regen`")


if __name__ == "__main__":
    main()
