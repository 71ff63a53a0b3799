"""How a command ends when something stops it: a reader that is gone, Ctrl-C, a failure after folders were made."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

STOPPED: Final = 130  # as a shell names a program that Ctrl-C stopped
NO_READER: Final = 141  # and one that wrote into a pipe that nobody reads


@contextlib.contextmanager
def no_empty_folders(paths: Iterable[Path]) -> Iterator[None]:
    """Of folders on the way to these paths, those that are made inside and stay empty go again if it fails."""
    missing = {place for path in paths for place in (path, *path.parents) if not os.path.lexists(place)}
    try:
        yield
    except BaseException:
        for place in sorted(missing, key=lambda p: len(p.parts), reverse=True):
            with contextlib.suppress(OSError):  # a file, or a folder that holds something
                place.rmdir()
        raise


def no_more_output() -> None:
    """Nobody reads what is written: what Python still holds back goes nowhere, so that it does not fail at its end."""
    with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError, ValueError):  # a stream of no file
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
