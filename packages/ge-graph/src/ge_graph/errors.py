"""The error form of every package: a code, what was got and expected, a place in the user's source, the next step.

Codes are grouped by who has to act: 1xxx configuration, 2xxx lowering, 3xxx graph, 4xxx engine, 5xxx archive. Each code
has an entry in ``docs/errors.md``; a test keeps both in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ge_graph import messages
from ge_graph.escape import block

_AT: Final = {"en": "  at {}", "zh": "  位于 {}"}
_NEXT: Final = {"en": "Next: {}", "zh": "下一步：{}"}


class GeError(Exception):
    """Base of all errors raised on purpose. The fields keep what was given; the message shows it escaped, in the
    language of the reader (``ge_graph.messages``).

    Args:
        code: Stable identifier such as ``"GE3010"``.
        what: What is wrong, with the value got and the values accepted.
        where: Place in the user's source or in the file read, empty if there is none.
        next: What the reader should do now.
    """

    def __init__(self, code: str, what: str, *, where: str = "", next: str = "") -> None:
        self.code = code
        self.what = what
        self.where = where
        self.next = next
        language = messages.language()
        lines = [f"[{code}] {messages.said(code, what, language, head=True)}"]
        if where:
            lines.append(_AT[language].format(where))
        if next:
            lines.append(_NEXT[language].format(messages.said(code, next, language)))
        # what a file or a user named may hold anything; a message prints on a terminal, line feeds and all
        super().__init__(block("\n".join(lines)))

    def __reduce__(self) -> tuple[Any, ...]:
        # whatever a subclass takes in its constructor: the error is made without calling it, with all its fields
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[GeError], args: tuple[Any, ...], fields: dict[str, Any]) -> GeError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


def on_purpose(error: BaseException | None) -> GeError | None:
    """The error of ours that an exception is, wraps (dynamo's do) or follows; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, GeError):
            return error
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


class ConfigError(GeError, ValueError):
    """A configuration value is refused (1xxx)."""


class LoweringError(GeError, RuntimeError):
    """FX nodes cannot become GE nodes (2xxx).

    Attributes:
        refused: Name of a node in the outermost FX graph to the reason, for the nodes that the error lists.
    """

    refused: Mapping[str, str] = MappingProxyType({})


class GraphError(GeError, ValueError):
    """A GE graph, or a call that builds one, breaks a rule of GE (3xxx)."""


class EngineError(GeError, RuntimeError):
    """An engine cannot compile or run a graph (4xxx)."""


class ArchiveError(GeError, ValueError):
    """A file is damaged, foreign, of another version or cannot be written (5xxx)."""
