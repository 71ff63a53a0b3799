"""Digests of functions and objects: another content is another digest, and what is no content changes nothing."""

import ctypes
import functools
import math
import sys
import textwrap
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from torchair.artifact import content
from torchair.artifact.content import Content, Unknowable, content_of


@pytest.fixture
def made(monkeypatch):
    """A function ``f`` of a module with the given text, as an editor or a notebook makes it."""

    def make(text, name="users_module"):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(textwrap.dedent(text), f"<{name}>", "exec"), vars(module))
        return module.f

    return make


BASE = """
import functools
SCALE = 2.0
class Kind:
    limit = 3
    def act(self, x):
        return x * self.limit
def helper(x):
    return x + SCALE
def outer(x, n=1, *, flag=True):
    def inner(y):
        return helper(y) * 2
    return inner(x) + n + Kind().act(x)
f = outer
"""
EDITS = {
    "a global": ("SCALE = 2.0", "SCALE = 3.0"),
    "a helper": ("x + SCALE", "x - SCALE"),
    "a constant in nested code": ("helper(y) * 2", "helper(y) * 3"),
    "a default": ("n=1", "n=2"),
    "a keyword default": ("flag=True", "flag=False"),
    "a class's attribute": ("limit = 3", "limit = 4"),
    "a class's method": ("x * self.limit", "x / self.limit"),
    "an operator": ("inner(x) + n", "inner(x) - n"),
    "a partial's argument": ("f = outer", "f = functools.partial(outer, n=5)"),
    "a partial's other argument": ("f = outer", "f = functools.partial(outer, n=6)"),
    "a decorator": ("f = outer", "f = functools.wraps(outer)(lambda *a: outer(*a) + 1)"),
    "a cache around it": ("f = outer", "f = functools.lru_cache(outer)"),
    "a closure": ("f = outer", "def make(k):\n    return lambda x: outer(x) + k\nf = make(1)"),
    "another closure": ("f = outer", "def make(k):\n    return lambda x: outer(x) + k\nf = make(2)"),
    "a bound object": ("f = outer", "f = Kind().act"),
    "a bound object's state": ("f = outer", "k = Kind()\nk.limit = 9\nf = k.act"),
    "a tensor in a closure": ("f = outer", "import torch\ndef m(t):\n    return lambda x: x + t\nf = m(torch.ones(2))"),
    "another tensor": ("f = outer", "import torch\ndef m(t):\n    return lambda x: x + t\nf = m(torch.zeros(2))"),
    "an import inside": ("return x + SCALE", "import math\n    return x + math.pi"),
    "another import inside": ("return x + SCALE", "import cmath\n    return x + cmath.pi"),
}


def test_each_edit_is_another_digest(made):
    seen = {content_of(made(BASE)): "nothing"}
    for what, (old, new) in EDITS.items():
        assert BASE.count(old) == 1, what
        digest = content_of(made(BASE.replace(old, new)))
        assert digest not in seen, f"{what} is the same as {seen.get(digest)}"
        seen[digest] = what


DATA = Path(__file__).parent / "data" / "ways.txt"


def _ways():
    """Ways in which a function's result hangs on something else: a module whose f reads it, and an edit of its text."""
    for part in DATA.read_text().split("## ")[1:]:
        name, rest = part.split("\n", 1)
        text, edit = rest.split("\n-- ", 1)
        yield name, (text, *edit.rstrip("\n").split("\n++ "))


WAYS = dict(_ways())


@pytest.fixture
def as_before(monkeypatch):
    """What the modules of ``WAYS`` write into torch and the environment goes again."""
    monkeypatch.setenv("USERS_VARIABLE", "")
    monkeypatch.setattr(torch.nn.functional, "users_own", None, raising=False)
    monkeypatch.setattr(torch.nn.Linear, "users_own", None, raising=False)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_reach_a_value_is_seen(way, strict, made, as_before):
    text, old, new = WAYS[way]
    assert old in text
    if not strict and way.startswith("numpy"):  # the trace says of arrays what it read
        return
    digests = []
    for edited in (text, text, text.replace(old, new, 1)):
        digests.append(Content(strict=strict).add(made(edited)).digest())
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_only_the_variables_that_a_function_names_count(made, monkeypatch):
    named = "import os\ndef f(x):\n    return x * int(os.environ['USERS_VARIABLE'])"
    computed = "import os\ndef f(x, name):\n    return x * int(os.environ[name])"
    monkeypatch.setenv("USERS_VARIABLE", "1")
    before = [content_of(made(text)) for text in (named, computed)]
    monkeypatch.delenv("USERS_VARIABLE")
    unset = content_of(made(named))
    monkeypatch.setenv("ANOTHER_VARIABLE", "1")
    assert content_of(made(named)) == unset != before[0]
    monkeypatch.setenv("USERS_VARIABLE", "1")
    assert content_of(made(named)) == before[0]
    assert content_of(made(computed)) != before[1]  # nobody knows which it reads


def test_what_a_decorator_of_python_or_torch_makes_of_a_function_is_the_users(made):
    for text in (
        "import contextlib\n@contextlib.contextmanager\ndef f(x):\n    yield x + 1",
        "import torch\n@torch.no_grad()\ndef f(x):\n    return x + 1",
        "import torch\n@torch._dynamo.disable\ndef f(x):\n    return x + 1",
    ):
        assert content_of(made(text)) == content_of(made(text))
        assert content_of(made(text)) != content_of(made(text.replace("x + 1", "x + 2")))


def test_an_object_that_raises_when_it_is_looked_at_is_unknowable(made):
    text = """
    class Odd(list):
        def __iter__(self):
            raise OSError("no")
        @property
        def __dict__(self):
            raise OSError("no")
    odd = Odd()
    def f(x):
        return odd
    """
    with pytest.raises(Unknowable, match="OSError: no"):
        content_of(made(text))


NO_EDITS = {
    "comments and lines": ("def helper(x):", "# a comment\n\n\ndef helper(x):  # another"),
    "an unused global": ("SCALE = 2.0", "SCALE = 2.0\nUNUSED = 7"),
    "order of definitions": ("f = outer", "f = outer\nZ = 1"),
}


@pytest.mark.parametrize("what", NO_EDITS)
def test_what_is_no_content_changes_nothing(what, made):
    assert content_of(made(BASE.replace(*NO_EDITS[what]))) == content_of(made(BASE))


def test_a_helper_in_another_module(made, monkeypatch):
    digests = []
    for body in ("x + 1", "x + 2", "x + 1  # as before"):
        made(f"def f(x):\n    return {body}", "users_helpers")
        digests.append(content_of(made("import users_helpers\ndef f(x):\n    return users_helpers.f(x)")))
        digests.append(content_of(made("from users_helpers import f as g\ndef f(x):\n    return g(x)")))
        digests.append(content_of(made("def f(x):\n    from users_helpers import f\n    return f(x)")))
    first, second, third = digests[:3], digests[3:6], digests[6:]
    assert not set(first) & set(second)
    assert first == third


def test_values_and_their_types():
    values = [
        None,
        0,
        1,
        True,
        1.0,
        -0.0,
        0.0,
        math.nan,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        frozenset((1,)),
        {1: 1},
        {"1": 1},
        torch.float32,
        torch.ones(1),
        torch.ones(1, 1),
        torch.ones(1).long(),
        np.ones(1),
        np.ones(1, "i4"),
        len,
        math.sin,
        torch.nn.ReLU,
        torch.nn.ReLU(),
        torch.nn.Linear(1, 2),
        torch.nn.functional.relu,
        torch.ops.aten.relu.default,
        torch.ops.aten.relu,
        range(3),
        slice(1),
        functools.partial(len),
        "a".join,
    ]
    assert len({content_of(v) for v in values}) == len(values)


def test_sets_have_no_order_and_dicts_have():
    assert content_of({"a", "b", "c"}) == content_of({"c", "b", "a"})
    assert content_of({"a": 1, "b": 2}) != content_of({"b": 2, "a": 1})


class Sneaky:
    def __init__(self):
        self.lock = threading.Lock()


UNKNOWABLE = {
    "a lock": threading.Lock(),
    "an object that holds one": Sneaky(),
    "a function of C of nobody": ctypes.CDLL(None).getpid,
    "a generator": (i for i in ()),
    "an open file": sys.__stdout__,
    "a function that closes over one": (lambda lock: lambda: lock)(threading.Lock()),
}


@pytest.mark.parametrize("what", UNKNOWABLE)
def test_what_cannot_be_known_is_refused_with_its_kind(what):
    with pytest.raises(Unknowable, match=r"\w+\.\w+"):
        content_of(UNKNOWABLE[what])
    assert Content(strict=False).add(UNKNOWABLE[what]).digest()


def test_cycles_end():
    ring = [1]
    ring.append(ring)
    assert content_of(ring) != content_of([1])


def test_a_modules_parameters_are_names_types_and_sizes():
    def of(model):
        return Content(strict=False).add(model).digest()

    model = torch.nn.Linear(2, 3)
    same = of(torch.nn.Linear(2, 3))
    assert of(model) == same
    model.weight.data.mul_(2)
    assert of(model) == same
    others = [torch.nn.Linear(2, 4), torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(2, 3).double()]
    tied, untied = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    two, one = torch.nn.Sequential(tied, torch.nn.Linear(2, 2)), torch.nn.Sequential(untied, torch.nn.Linear(2, 2))
    one[1].weight = one[0].weight
    scaled = torch.nn.Linear(2, 3)
    scaled.scale = 2.0
    hooked = torch.nn.Linear(2, 3)
    hooked.register_forward_hook(lambda *a: None)
    digests = [same, *map(of, (*others, two, one, scaled, hooked))]
    assert len(set(digests)) == len(digests)


def test_a_source_file_that_changed_under_the_process_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "late.py"
    file.write_text("x = 1")
    monkeypatch.setattr(content, "began", lambda: file.stat().st_mtime - 5)
    with pytest.raises(Unknowable, match="was written after this process began"):
        content.source_digest(str(file))
    monkeypatch.setattr(content, "began", lambda: file.stat().st_mtime + 5)
    assert content.source_digest(str(file))
