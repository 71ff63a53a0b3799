"""Programs of others that use torchair, as they are, on the emulated NPU: installed from the package index and run.

python -m tools.clients          makes the environment (some two gigabytes) in the system's folder for temporary files,
                                 runs tests/clients, removes it
python -m tools.clients --keep   leaves it there, and takes it the next time

The versions belong together: vllm-ascend names the torch_npu that it was written for, torch_npu its torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tools.environments import BUILD, TESTING, CannotInstall, Environment, build_wheels, interpreter

ROOT = Path(__file__).resolve().parent.parent
PYTHON, TORCH, TORCH_NPU = "3.11", "2.7.1", "torch_npu==2.7.1.post11"
TESTS = ("tests/clients/test_vllm.py",)
LOG = ROOT / "artefacts" / "clients.log"


def place() -> Environment:
    """The environment, outside of this tree."""
    return Environment(PYTHON, TORCH, Path(tempfile.gettempdir()) / "tair-clients")


def make(env: Environment) -> None:
    """Install our packages, then vLLM as pure Python, vllm-ascend, and what both import.

    Raises:
        CannotInstall: pip refuses something.
    """
    again = (env.site / "vllm_ascend").is_dir()
    env.make(build_wheels(BUILD / "wheels"), TESTING, again=again)
    if again:
        return
    env.install("-r", str(ROOT / "tests" / "clients" / "requirements.txt"))
    env.install("setuptools>=77,<80", "setuptools_scm>=8", "wheel")
    os.environ["VLLM_TARGET_DEVICE"] = "empty"  # nothing to compile
    # pip's newer resolver refuses the archive, which calls itself 0.11.0+empty
    source = ("--use-deprecated=legacy-resolver", "--no-build-isolation", "--no-binary", "vllm")
    env.install("--no-deps", *source, "vllm==0.11.0")
    env.install("--no-deps", "--only-binary", ":all:", "vllm-ascend==0.11.0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the environment there, and take one that is there")
    keep = parser.parse_args().keep
    if not interpreter(PYTHON):
        print(f"clients: no Python {PYTHON} on this machine, not run")
        return 1
    env = place()
    try:
        make(env)
        wheel = env.fetch(TORCH_NPU)
        done = env.pytest(TESTS, LOG, under=("-m", "ge_emulator", "--torch-npu", str(wheel), "--"))
    except CannotInstall as error:
        print(f"clients: cannot be installed: {error}")
        return 1
    finally:
        None if keep else env.remove()
    print(done.printed[-3000:])
    return done.code


if __name__ == "__main__":
    sys.exit(main())
