"""``torchair.logger``: the log that users switch on and off.

A line per record: ``[LEVEL] TORCHAIR(<pid>,<process>):YYYY-MM-DD HH:MM:SS.mmm.uuu [file.py:line]<thread id> message``.
The native layer, which is everything below the engine protocol (``ge_runtime``), joins date and time by ``-`` and names
files with their folder. Its level is that of TNG_LOG_LEVEL if that is set when this module loads.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

from ge_graph import escape

EVENT_LEVEL: Final = 35
"""Level of stage times. A logger set to it prints EVENT and ERROR records, no warnings."""

_MOST_SAID: Final = 10_000
_NATIVE: Final = "ge_runtime"
_PACKAGES: Final = ("ge_graph", "ge_converters", _NATIVE, "tair_debug", "tair_export")
_NATIVE_LEVELS: Final = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": EVENT_LEVEL,
}


class LineFormatter(logging.Formatter):
    """The line form above."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        micros = int(record.created * 1_000_000) % 1_000_000
        native = _is_native(record)
        clock = time.strftime("%Y-%m-%d-%H:%M:%S" if native else "%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        file = "/".join(record.pathname.split(os.sep)[-2:]) if native else record.filename
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        text = escape.block(text).replace("\n[", "\n [")  # no line of a text looks like a record
        level = "EVENT" if record.levelno == EVENT_LEVEL else record.levelname
        return (
            f"[{level}] TORCHAIR({record.process},{record.processName}):{clock}.{micros // 1000:03d}."
            f"{micros % 1000:03d} [{file}:{record.lineno}]{threading.get_native_id()} {text}"
        )


if TYPE_CHECKING:
    _StreamHandler: TypeAlias = logging.StreamHandler[TextIO]
else:  # Python 3.10 cannot subscript it
    _StreamHandler = logging.StreamHandler


def _is_native(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == _NATIVE


class _CurrentStderr(_StreamHandler):
    """Writes what the levels let through to whatever ``sys.stderr`` is when a record comes, so redirections hold."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        """While a file takes everything, the levels still hold here."""
        if _is_native(record) and record.levelno == EVENT_LEVEL and _native not in (None, EVENT_LEVEL):
            return False  # TNG_LOG_LEVEL has them at 4 only, not among the levels below
        return record.levelno >= (_native_level() if _is_native(record) else logger.level)


class TorchairLogger(logging.Logger):
    """A ``logging.Logger`` with ``event`` and ``warning_once``."""

    def __init__(self, name: str, level: int = logging.ERROR) -> None:
        super().__init__(name, level)
        self._said: set[str] = set()
        self._followed = logging.NOTSET

    def event(self, msg: str, *args: Any) -> None:
        if self.isEnabledFor(EVENT_LEVEL):
            self._log(EVENT_LEVEL, msg, args, stacklevel=2)

    def warning_once(self, msg: str, *args: Any) -> None:
        """Log a warning; the same message is logged once in a process."""
        text = msg % args if args else msg
        if text not in self._said and self.isEnabledFor(logging.WARNING):
            if len(self._said) < _MOST_SAID:
                self._said.add(text)
            self._log(logging.WARNING, "%s", (text,), stacklevel=2)

    def tell(self, msg: str, *args: Any) -> None:
        """Say once what a user has to know: a warning of the log where its level prints them, else one of Python.

        The log prints errors only unless it is told otherwise, and then nobody would see that a run is eager.
        """
        if self.isEnabledFor(logging.WARNING):
            self.warning_once(msg, *args)
            return
        text = msg % args if args else msg
        if text not in self._said:
            if len(self._said) < _MOST_SAID:
                self._said.add(text)
            warnings.warn(f"torchair: {text}", UserWarning, stacklevel=3)

    def setLevel(self, level: int | str) -> None:
        """Set the level here and for the records of the sibling packages, which come out through this log."""
        super().setLevel(level)
        # the logging module clears the answers that loggers remember only for loggers that it made itself
        vars(self).get("_cache", {}).clear()
        for name in _PACKAGES if getattr(self, "handlers", None) else ():
            _let_through(name, self.level if name != _NATIVE else _native_level())

    def isEnabledFor(self, level: int) -> bool:
        """Everything is wanted while a file records everything."""
        if _named.level != self._followed:
            self._followed = _named.level
            self.setLevel(self._followed or logging.ERROR)
        return bool(_files) or super().isEnabledFor(level)


def _let_through(name: str, level: int) -> None:
    """Records of a package from ``level`` on come out here."""
    package = logging.getLogger(name)
    package.setLevel(logging.DEBUG if _files else level)
    for handler in (_handler, *_files):
        if handler not in package.handlers:
            package.addHandler(handler)


def _native_level() -> int:
    return logger.level if _native is None else _native


def record_to(handler: logging.Handler) -> None:
    """Let a handler take every record of this log and of the sibling packages, whatever the levels say."""
    handler.setFormatter(LineFormatter())
    _files.append(handler)
    logger.addHandler(handler)
    for name in _PACKAGES:
        _let_through(name, logging.DEBUG)
        package = logging.getLogger(name)
        _propagated.setdefault(name, package.propagate)
        package.propagate = False  # a root handler would print what only the file asked for


def record_no_longer_to(handler: logging.Handler) -> None:
    """Undo ``record_to``; the levels hold again."""
    for log in (logger, *map(logging.getLogger, _PACKAGES)):
        log.removeHandler(handler)
    if handler in _files:
        _files.remove(handler)
        logger.setLevel(logger.level)
    if not _files:
        for name, propagated in _propagated.items():
            logging.getLogger(name).propagate = propagated
        _propagated.clear()


# Whose level ``TORCH_LOGS="torchair"`` and configurations of logging set, torch after it has imported this module.
_named: Final = logging.getLogger("torchair")
_files: Final[list[logging.Handler]] = []
_propagated: Final[dict[str, bool]] = {}  # what packages did before a file recorded them
_native: int | None = _NATIVE_LEVELS.get(os.environ.get("TNG_LOG_LEVEL", ""))
_handler = _CurrentStderr()
_handler.setFormatter(LineFormatter())


def _make() -> TorchairLogger:
    # made directly and not through logging.getLogger, so that no global logger class is swapped meanwhile
    made = TorchairLogger("torchair")
    made.parent = logging.getLogger()
    made.propagate = False
    made.addHandler(_handler)
    return made


logger: Final = _make()

_let_through(_NATIVE, _native_level())  # without a handler, logging would print its warnings bare
if _native is None and os.environ.get("TNG_LOG_LEVEL"):
    logger.error("TNG_LOG_LEVEL is %r, known are 0 to 4; it is not used", os.environ["TNG_LOG_LEVEL"])
