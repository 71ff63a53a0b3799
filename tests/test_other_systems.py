"""The packages on Windows and macOS, as far as Linux can play them: what those systems lack is taken away first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("other_system.py")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key, root = Ed25519PrivateKey.generate(), tmp_path_factory.mktemp("keys")
    (root / "private").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (root / "public").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return [str(root / "private"), str(root / "public")]


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks for open files as Linux shows them")
@pytest.mark.parametrize("system", ["windows", "macos"])
def test_a_system_that_lacks_something(tmp_path, keys, system):
    command = [sys.executable, str(PROGRAM), system, str(tmp_path), *keys]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["compile, train, dump", "save, load, export", "sign", "keep"]
