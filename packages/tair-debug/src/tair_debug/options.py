"""The options that all commands on a model share, by one name each; a command takes them as ``asked: Asked``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tair_debug.targets import FORMS
from tair_debug.terminal import Detail

if TYPE_CHECKING:
    from tair_debug.models import Subject

Target = Annotated[str, typer.Argument(metavar="MODEL", help=f"{FORMS}; a factory returns a model or (model, inputs).")]
Source = Annotated[str, typer.Argument(metavar="MODEL|GRAPH", help=f"{FORMS}; or a graph (.air, .pb, .txt).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance; by default that of the element type.")]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance; by default that of the element type.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a model is to be taken.

    Attributes:
        inputs: Texts such as ``float32(4, 8)``, in place of the inputs that a factory gives.
        config: ``FILE.py:factory`` of a CompilerConfig.
        backward: Whether the backward pass is wanted.
        dynamic: Whether sizes are symbols.
        real: Whether tensors have data.
    """

    inputs: tuple[str, ...] = ()
    config: str | None = None
    backward: bool = False
    dynamic: bool = False
    real: bool = False

    def subject(self, target: str, *, real: bool = False, size: int | None = None) -> Subject:
        """The model of a command line; ``size`` as ``models.load`` has it."""
        from tair_debug import models

        return models.load(target, self.inputs, fake=not (self.real or real), config=self.config, size=size)

    def none_for(self, source: str) -> None:
        """Refuse what acts on a model only, where a file stands in its place."""
        given = [f"--{f.name.removesuffix('s')}" for f in fields(self) if getattr(self, f.name)]
        if given:
            raise typer.BadParameter(f"act on a model, and {source} is a file", param_hint=", ".join(given))


Option = typer.Option
Config = Annotated[str | None, Option(metavar="FILE.py:FACTORY", help="A function that returns a CompilerConfig.")]
_SHARED: Final[dict[str, Any]] = {
    "inputs": Annotated[list[str] | None, Option("--input", "-i", help="Such as 'float32(4, 8)'; repeat it.")],
    "config": Config,
    "backward": Annotated[bool, Option("--backward", help="The backward pass too, of the sum of all results.")],
    "dynamic": Annotated[bool, Option("--dynamic", help="Trace with symbolic sizes.")],
    "real": Annotated[bool, Option("--real", help="Make real tensors, for factories that look at values.")],
}
_DETAIL: Final[dict[str, Any]] = {
    "quiet": Annotated[bool, Option("--quiet", "-q", help="Only the verdict.")],
    "every": Annotated[bool, Option("--all", "-a", help="Also the rows that need no attention.")],
    "sources": Annotated[bool, Option("--verbose", "-v", help="More about each row, such as who says so.")],
}
_GROUPS: Final[dict[Any, dict[str, Any]]] = {Asked: _SHARED, Detail: _DETAIL}


def expanded(fn: Callable[..., int]) -> Any:
    """The function with the options of ``Asked`` and ``Detail`` in place of these parameters, for typer to read."""
    # not by typing.get_type_hints, which before Python 3.11 wraps what has the default None once more
    own = inspect.signature(fn, eval_str=True).parameters.values()
    groups = {p.name: p.annotation for p in own if p.annotation in _GROUPS}
    plain = [p for p in own if p.name not in groups]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=option, default=_default(kind, name))
        for kind in groups.values()
        for name, option in _GROUPS[kind].items()
    ]

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> int:
        for name, kind in groups.items():
            values = {part: kwargs.pop(part) for part in _GROUPS[kind]}
            if kind is Asked:
                values["inputs"] = tuple(values["inputs"] or ())
            kwargs[name] = kind(**values)
        return fn(*args, **kwargs)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in plain] + shared
    shown: Any = run
    shown.__signature__ = inspect.Signature(parameters, return_annotation=int)
    shown.__annotations__ = {p.name: p.annotation for p in parameters}
    del shown.__wrapped__
    return shown


def _default(kind: Any, name: str) -> Any:
    return None if name == "inputs" else next(f.default for f in fields(kind) if f.name == name)
