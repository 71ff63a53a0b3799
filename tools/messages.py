"""What the packages say, as their sources write it: each text with its error code, and names in place of the values.

``ge_graph/data/messages.zh.tsv`` holds the same texts with their Chinese; a test keeps both in step.

python -m tools.messages            texts that the table lacks, as rows to translate, and rows of texts that are gone
"""

from __future__ import annotations

import ast
import collections
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ge_graph import messages
from ge_graph.kernels import STRENGTHS

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ROOT / "docs" / "errors"
REFUSED: Final = "GE2001"  # what reasons of refusals are told with
_LISTED: Final = (  # lines of an error that lists refused calls
    "{problems} of {total} node cannot be lowered.",
    "{problems} of {total} nodes cannot be lowered.",
    "{call}refused: {reason}",
    "{call}no converter, no decomposition",
    "{call}no converter, no decomposition; {why}",
    "no GE op {name} to derive one from",
    "GE op {name} exists, but {problem}",
    "{why}; near: {names}",
    "  … and {hidden} more",
    "register a converter or a decomposition for the missing ops (docs/adding_an_op.md)",
    "change the refused calls as their reasons say",
    "{advice}; change the refused calls as their reasons say",
    '{advice}; or set config.fallback = "split", which runs these nodes eagerly between GE graphs',
)
_RANKS: Final = (  # the table of ``tair ranks``, whose module parses nothing
    "bytes out / in",
    "computes meanwhile",
    "collective",
    "group",
    "nothing",
    "nothing; could: {could}",
    "between graphs",
)
COMMANDS: Final = "tair"  # stands for the code in rows of what the command says
_TOGETHER: Final = (  # code, file, functions (none: all): their texts are sentences that others put together
    (messages.ANY, "ge_graph/kernels/verdicts.py", ()),
    (messages.ANY, "ge_graph/kernels/grades.py", ()),
    (messages.ANY, "ge_graph/kernels/conditions.py", ()),
    ("GE3010", "ge_graph/verify.py", ()),
    ("GE3010", "ge_graph/rules/attributes.py", ()),
    ("GE3010", "ge_graph/rules/in_place.py", ()),
    ("GE3010", "ge_graph/rules/limits.py", ()),
    ("GE3010", "ge_graph/rules/subgraphs.py", ()),
    ("GE3010", "ge_graph/calling.py", ("input_problems",)),
    ("GE3010", "ge_graph/names.py", ("broken", "problem", "symbol_problem")),
    ("GE3070", "ge_graph/rules/options.py", ("problems", "_pairs", "_indices", "_shapes")),
    (REFUSED, "ge_converters/registry/derive.py", ("_mismatch", "_output_mismatch")),
    (COMMANDS, "ge_runtime/cann/probe.py", ("LIBRARIES", "_library", "_where", "_environment")),
    (COMMANDS, "tair_debug/captures.py", ("_UNKNOWN", "captures_of")),
    (COMMANDS, "tair_debug/compare.py", ("_why_unmatched",)),
    (COMMANDS, "tair_debug/doctor.py", ("mismatches", "_torch", "_siblings")),
    (COMMANDS, "tair_debug/plan.py", ("_notes", "NETWORK")),
    (COMMANDS, "tair_debug/tracing.py", ("_BRANCH", "_CHOOSE")),
)
_VIOLATIONS: Final = (
    "  [{code}] {what}",
    "  [{code}] {what} (from {where})",
    "{op} '{node}': {what}",
    "subgraph '{slot}' {what}",
    "{kind} '{name}' {why}",
)
_WITHOUT: Final = (  # lines of GE3069
    "  {call} (from {places}): {why}",
    "  {call} (from {places}): {why}; instead: {advice}",
    "  {call}: {why}",
    "  {call}: {why}; instead: {advice}",
)
_CHIPS: Final = (  # forms that operators took, casts, and who says so
    "{n} x {op} as {form} for {soc}",
    "{n} x {op} as {form} for {soc}, rather than {others}",
    "{ops} (about {seconds} us)",
    "cast {port} to {name}",
    "cast {port} to {name} ({hint})",
    "take {port} as {name}",
    "it ran as {op}",
    "mirror of {place}",
    "AI CPU registrations of {library} ({when})",
    "AI Core registrations of {library} for {soc} ({when})",
    "single-operator calls of {library}",
    "torchair inside torch_npu builds it",
    "page: {title}",
    "hiascend.com graph fusion rules: {rule}",
    "published operator libraries, {when}",
)
_WORDS: Final = (  # that tables and lines are put together of
    *("name", "state", "dtypes", "forms", "where", "attributes", "inputs", "outputs"),
    *("graphs", "streams", "events", "tasks", "pool bytes", "sum", "limit", "engine", "yes", "no"),
    *("whole model", "forward {number}", "backward {number}"),
    *("row", "function", "walk", "decomposed", "composite", "refused", "absent"),
    "max abs {abs}, max rel {rel}, cosine {cosine}, {bad} elements",
    "{target} differs from eager ({numbers})",
    "{target} cannot be converted: {reason}",
    "the compiled model as a whole, which may rightly differ ({settled})",
    "the compiled model as a whole: the refused calls stop it",
    "config.fallback says what else becomes of them",
    "its elements are undefined",
    "it draws random numbers",
    "equal keys may be in any order",
    "embedded engine on torch {version}",
    "torch_npu is not installed",
    "figures of {chip}",
)
_CODE: Final = re.compile(r"GE[1-5]\d{3}")
_RAISING: Final = re.compile(r"(\w*Error|_about|_error|damaged|_violation|broken|PassError|_refused)$")
_TELLING: Final = {
    "say",
    "sentence",
    "shown",
    "table",
    "BadParameter",
    "Option",
    "Argument",
    "command",
    "Typer",
    "told",
    "tell",
}
_PARSING: Final = {"CommandParser", "add_argument", "add"}  # of ge_graph.command_line
_HELP: Final = {"help", "description", "epilog"}
_NO_TEXT: Final = re.compile(r"--[a-z-]+|GE\d|red|green|yellow|tair( \{value\})?")  # options, styles
_FORMS: Final = {"GE4009"}  # hundreds of forms of operators, in the words of their definitions, which are English
_SHARED: Final = {"errors", "problems"}  # modules whose functions make the errors of others
_SENTENCES: Final = {"lead", "headline", "headlines", "numbers", "checksum"}  # functions whose results are told
_DATA: Final = {"metavar", "style", "param_hint", "where", "name", "prog_name", "rich_markup_mode", "option"}


def sources() -> list[Path]:
    """Python files of the packages."""
    return sorted(p for p in (ROOT / "packages").rglob("*.py") if "/src/" in p.as_posix())


def codes() -> set[str]:
    """The error codes that have an entry in the documentation."""
    return {code for page in PAGES.glob("?xxx.md") for code in re.findall(r"^## (GE\d{4})", page.read_text(), re.M)}


def texts(files: Iterable[Path] | None = None) -> dict[tuple[str, str], str]:
    """Code and text to the place that says it. Texts of values alone, or of next to nothing, are left out."""
    found: dict[tuple[str, str], str] = {}
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for p in (sources() if files is None else files)}
    helpers = {path: _helpers(tree) for path, tree in trees.items()}
    shared = [row for path, rows in helpers.items() if path.stem in _SHARED for row in rows]
    for path, tree in trees.items():
        module = _Module(tree, [*shared, *helpers[path]], "tair_debug" in path.parts)
        for code, text, line in module.said():
            if _says(code, text) and not _NO_TEXT.fullmatch(text):
                found.setdefault((code, text), f"{path.relative_to(ROOT).as_posix()}:{line}")
    if files is None:
        listed = {*_LISTED, *(part for reason in reasons() for part in _parts(reason))}
        found.update(((REFUSED, text), "ge_converters") for text in listed)
        found.update(((COMMANDS, text), "tair_debug.check") for text in {*verdicts(), *_RANKS} if _says(COMMANDS, text))
        found.update(((COMMANDS, text), "tair_debug") for text in _WORDS)
        found.update(((messages.ANY, text), "ge_graph.kernels") for text in {*_CHIPS, *limits()})
        found.update((("GE3010", text), "ge_graph.verify") for text in _VIOLATIONS)
        found.update((("GE3069", text), "tair_debug.check") for text in _WITHOUT)
        found["GE3070", "{key}: {what} (E19999)"] = "ge_graph.rules.options"
        found.update(((code, text), place) for code, text, place in put_together())
    return found


def put_together() -> Iterator[tuple[str, str, str]]:
    """Code, sentence and place of what some modules say in parts, such as verdicts on kernels and broken rules."""
    for code, name, functions in _TOGETHER:
        path = next(p for p in sources() if p.as_posix().endswith(f"src/{name}"))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        chosen = [n for n in tree.body if not functions or _defined(n) in functions]
        for text in (text for node in chosen for text in _sentences(node)):
            for clause in text.split("; ") if code == messages.ANY else [text]:
                clause = clause.strip() if code == messages.ANY else clause
                if _prose(clause) and _says(code, clause):
                    yield code, clause, path.relative_to(ROOT).as_posix()


def _defined(node: ast.stmt) -> str:
    """The name of a function or of a constant."""
    return getattr(node, "name", "") or getattr(getattr(node, "target", None), "id", "")


def limits() -> set[str]:
    """What runs instead of an operator without kernel, by the facts that the package carries."""
    from ge_graph.kernels import data

    return {clause for limit in data.limits() for clause in limit.instead.split("; ") if clause}


def _prose(text: str) -> bool:
    """Whether a text is for people, and no name, path or word of a table."""
    words = re.findall(r"(?<![\w.])[a-z]+\b(?![\w.]\w)", messages.FIELD.sub("", text))
    return len(words) > 1 and "/ops-" not in text and text not in STRENGTHS


def _sentences(node: ast.AST) -> Iterator[str]:
    """The texts inside that are neither documentation nor raised, compared, or a type; those inside a text too."""
    if isinstance(node, (ast.Raise, ast.Compare)) or _names(node) in (
        "startswith",
        "endswith",
        "super",
        "partition",
        "findall",
        "match",
    ):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        return
    if isinstance(node, (ast.Constant, ast.JoinedStr)) or (isinstance(node, ast.BinOp) and _is_text(node)):
        yield from _forms(node)
        for part in (n.value for n in ast.walk(node) if isinstance(n, ast.FormattedValue)):
            yield from _sentences(part)
        return
    for inner in ast.iter_child_nodes(node):
        yield from _sentences(inner)


def reasons() -> set[str]:
    """Why operators are refused, as tables of the converters have it: no text of the source, but put together there."""
    from ge_converters.ops import refused
    from ge_converters.ops.npu import refused as of_torch_npu

    return {*refused.REFUSED, *of_torch_npu.REFUSED.values()}


def verdicts() -> set[str]:
    """What ``tair summary`` and ``tair check`` call their verdicts, whole in one line and in parts in a table."""
    from tair_debug import check, summary_forms

    return {
        *summary_forms.ENGLISH.values(),
        *check.WORDS.values(),
        *check.HOW.values(),
        check.WORDS["open"].rpartition(", ")[2],
    }


def _parts(reason: str) -> Iterator[str]:
    """The rows that a reason is made of: what is missing, and after a semicolon what to do instead."""
    why, mark, instead = reason.rpartition("; ")
    names = re.fullmatch(r"use [\w.]+(, [\w.]+)?( and [\w.]+)?", instead)
    if not mark:
        yield reason
        return
    yield why
    yield (
        "{why}; use {one}, {two} and {three}"
        if names and all(names.groups())
        else (
            "{why}; use {one} and {two}"
            if names and names[2]
            else "{why}; use {one}"
            if names
            else f"{{why}}; {instead}"
        )
    )


def _says(code: str, text: str) -> bool:
    """Whether words of ours are enough to know the text by: with a code it is ours, else it may be somebody's name."""
    words = messages.FIELD.sub("", text)
    if _CODE.fullmatch(code) and " " not in text.strip():
        return False  # a name
    weak = {messages.ANY: 8, COMMANDS: 4}.get(code, 2) if messages.FIELD.search(text) else 2
    return len(re.findall("[A-Za-z]", words)) >= weak


def _helpers(tree: ast.Module) -> list[tuple[str, str, str, int]]:
    """Functions that raise or make an error with a code of theirs: name, code, a told parameter, its position."""
    found = []
    for fn in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        parameters = [a.arg for a in (*fn.args.posonlyargs, *fn.args.args)]
        named = [*parameters, *(a.arg for a in fn.args.kwonlyargs)]
        for call in (n for n in ast.walk(fn) if isinstance(n, ast.Call)):
            code = next(filter(None, map(_code, call.args)), None)
            if code is not None:
                inside = {n.id for part in _told(call, code) for n in ast.walk(part) if isinstance(n, ast.Name)}
                found += (
                    []
                    if code in _FORMS
                    else [
                        (fn.name, code, name, parameters.index(name) if name in parameters else -1)
                        for name in named
                        if name in inside
                    ]
                )
    return found


def _told(call: ast.Call, code: str) -> list[ast.expr]:
    name = _names(call)
    where = {"damaged": 2, "_about": 2}.get(name)  # these take the place as an argument by position
    given = [a for i, a in enumerate(call.args) if _code(a) is None and i != where]
    return [*given, *(k.value for k in call.keywords if k.arg not in _DATA)]


class _Module:
    """The texts of one file."""

    def __init__(self, tree: ast.Module, helpers: list[tuple[str, str, str, int]], telling: bool) -> None:
        self._tree = tree
        self._helpers: dict[str, list[tuple[str, str, int]]] = collections.defaultdict(list)
        for name, code, parameter, at in helpers:
            self._helpers[name].append((code, parameter, at))
        self._assigned = functools.cache(_assigned)  # of a scope that a name is looked up in
        self._telling = telling
        self._parses = any(getattr(n, "id", getattr(n, "name", None)) == "CommandParser" for n in ast.walk(tree))

    def said(self) -> Iterator[tuple[str, str, int]]:
        """Code, text, line."""
        yield from self._of(self._tree, [self._tree])

    def _of(self, parent: ast.AST, scopes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
        for node in ast.iter_child_nodes(parent):
            inner = scopes
            if isinstance(node, ast.FunctionDef):
                inner = [*scopes, node]
                if self._telling or (self._parses and node.name in _SENTENCES):
                    yield from ((COMMANDS, text, node.lineno) for text in _of_function(node))
            elif isinstance(node, ast.Call):
                yield from self._of_call(node, scopes)
            elif isinstance(node, ast.Dict):  # next steps by code
                for key, value in zip(node.keys, node.values):
                    code = _code(key)
                    if code is not None:
                        yield from ((code, text, node.lineno) for text in _forms(value))
            yield from self._of(node, inner)

    def _of_call(self, node: ast.Call, scopes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
        name = _names(node)
        code = next(filter(None, map(_code, node.args)), None)
        said: list[tuple[str, ast.expr]] = []
        if code is not None:
            said += ((code, part) for part in _told(node, code))
        elif name == "Refusal":
            said += ((REFUSED, part) for part in node.args[:1])
        elif _RAISING.search(name) and node.args:
            said += ((messages.ANY, part) for part in node.args[1:])
            said += ((messages.ANY, k.value) for k in node.keywords if k.arg == "next")
        elif self._parses and name in _PARSING:
            said += ((COMMANDS, k.value) for k in node.keywords if k.arg in _HELP)
        elif self._parses and name in ("told", "say"):
            said += ((COMMANDS, part) for part in node.args)
        elif self._telling and name in _TELLING:
            said += ((COMMANDS, part) for part in (*node.args, *(k.value for k in node.keywords if k.arg not in _DATA)))
        for its_code, parameter, at in self._helpers.get(name, ()):
            said += ((its_code, k.value) for k in node.keywords if k.arg == parameter)
            said += ((its_code, part) for part in node.args[at : at + 1] if at >= 0)
        for its_code, part in said:
            for whole in self._resolved(part, scopes):
                yield from ((its_code, text, node.lineno) for text in _forms(whole, its_code == COMMANDS))

    def _resolved(self, node: ast.expr, scopes: list[ast.AST]) -> list[ast.expr]:
        """The values that an expression may have here, its names replaced by what is assigned to them."""
        choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else getattr(node, "values", [])
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            return [value for choice in choices for value in self._resolved(choice, scopes)]
        if not isinstance(node, ast.Name):
            return [node]
        return next((found[node.id] for found in map(self._assigned, reversed(scopes)) if node.id in found), [])


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    if isinstance(scope, ast.FunctionDef):
        named = zip(reversed(scope.args.args), reversed(scope.args.defaults))
        for argument, default in (*named, *zip(scope.args.kwonlyargs, scope.args.kw_defaults)):
            if default is not None:
                found[argument.arg] = [default]
    for node in ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ast.iter_child_nodes(scope):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                found.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for one, its in zip(target.elts, value.elts):
                    if isinstance(one, ast.Name):
                        found.setdefault(one.id, []).append(its)
    return found


def _of_function(node: ast.FunctionDef) -> Iterator[str]:
    """Of a command its help; of a function that tells something the parts that it names first."""
    if any(_names(d) == "command" for d in node.decorator_list):
        yield from (" ".join(part.split()) for part in (ast.get_docstring(node) or "").split("\n\n"))
        return
    inside = list(ast.walk(node))
    if any(_names(n) in _TELLING for n in inside if isinstance(n, ast.Call)):
        for part in inside:
            if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value is not None:
                yield from _forms(part.value, lists=True)
    if node.name in _SENTENCES:
        for part in inside:
            if isinstance(part, (ast.Return, ast.Yield, ast.Assign)) and part.value is not None:
                yield from _forms(part.value, lists=True)
            elif isinstance(part, ast.Dict) or _names(part) == "append":
                for value in getattr(part, "values", None) or getattr(part, "args", []):
                    yield from _forms(value)


def _names(node: ast.AST) -> str:
    """The name of the function called."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _code(node: ast.expr | None) -> str | None:
    """The error code that an expression is."""
    text = node.value if isinstance(node, ast.Constant) else None
    return text if isinstance(text, str) and _CODE.fullmatch(text) else None


def _forms(node: ast.expr, lists: bool = False) -> Iterator[str]:
    """The texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from _forms(node.body)
        yield from _forms(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _forms(value)
    elif _names(node) in ("line", "block"):  # escaped
        yield from _forms(node.args[0])  # type: ignore[attr-defined]
    elif lists and isinstance(node, (ast.List, ast.Tuple)):
        for value in node.elts:
            yield from _forms(value)
    elif isinstance(node, (ast.Constant, ast.JoinedStr)) or (isinstance(node, ast.BinOp) and _is_text(node)):
        text = "".join(_pieces(node, {}))
        if text:
            yield text


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _pieces(node: ast.expr, taken: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value, taken)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _pieces(node.left, taken)
        yield from _pieces(node.right, taken)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    else:
        value = node.value if isinstance(node, ast.FormattedValue) else node
        written, base = ast.unparse(value), _field(value)
        name, number = base, 2
        while taken.setdefault(name, written) != written:
            name, number = f"{base}{number}", number + 1
        yield f"{{{name}}}"


def _field(node: ast.expr) -> str:
    """A name for a value, by the expression that makes it."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower() or "value"
    if isinstance(node, ast.Attribute):
        return _field(node.value) if node.attr.startswith("__") else node.attr.strip("_").lower()
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return _field(node.value)
    if isinstance(node, ast.Call):
        return _field(node.args[0]) if node.args else _field(node.func)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return _field(node.generators[0].iter)
    inner = next((n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.Name, ast.Attribute, ast.Call))), None)
    return "value" if inner is None else _field(inner)


def main() -> None:
    now, table = texts(), messages.rows("zh")
    missing = [*(key for key in now if key not in table), *((c, "") for c in sorted(codes()) if (c, "") not in table)]
    for code, text in sorted(missing):
        sys.stdout.write(f"{code}\t{messages.line(text)}\t\n")
    for code, text in sorted(table):
        if text and (code, text) not in now:
            sys.stdout.write(f"gone: {code}\t{messages.line(text)}\n")


if __name__ == "__main__":
    main()
