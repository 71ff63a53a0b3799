"""Digests of functions and objects: another content is another digest, and what is no content changes nothing."""

import ctypes
import functools
import math
import sys
import textwrap
import threading
import types

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


# Ways in which a function's result hangs on something else: a module whose f reads it, the text that an edit changes.
WAYS = {
    "class attribute of base": ('class A:\n    k=1\nclass B(A): pass\ndef f(x): return x*B.k', 'k=1', 'k=2'),
    "class attr set later": ('class A: pass\nA.k=1\ndef f(x): return x*A.k', 'A.k=1', 'A.k=2'),
    "metaclass": ('class M(type):\n    k=1\nclass A(metaclass=M): pass\ndef f(x): return x*A.k', 'k=1', 'k=2'),
    "global dict": ("T={'a':1}\ndef f(x): return x*T['a']", "'a':1", "'a':2"),
    "nested dict of functions": ("T={'a':[lambda x:x+1]}\ndef f(x): return T['a'][0](x)", 'x+1', 'x+2'),
    "imported object's method": ('class O:\n    def m(self,x): return x+1\no=O()\ndef f(x): return o.m(x)', 'x+1', 'x+2'),
    "instance method override": ('class O: pass\no=O()\no.m=lambda x:x+1\ndef f(x): return o.m(x)', 'x+1', 'x+2'),
    "wraps": ('import functools\ndef g(x): return x+1\n@functools.wraps(g)\ndef f(*a): return g(*a)', 'x+1', 'x+2'),
    "decorated": ('def d(k):\n    def w(fn):\n        def i(x): return fn(x)*k\n        return i\n    return w\n@d(2)\ndef f(x): return x', '@d(2)', '@d(3)'),
    "default object": ('class O:\n    def __init__(s,k): s.k=k\ndef f(x,o=O(1)): return x*o.k', 'O(1)', 'O(2)'),
    "slots": ("class O:\n    __slots__=('k',)\n    def __init__(s,k): s.k=k\no=O(1)\ndef f(x): return x*o.k", 'O(1)', 'O(2)'),
    "property": ('class O:\n    @property\n    def k(s): return 1\no=O()\ndef f(x): return x*o.k', 'return 1', 'return 2'),
    "cached_property": ('import functools\nclass O:\n    @functools.cached_property\n    def k(s): return 1\no=O()\ndef f(x): return x*o.k', 'return 1', 'return 2'),
    "staticmethod": ('class O:\n    @staticmethod\n    def k(): return 1\ndef f(x): return x*O.k()', 'return 1', 'return 2'),
    "classmethod": ('class O:\n    @classmethod\n    def k(c): return 1\ndef f(x): return x*O.k()', 'return 1', 'return 2'),
    "partialmethod": ('import functools\nclass O:\n    def m(s,x,k): return x*k\n    n=functools.partialmethod(m,k=1)\no=O()\ndef f(x): return o.n(x)', 'k=1', 'k=2'),
    "singledispatch": ('import functools\n@functools.singledispatch\ndef g(x): return x\n@g.register(int)\ndef _(x): return x+1\ndef f(x): return g(x)', 'x+1', 'x+2'),
    "enum": ('import enum\nclass E(enum.Enum):\n    A=1\ndef f(x): return x*E.A.value', 'A=1', 'A=2'),
    "namedtuple": ("import collections\nN=collections.namedtuple('N','a b')\nn=N(1,2)\ndef f(x): return x*n.a", 'N(1,2)', 'N(2,2)'),
    "dataclass": ('import dataclasses\n@dataclasses.dataclass\nclass D:\n    a:int=1\nd=D()\ndef f(x): return x*d.a', 'a:int=1', 'a:int=2'),
    "dataclass factory": ('import dataclasses\n@dataclasses.dataclass\nclass D:\n    a:list=dataclasses.field(default_factory=lambda:[1])\ndef f(x): return x*D().a[0]', '[1]', '[2]'),
    "getattr constant": ("def g(x): return x+1\nimport sys\nme=sys.modules[__name__]\ndef f(x): return getattr(me,'g')(x)", 'x+1', 'x+2'),
    "globals": ("K=1\ndef f(x): return x*globals()['K']", 'K=1', 'K=2'),
    "vars of module": ("K=1\nimport sys\nme=sys.modules[__name__]\ndef f(x): return x*vars(me)['K']", 'K=1', 'K=2'),
    "sys.modules": ('K=1\nimport sys\ndef f(x): return x*sys.modules["users_module"].K', 'K=1', 'K=2'),
    "import_module": ('K=1\nimport importlib\ndef f(x): return x*importlib.import_module("users_module").K', 'K=1', 'K=2'),
    "operator attrgetter": ("import operator\nclass O: k=1\ng=operator.attrgetter('k')\ndef f(x): return x*g(O)", "attrgetter('k')", "attrgetter('j')"),
    "mappingproxy": ("import types\nT=types.MappingProxyType({'a':1})\ndef f(x): return x*T['a']", "'a':1", "'a':2"),
    "chainmap": ("import collections\nT=collections.ChainMap({'a':1})\ndef f(x): return x*T['a']", "'a':1", "'a':2"),
    "defaultdict": ("import collections\nT=collections.defaultdict(lambda:1)\ndef f(x): return x*T['a']", 'lambda:1', 'lambda:2'),
    "ordereddict order": ("import collections\nT=collections.OrderedDict([('a',1),('b',2)])\ndef f(x): return x*next(iter(T.values()))", "[('a',1),('b',2)]", "[('b',2),('a',1)]"),
    "deque": ('import collections\nT=collections.deque([1])\ndef f(x): return x*T[0]', '[1]', '[2]'),
    "dict subclass attr": ('class T(dict): pass\nt=T()\nt.k=1\ndef f(x): return x*t.k', 't.k=1', 't.k=2'),
    "list subclass": ('class T(list): pass\nt=T([1])\ndef f(x): return x*t[0]', '[1]', '[2]'),
    "int subclass": ('class T(int): pass\nt=T(1)\nt.j=5\ndef f(x): return x*t.j', 't.j=5', 't.j=6'),
    "str subclass": ("class T(str): pass\nt=T('a')\ndef f(x): return t", "'a'", "'b'"),
    "simplenamespace": ('import types\nt=types.SimpleNamespace(k=1)\ndef f(x): return x*t.k', 'k=1', 'k=2'),
    "numpy": ('import numpy as np\nt=np.array([1.0])\ndef f(x): return x*t', '[1.0]', '[2.0]'),
    "numpy object": ("import numpy as np\nt=np.array([1,'a'],dtype=object)\ndef f(x): return x*t[0]", "[1,'a']", "[2,'a']"),
    "os.environ": ("import os\nos.environ['USERS_VARIABLE']='1'\ndef f(x): return x*int(os.environ['USERS_VARIABLE'])", "='1'", "='2'"),
    "os.getenv": ("import os\nos.environ['USERS_VARIABLE']='1'\ndef f(x): return x*int(os.getenv('USERS_VARIABLE'))", "='1'", "='2'"),
    "environ alias": ("from os import environ as env\nenv['USERS_VARIABLE']='1'\ndef f(x): return x*int(env['USERS_VARIABLE'])", "='1'", "='2'"),
    "env name global": ("import os\nN='USERS_VARIABLE'\nos.environ['USERS_VARIABLE']='1'\ndef f(x): return x*int(os.environ[N])", "='1'", "='2'"),
    "env in helper class": ("import os\nos.environ['USERS_VARIABLE']='1'\nclass C:\n    def flag(s): return int(os.environ.get('USERS_VARIABLE','0'))\nc=C()\ndef f(x): return x*c.flag()", "='1'", "='2'"),
    "env through getenv alias": ("from os import getenv as g\nimport os\nos.environ['USERS_VARIABLE']='1'\ndef f(x): return x*int(g('USERS_VARIABLE'))", "='1'", "='2'"),
    "patched torch fn": ('import torch\ntorch.nn.functional.users_own=lambda x: x+1\ndef f(x): return torch.nn.functional.users_own(x)', 'x+1', 'x+2'),
    "patched torch alias": ('import torch.nn.functional as F\nF.users_own=lambda x: x+1\ndef f(x): return F.users_own(x)', 'x+1', 'x+2'),
    "patched torch value": ('import torch.nn.functional as F\nF.users_own=1\ndef f(x): return x*F.users_own', 'F.users_own=1', 'F.users_own=2'),
    "patched class method": ('import torch\ntorch.nn.Linear.users_own=lambda s: 1\nm=torch.nn.Linear(1,1)\ndef f(x): return x*m.users_own()', 's: 1', 's: 2'),
    "exec": ("def f(x):\n    exec('x=x+1'); return x", 'x+1', 'x+2'),
    "lambda default capture": ('fs=[lambda x,k=k:x*k for k in (1,2)]\nf=fs[0]', '(1,2)', '(3,2)'),
    "callable object": ('class C:\n    k=1\n    def __call__(s,x): return x*s.k\nf=C()', 'k=1', 'k=2'),
    "generator fn": ('def g():\n    yield 1\ndef f(x): return x*next(g())', 'yield 1', 'yield 2'),
    "dtype": ('import torch\nD=torch.float32\ndef f(x): return x.to(D)', 'float32', 'float16'),
    "nested fn attr": ('def f(x): return x*f.k\nf.k=1', 'f.k=1', 'f.k=2'),
    "weakref": ('import weakref\nclass O: k=1\no=O()\nr=weakref.ref(o)\ndef f(x): return x*r().k', 'k=1', 'k=2'),
    "torch op": ('import torch\nop=torch.ops.aten.relu.default\ndef f(x): return op(x)', 'relu.default', 'sigmoid.default'),
    "descriptor": ('class D:\n    def __init__(s,k): s.k=k\n    def __get__(s,o,t): return s.k\nclass O:\n    a=D(1)\ndef f(x): return x*O.a', 'D(1)', 'D(2)'),
    "module getattr": ('def __getattr__(n): return 1\nimport sys\nme=sys.modules[__name__]\ndef f(x): return x*me.anything', 'return 1', 'return 2'),
}  # fmt: skip


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
    monkeypatch.setenv("ANOTHER_VARIABLE", "1")
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
        None, 0, 1, True, 1.0, -0.0, 0.0, math.nan, "1", b"1", (1,), [1], {1}, frozenset((1,)), {1: 1}, {"1": 1},
        torch.float32, torch.ones(1), torch.ones(1, 1), torch.ones(1).long(), np.ones(1), np.ones(1, "i4"), len,
        math.sin, torch.nn.ReLU, torch.nn.ReLU(), torch.nn.Linear(1, 2), torch.nn.functional.relu,
        torch.ops.aten.relu.default, torch.ops.aten.relu, range(3), slice(1), functools.partial(len), "a".join,
    ]  # fmt: skip
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
