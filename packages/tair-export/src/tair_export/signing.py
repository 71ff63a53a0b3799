"""Who wrote an archive: detached Ed25519 signatures of manifests, for hosts that load from where others may write.

A manifest has the SHA-256 of every file, so its signature vouches for the whole archive. It stands beside the
manifest, ``<name>.manifest.json.sig``: 64 bytes over the manifest's bytes. A signature made for a text is over the line
``tair-archive for <text>`` and the manifest's bytes after it; no manifest begins so, and no text has a line's end, so
neither kind passes for the other. Needs the extra ``sign`` (the package ``cryptography``). Any other scheme is a
function of the manifest's bytes and path that raises, given as ``authenticate`` to ``load_graph``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ge_graph import escape
from ge_graph.files import read_plain, whole
from tair_export import errors, manifest
from tair_export.archive import find
from tair_export.ranks import Rank, current

SUFFIX: Final = ".sig"
_BYTES: Final = 64
KEY_BYTES: Final = 1 << 20


def sign(
    path: str | os.PathLike[str], private_key: bytes, *, text: str | None = None, rank: Rank | None = None
) -> Path:
    """Sign the archive at a path.

    Args:
        path: Its folder, its graph file or its manifest.
        private_key: An Ed25519 key in PEM form, without password.
        text: What the signature is for, ``resnet, release 7``: it then fits only where that very text is asked for, so
            that another archive with a signature of the same key cannot take this one's place.
        rank: Picks the manifest where several processes saved.

    Returns:
        The signature's file.

    Raises:
        ArchiveError: GE5020 if there is no archive, GE502x if it has no right manifest, GE5033 if the file cannot be
            written, GE5042 for another text, GE5044 for another key, or a manifest that is a link.
    """
    place, _ = find(Path(path), current() if rank is None else rank)
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError) as error:
        raise errors.untrusted(f"no private key in PEM form: {error}", place) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise errors.untrusted(f"the key is {type(key).__name__}, not Ed25519", place)
    try:
        data = read_plain(place, manifest.MANIFEST_BYTES, follow=False)
    except OSError as error:
        raise errors.untrusted(f"the manifest is not signed: {errors.system_says(error)}", place) from error
    manifest.parse(data, place)  # nothing else is signed
    target = place.with_name(place.name + SUFFIX)
    try:
        with whole(target) as file:
            file.write(key.sign(_message(data, text)))
    except OSError as error:
        raise errors.io(error, "the signature cannot be written", target) from error
    return target


def signed_by(*public_keys: bytes, text: str | None = None) -> Callable[[bytes, Path], None]:
    """For ``load_graph(..., authenticate=signed_by(key))``: only archives that one of these keys has signed.

    Args:
        public_keys: Ed25519 keys in PEM form.
        text: The text that it must have been signed for; None takes only signatures without one.

    Raises:
        ArchiveError: GE5042 for another kind of text, GE5044 for another kind of key; the function raises GE5044 if no
            signature fits.
    """
    ed25519, serialization = _cryptography()
    _message(b"", text)
    keys = []
    for given in public_keys:
        try:
            key = serialization.load_pem_public_key(given)
        except (ValueError, TypeError) as error:
            raise errors.untrusted(f"no public key in PEM form: {error}", "") from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise errors.untrusted(f"the key is {type(key).__name__}, not Ed25519", "")
        keys.append(key)

    def authenticate(data: bytes, path: Path) -> None:
        from cryptography.exceptions import InvalidSignature

        place = path.with_name(path.name + SUFFIX)
        try:
            signature = read_plain(place, _BYTES)
        except OSError as error:
            raise errors.untrusted(f"no signature '{place.name}': {errors.system_says(error)}", path) from error
        for key in keys:
            try:
                key.verify(signature, _message(data, text))
            except InvalidSignature:
                continue
            return
        about = "" if text is None else f", for '{text}',"
        raise errors.untrusted(
            f"'{place.name}' is not a signature of this manifest{about} by a key that is trusted", path
        )

    return authenticate


def _message(data: bytes, text: str | None) -> bytes:
    if text is None:
        return data
    if not isinstance(text, str) or not text or escape.line(text) != text:
        raise errors.bad_argument("text", text, "one line of characters that print")
    return f"tair-archive for {text}\n".encode() + data


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise errors.untrusted(
            f"signatures need the package cryptography, pip install 'tair-export[sign]': {error}", ""
        ) from None
    return ed25519, serialization
