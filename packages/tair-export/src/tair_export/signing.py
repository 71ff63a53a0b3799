"""Who wrote an archive: detached Ed25519 signatures of manifests, for hosts that load from where others may write.

A manifest has the SHA-256 of every file, so its signature vouches for the whole archive. It stands beside the
manifest, ``<name>.manifest.json.sig``: 64 bytes over the manifest's bytes. Needs the extra ``sign`` (the package
``cryptography``). Any other scheme is a function of the manifest's bytes and path that raises, given as
``authenticate`` to ``load_graph``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tair_export import errors
from tair_export.archive import find
from tair_export.ranks import Rank, current

SUFFIX: Final = ".sig"
_BYTES: Final = 64


def sign(path: str | os.PathLike[str], private_key: bytes, *, rank: Rank | None = None) -> Path:
    """Sign the archive at a path.

    Args:
        path: Its folder, its graph file or its manifest.
        private_key: An Ed25519 key in PEM form, without password.
        rank: Picks the manifest where several processes saved.

    Returns:
        The signature's file.

    Raises:
        ArchiveError: GE5020 if there is no archive, GE5033 if the file cannot be written, GE5044 for another key.
    """
    manifest, _ = find(Path(path), current() if rank is None else rank)
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError) as error:
        raise errors.untrusted(f"no private key in PEM form: {error}", manifest) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise errors.untrusted(f"the key is {type(key).__name__}, not Ed25519", manifest)
    target = manifest.with_name(manifest.name + SUFFIX)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(key.sign(manifest.read_bytes()))
        os.replace(temporary, target)
    except OSError as error:
        raise errors.io(error, "the signature cannot be written", target) from error
    return target


def signed_by(*public_keys: bytes) -> Callable[[bytes, Path], None]:
    """For ``load_graph(..., authenticate=signed_by(key))``: only archives that one of these keys has signed.

    Args:
        public_keys: Ed25519 keys in PEM form.

    Raises:
        ArchiveError: GE5044 for another kind of key; the function raises it if no signature fits.
    """
    ed25519, serialization = _cryptography()
    keys = []
    for text in public_keys:
        try:
            key = serialization.load_pem_public_key(text)
        except (ValueError, TypeError) as error:
            raise errors.untrusted(f"no public key in PEM form: {error}", "") from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise errors.untrusted(f"the key is {type(key).__name__}, not Ed25519", "")
        keys.append(key)

    def authenticate(manifest: bytes, path: Path) -> None:
        from cryptography.exceptions import InvalidSignature

        place = path.with_name(path.name + SUFFIX)
        try:
            with open(place, "rb") as file:
                signature = file.read(_BYTES + 1)
        except OSError as error:
            raise errors.untrusted(f"no signature '{place.name}': {error.strerror}", path) from error
        for key in keys:
            try:
                key.verify(signature, manifest)
            except InvalidSignature:
                continue
            return
        raise errors.untrusted(f"'{place.name}' is not a signature of this manifest by a key that is trusted", path)

    return authenticate


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise errors.untrusted(
            f"signatures need the package cryptography, pip install 'tair-export[sign]': {error}", ""
        ) from None
    return ed25519, serialization
