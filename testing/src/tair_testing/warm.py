"""Python programs whose process has torch loaded already: tests that start many wait for their own work only.

A server loads torch once and forks for each program, which then is as after ``import torch``: nothing of this project
is loaded, the folder, the variables and the arguments are its own. What torch takes from the environment while it loads
cannot be asked for; tests about that, or about imports, start a process of their own.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path

LOADED = ["torch", "torch._dynamo.repro.after_dynamo", "torch._inductor.debug"]
# Read while Python or torch starts, so a fork has them as the server had them.
_EARLY = ("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_", "PYTHONHASHSEED", "LD_", "OMP_", "MKL_")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(LOADED)


class Fork:
    """``python ARGUMENTS`` as a fork: a script, ``-c`` and text, or ``-m`` and a module, with arguments for it.

    Args:
        arguments: What would stand after ``python``.
        cwd: Its folder, this process's if None.
        env: All its variables, this process's if None.

    Errors: ValueError for variables that torch reads while it loads, if they are not this process's.
    """

    def __init__(self, *arguments: str | Path, cwd: str | Path | None = None, env: Mapping[str, str] | None = None):
        variables = dict(os.environ if env is None else env)
        early = {n for n in (*variables, *os.environ) if n.startswith(_EARLY)}
        other = sorted(n for n in early if variables.get(n) != os.environ.get(n))
        if other:
            raise ValueError(f"{', '.join(other)}: torch reads it while it loads; start a process of its own")
        self.arguments = [str(a) for a in arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._process = FORKS.Process(
            name="MainProcess",
            target=_run,
            args=(self.arguments, str(cwd or Path.cwd()), variables, self._folder.name),
        )
        self._process.start()

    def end(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Wait; its exit code and what it wrote. TimeoutExpired, after which it is gone, if it takes longer."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        out, err = (Path(self._folder.name, name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(self.arguments, code, out, err)


def run(
    *arguments: str | Path, cwd: str | Path | None = None, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """One program from start to end; AssertionError with what it wrote if it fails and ``check`` is set."""
    done = Fork(*arguments, cwd=cwd, env=env).end()
    assert not check or done.returncode == 0, f"{done.args}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done


def _run(arguments: list[str], cwd: str, variables: dict[str, str], folder: str) -> None:
    """In the fork."""
    gc.freeze()  # what is loaded stays
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    first, rest = arguments[0], arguments[1:]
    added = [os.path.dirname(os.path.abspath(first)) if first[0] != "-" else cwd]
    sys.path[:0] = [*added, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if first == "-c":
            sys.argv = [first, *rest[1:]]
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(module))
        elif first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(os.path.abspath(first), run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # forks of this kind leave them out
