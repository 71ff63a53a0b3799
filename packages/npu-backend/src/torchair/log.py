"""``torchair.logger``: the log that users switch on and off.

One line a record: ``[LEVEL] TORCHAIR(<pid>,<process>):YYYY-MM-DD HH:MM:SS.mmm.uuu [file.py:line]<thread id> message``.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Final, TextIO

EVENT_LEVEL: Final = 35
"""Level of stage times. A logger set to it prints EVENT and ERROR records, no warnings."""

_PACKAGES: Final = ("ge_graph", "ge_converters", "ge_runtime", "tair_debug", "tair_export")


class LineFormatter(logging.Formatter):
    """The line form above."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        micros = int(record.created * 1_000_000) % 1_000_000
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        level = "EVENT" if record.levelno == EVENT_LEVEL else record.levelname
        return (
            f"[{level}] TORCHAIR({record.process},{record.processName}):{clock}.{micros // 1000:03d}."
            f"{micros % 1000:03d} [{record.filename}:{record.lineno}]{threading.get_native_id()} {text}"
        )


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is when a record comes, so that redirections hold."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class TorchairLogger(logging.Logger):
    """A ``logging.Logger`` with ``event`` and ``warning_once``."""

    def __init__(self, name: str, level: int = logging.ERROR) -> None:
        super().__init__(name, level)
        self._said: set[str] = set()

    def event(self, msg: str, *args: Any) -> None:
        """Log at EVENT_LEVEL."""
        if self.isEnabledFor(EVENT_LEVEL):
            self._log(EVENT_LEVEL, msg, args, stacklevel=2)

    def warning_once(self, msg: str, *args: Any) -> None:
        """Log a warning; the same message is logged once in a process."""
        text = msg % args if args else msg
        if text not in self._said and self.isEnabledFor(logging.WARNING):
            self._said.add(text)
            self._log(logging.WARNING, "%s", (text,), stacklevel=2)

    def setLevel(self, level: int | str) -> None:
        """Set the level here and for the records of the sibling packages, which come out through this log."""
        super().setLevel(level)
        # the logging module clears the answers that loggers remember only for loggers that it made itself
        vars(self).get("_cache", {}).clear()
        for name in _PACKAGES if getattr(self, "handlers", None) else ():
            package = logging.getLogger(name)
            package.setLevel(self.level)
            if _handler not in package.handlers:
                package.addHandler(_handler)


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
