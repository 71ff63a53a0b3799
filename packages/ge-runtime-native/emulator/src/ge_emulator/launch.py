"""``tair emulate``: run a program on the emulator.

The loader reads its path when a process starts, so the program runs in a process of its own (this one, replaced).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ge_emulator import build
from ge_graph.command_line import CommandParser
from ge_graph.errors import EngineError, GeError

VARIABLE: Final = "TAIR_TORCH_NPU"
_CUDA_SETTING: Final = b"segment_size_mb"  # the end of ``pinned_reserve_segment_size_mb``
_USAGE: Final = """tair emulate [options] script.py [argument ...]
       tair emulate [options] -m module [argument ...]
       tair emulate [options] -- command [argument ...]
       tair emulate --check"""


def find_torch_npu(given: str | None = None) -> Path | None:
    """The folder to put on Python's path for torch_npu; ``None`` if it is installed in this environment.

    Args:
        given: A wheel, or a folder that holds the package; by default what TAIR_TORCH_NPU names.

    Errors:
        EngineError GE4062 if there is no torch_npu, GE4064 if it was made for another torch or Python.
    """
    given = given or os.environ.get(VARIABLE)
    if given:
        path = Path(given).resolve()
        if path.suffix == ".whl" and path.is_file():
            parts = path.stem.split("-")  # name, version, perhaps a build number, and three tags
            if len(parts) >= 5:
                require_fit(parts[1], parts[-3])
            return _unpack(path)
        if (path / "torch_npu" / "__init__.py").is_file():
            require_fit(_version_in(path))
            return path
        raise EngineError(
            "GE4062",
            f"{path} is neither a torch_npu wheel nor a folder that holds the package",
            next=f"give --torch-npu, or {VARIABLE}, the path of torch_npu-*.whl",
        )
    if importlib.util.find_spec("torch_npu") is not None:
        require_fit(_version_in(_installed_torch_npu().parent))
        return None
    raise EngineError(
        "GE4062",
        "torch_npu is not installed here",
        next=f"pip download --no-deps '{fitting()}', then: tair emulate --torch-npu torch_npu-*.whl …",
    )


def fitting() -> str:
    """The requirement for the torch_npu that belongs to the torch of this environment: one major and minor version."""
    torch = _installed("torch")
    return f"torch_npu=={_release(torch)}.*" if torch else "torch_npu"


def require_fit(version: str | None, python: str | None = None) -> None:
    """Refuse a torch_npu that this torch or this Python would die of while it loads.

    Args:
        version: Of torch_npu; None if it is not known, which is taken.
        python: Tag of the wheel, such as ``cp311``; None if there is none.

    Errors:
        EngineError GE4064 with both versions, or for a torch whose build for CUDA torch_npu cannot stand beside.
    """
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    torch, wrong = _installed("torch"), []
    if version and torch and _release(version) != _release(torch):
        wrong.append(f"torch_npu {version} belongs to torch {_release(version)}, here is torch {torch}")
    if python and python.startswith("cp") and python != own:
        wrong.append(f"the wheel is for {python}, this Python is {own}")
    if torch and not wrong and _claims_settings(torch):
        raise EngineError(
            "GE4064",
            f"torch {torch} is built for CUDA and claims settings that torch_npu registers too, an abort",
            next=f"install the build for CPUs that torch_npu asks for, torch=={torch.split('+')[0]}+cpu",
        )
    if wrong:
        raise EngineError(
            "GE4064", "; ".join(wrong), next=f"pip download --no-deps '{fitting()}', with this Python's pip"
        )


def _claims_settings(torch: str) -> bool:
    """Whether this torch takes names of settings for CUDA's allocator, which since 2.10 nobody else may have."""
    if tuple(int(n) for n in _release(torch).split(".")) < (2, 10):
        return False
    library = _torch_folder() / "lib" / "libc10_cuda.so"
    return library.is_file() and _CUDA_SETTING in library.read_bytes()


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()


def _installed(name: str) -> str | None:
    """The version of a distribution here; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> str:
    """``2.13`` of ``2.13.0.post1+cpu``."""
    return ".".join(version.split(".")[:2])


def _version_in(site: Path) -> str | None:
    """The version of the torch_npu in a folder, by its metadata, else by what the package says of itself."""
    distribution = next(iter(importlib.metadata.distributions(path=[str(site)], name="torch_npu")), None)
    if distribution is not None:
        return distribution.version
    written = site / "torch_npu" / "version.py"
    said = re.search(r"^__version__ = ['\"](.+?)['\"]", written.read_text(), re.M) if written.is_file() else None
    return said[1] if said else None


def _unpack(wheel: Path) -> Path:
    """A wheel's content in a folder of the cache, so that no environment changes."""
    stat = wheel.stat()
    key = hashlib.sha256(f"{wheel.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    place = build.home().parent.parent / "torch_npu" / key
    if not (place / "torch_npu" / "__init__.py").is_file():
        work = place.with_name(f"{key}.{os.getpid()}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)  # drops drive letters, leading slashes and `..` of members
        if not (work / "torch_npu" / "__init__.py").is_file():
            shutil.rmtree(work)
            raise EngineError("GE4062", f"{wheel.name} holds no package torch_npu")
        try:
            work.rename(place)
        except OSError:  # another process was faster
            shutil.rmtree(work)
    return place


def environment(home: Path, site: Path | None, *, bundled: bool = False) -> dict[str, str]:
    """The variables under which a program finds the emulator and torch_npu."""
    env = dict(os.environ)
    paths = [str(p) for p in (site, _own_folder()) if p is not None]
    if importlib.util.find_spec("acl") is None:
        paths.append(str(Path(__file__).resolve().parent / "pyacl"))
    if bundled:
        package = site / "torch_npu" if site is not None else _installed_torch_npu()
        paths.append(str(package / "dynamo"))
    env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [env.get("PYTHONPATH")])])
    env["LD_LIBRARY_PATH"] = os.pathsep.join([str(home / "lib64"), *filter(None, [env.get("LD_LIBRARY_PATH")])])
    if site is not None:  # for what the program itself starts, whatever folder it is in by then
        env[VARIABLE] = str(site)
    env["ASCEND_HOME_PATH"] = str(home)
    env["ASCEND_OPP_PATH"] = str(home / "opp")
    # with torch_npu's queue an operator starts on a thread that does not know the user's line
    env.setdefault("TASK_QUEUE_ENABLE", "0")
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    return env


def _own_folder() -> Path | None:
    """Where ge_emulator is imported from, if the program would not find it by itself."""
    folder = Path(__file__).resolve().parents[1]
    return None if folder.name in ("site-packages", "dist-packages") else folder


def _installed_torch_npu() -> Path:
    spec = importlib.util.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise EngineError("GE4062", "torch_npu is not installed here")
    return Path(spec.origin).parent


def command(args: Sequence[str], module: str | None) -> list[str]:
    """What to run: a module, a script, or any command; pytest as a module of this Python."""
    if module is not None:
        return [sys.executable, "-m", module, *args]
    first = args[0]
    if first.endswith(".py"):
        return [sys.executable, *args]
    if first == "pytest":
        return [sys.executable, "-m", *args]
    if first in ("python", "python3"):
        return [sys.executable, *args[1:]]
    executable = shutil.which(first)
    if executable is None:
        raise EngineError(
            "GE4063", f"no command '{first}'", next="give a script that ends in .py, -m MODULE or -- COMMAND"
        )
    return [executable, *args[1:]]


def check(given: str | None) -> int:
    """Say what is there; 0 if a program would run."""
    failed = False
    lines = []
    for title, ask in (
        ("C++ compiler", build.compiler),
        ("libraries", lambda: f"{build.home()} ({'built' if build.is_built(build.home()) else 'built on first use'})"),
        ("torch", lambda: importlib.metadata.version("torch")),
        ("torch_npu", lambda: _describe(find_torch_npu(given))),
    ):
        try:
            lines.append(f"{title:14} {ask()}")
        except GeError as error:
            failed = True
            lines.append(f"{title:14} missing: {error.what}" + (f"\n{'':14} {error.next}" if error.next else ""))
        except importlib.metadata.PackageNotFoundError:
            failed = True
            lines.append(f"{title:14} missing: not installed")
    names = sorted(n for n in os.environ if n.startswith("TAIR_EMULATOR_"))
    lines += [f"{n:14} {os.environ[n]}" for n in names]
    sys.stdout.write("\n".join(lines) + "\n")
    if failed:
        return 1
    probe = (
        "import torch, torch_npu; x = torch.ones(2).npu() + 1; print(torch.npu.get_device_name(0), x.cpu().tolist())"
    )
    env = environment(build.build(), find_torch_npu(given))
    done = subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=False)
    works = done.returncode == 0 and "[2.0, 2.0]" in done.stdout
    shown = done.stdout.strip().splitlines()[-1] if works else done.stderr.strip()[-1500:]
    sys.stdout.write(f"{'a first sum':14} {shown}\n")
    return 0 if works else 1


def _describe(site: Path | None) -> str:
    if site is None:
        return f"{importlib.metadata.version('torch_npu')}, installed"
    return f"{_version_in(site) or 'unknown version'}, in {site}"


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and the program's: all that follows a script, ``-m MODULE`` or ``--``."""
    at = 0
    while at < len(args):
        if args[at] == "--":
            return args[:at], args[at + 1 :]
        if args[at] == "-m":
            return args[: at + 2], args[at + 2 :]
        if not args[at].startswith("-"):
            break
        at += 2 if args[at] in ("--torch-npu", "--profile") else 1
    return args[:at], args[at:]


def main(args: Sequence[str] | None = None) -> int:  # noqa: RET503 - execve does not return
    """The command. Gives an exit code if nothing was run, else the program takes this process over."""
    parser = CommandParser("tair emulate", usage=_USAGE, description="Run a program on an emulated NPU.")
    parser.add_argument("--check", action="store_true", help="say what is there, run nothing")
    parser.add_argument("--torch-npu", metavar="PATH", help="wheel or folder of torch_npu, if it is not installed")
    parser.add_argument("--bundled-torchair", action="store_true", help="`import torchair` gives the one in torch_npu")
    parser.add_argument("--profile", metavar="FOLDER", help="write what ran as a profiler's table and trace")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module")
    own, rest = _split(sys.argv[1:] if args is None else list(args))
    asked = parser.parse_args(own)
    try:
        if asked.check:
            return check(asked.torch_npu)
        if not rest and asked.module is None:
            parser.print_usage(sys.stderr)
            return 2
        line = command(rest, asked.module)
        site = find_torch_npu(asked.torch_npu)  # before a minute of compiling
        env = environment(build.build(), site, bundled=asked.bundled_torchair)
        if asked.profile is not None:
            env["TAIR_EMULATOR_PROFILE"] = os.path.abspath(asked.profile)
    except GeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.flush()
    os.execve(line[0], line, env)


if __name__ == "__main__":
    sys.exit(main())
