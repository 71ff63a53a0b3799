"""Names that scripts import, what importing costs, and living beside torch_npu."""

import importlib
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import torchair

SOURCE = os.path.dirname(os.path.dirname(torchair.__file__))


def python(code, *path, **env):
    """Run code in a fresh interpreter; returns what it prints."""
    inherited = os.pathsep.join([*map(str, path), SOURCE, *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": inherited, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", torchair.__all__)
def test_public_names_exist(name):
    assert getattr(torchair, name) is not None
    assert name in dir(torchair)


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torchair.no_such_name


PATHS = {
    "torchair.configs.compiler_config": ["CompilerConfig", "OptionValue", "IntRangeValue", "MustExistedPathValue"],
    "torchair.core.utils": ["logger", "EVENT_LEVEL"],
    "torchair.ge": [
        "Tensor",
        "TensorSpec",
        "Const",
        "Cast",
        "Clone",
        "custom_op",
        "attr",
        "DataType",
        "Format",
        "MatMulV2",
    ],
    "torchair.ge._ge_graph": [
        "Tensor",
        "TensorSpec",
        "TensorType",
        "auto_convert_to_tensor",
        "get_default_ge_graph",
        "DataType",
    ],
    "torchair.ge_concrete_graph.ge_graph": ["Tensor", "TensorSpec"],
    "torchair._ge_concrete_graph.ge_apis": ["Data", "Const", "Add", "NetOutput"],
    "torchair._ge_concrete_graph.fx2ge_converter": ["declare_supported", "register_fx_node_ge_converter"],
    "torchair._ge_concrete_graph.compat_ir": ["ge_op", "IrDef"],
}


def test_dynamo_loads_after_this_package():
    """What is imported here leaves no half of dynamo behind, in any torch."""
    told = python("import sys, torch, torchair; print('torch._dynamo' in sys.modules); print(torch._dynamo.config)")
    assert told.startswith("False")


@pytest.mark.parametrize("path", PATHS)
def test_import_paths_of_existing_scripts(path):
    module = importlib.import_module(path)
    for name in PATHS[path]:
        assert getattr(module, name) is not None


def test_old_paths_are_the_same_objects():
    from torchair._ge_concrete_graph.fx2ge_converter import register_fx_node_ge_converter
    from torchair.configs.compiler_config import CompilerConfig
    from torchair.core.utils import logger

    assert CompilerConfig is torchair.CompilerConfig
    assert logger is torchair.logger
    assert register_fx_node_ge_converter is torchair.register_fx_node_ge_converter


def test_ops_are_there_after_import():
    assert {"scope_enter", "scope_exit", "record", "wait"} <= set(dir(torch.ops.air))
    for name in ("scope_enter", "scope_exit", "record", "wait"):
        assert isinstance(getattr(torch.ops.air, name).default, torch._ops.OpOverload)


@pytest.mark.slow
def test_import_is_cheap_and_pure():
    out = python(
        """
        import json, sys, torch
        import_of_torch = set(sys.modules)
        logging_before = list(__import__("logging").root.handlers)
        import torchair
        after_import = set(sys.modules)
        torchair.CompilerConfig()
        print(json.dumps({
            "loaded": sorted(m for m in after_import - import_of_torch),
            "compiler": "torch._dynamo" in sys.modules or "ge_converters.registry" in sys.modules,
            "handlers": len(__import__("logging").root.handlers) - len(logging_before),
        }))
        """
    )
    seen = json.loads(out)
    assert len(seen["loaded"]) < 120
    assert seen["handlers"] == 0
    assert not seen["compiler"]
    heavy = ("torch._dynamo", "torch._inductor", "ge_converters", "ge_graph", "ge_runtime", "tair_debug", "tair_export")
    light = (
        "ge_converters",
        "ge_converters.base",
        "ge_converters.base.torch_kept",
    )  # names of torch, no converter
    assert not [m for m in seen["loaded"] if m.startswith(heavy) and m not in light]


def fake_torch_npu(folder):
    """A package that behaves as torch_npu does towards the name ``torchair``."""
    (folder / "torch_npu").mkdir(parents=True)
    (folder / "torch_npu" / "__init__.py").write_text(
        textwrap.dedent(
            """
            import sys, types
            class StandIn(types.ModuleType):
                def __getattr__(self, name):
                    raise RuntimeError("the bundled package was asked for " + name)
            sys.modules["torchair"] = StandIn("torchair")
            def _autoload():
                pass
            """
        )
    )
    return folder


def entry_points(folder, name, text):
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(text)
    return folder


OURS = "[torch.backends]\ntorchair = torchair_autoload:load\n"
THEIRS = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
CODE = """
    import torch, sys
    import torchair
    print(torchair.__file__)
    import torchair.scope
    import torch_npu
    import torchair as again
    print(again is torchair)
    import torchair_autoload
    print(torchair_autoload.replaced)
    torchair.logger.setLevel("WARNING")
    torchair.get_npu_backend()
    torchair.get_npu_backend()
    """


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_this_package_wins_beside_torch_npu(tmp_path, ours_first):
    ours = entry_points(tmp_path / "ours", "ours", OURS)
    theirs = entry_points(fake_torch_npu(tmp_path / "theirs"), "theirs", THEIRS)
    order = (ours, theirs) if ours_first else (theirs, ours)
    out = python(CODE, *order).split()
    assert out == [torchair.__file__, "True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_stand_in_that_comes_later_finds_the_name_taken(tmp_path, ours_first):
    """torch_npu installs it when dynamo is first imported, which may be before the user imports torchair."""
    ours = entry_points(tmp_path / "ours", "ours", OURS)
    theirs = entry_points(fake_torch_npu(tmp_path / "theirs"), "theirs", THEIRS)
    module = tmp_path / "theirs" / "torch_npu" / "__init__.py"
    installing = 'sys.modules["torchair"] = StandIn("torchair")'
    later = f'def dynamo_came():\n    if "torchair" not in sys.modules:\n        {installing}\n'
    module.write_text(module.read_text().replace(installing, later))
    code = """
        import torch, torch_npu
        torch_npu.dynamo_came()
        import torchair
        print(torchair.__file__)
        torchair.get_npu_backend()
        """
    assert python(code, *((ours, theirs) if ours_first else (theirs, ours))).split() == [torchair.__file__]


WAITS_FOR_DYNAMO = """
import sys, types

class Finder:
    busy = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch._dynamo" or self.busy:
            return None
        self.busy = True
        spec = next(filter(None, (f.find_spec(name, path, target) for f in sys.meta_path)))
        self.busy = False
        load = spec.loader.exec_module

        def then_register(module):
            load(module)
            from torch._dynamo.backends.registry import register_backend

            sys.modules["npugraph_ex"] = StandIn("npugraph_ex")
            for name in ("npu", "npugraph_ex"):
                register_backend(lambda gm, inputs: gm, name=name)

        spec.loader.exec_module = then_register
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "autoload"),
    [
        ("import torch_npu", "1"),
        ("import torchair, torch_npu", "0"),
        ("import torch_npu, torchair_autoload; torchair_autoload.load()", "0"),
    ],
)
def test_backends_and_modules_by_name_are_these(tmp_path, imports, autoload):
    """torch_npu registers its own when dynamo has been imported, and stops if a name is taken by then."""
    ours = entry_points(tmp_path / "ours", "ours", OURS)
    theirs = entry_points(fake_torch_npu(tmp_path / "theirs"), "theirs", THEIRS)
    module = tmp_path / "theirs" / "torch_npu" / "__init__.py"
    unless_taken = module.read_text().replace('sys.modules["torchair"] = ', 'sys.modules.setdefault("torchair", ')
    module.write_text(unless_taken.replace('StandIn("torchair")', 'StandIn("torchair"))') + WAITS_FOR_DYNAMO)
    out = python(
        f"""
        import torch
        {imports}
        from torch._dynamo.backends.registry import list_backends, lookup_backend
        for _ in range(2):
            print(*(lookup_backend(name).__module__ for name in ("npu", "npugraph_ex")))
            list_backends()  # reads the entry points
        import npugraph_ex, torchair
        print(npugraph_ex.__file__, torchair.__file__)
        """,
        ours,
        theirs,
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    package = os.path.dirname(os.path.dirname(torchair.__file__))
    assert out.split("\n")[:2] == ["torchair.compiler.backend torchair.compiler.backend"] * 2
    assert out.split("\n")[2] == f"{package}/npugraph_ex/__init__.py {torchair.__file__}"


@pytest.mark.slow
def test_the_bundled_one_on_the_path_stays(tmp_path):
    """``tair emulate --bundled-torchair`` asks for it."""
    ours = entry_points(tmp_path / "ours", "ours", OURS)
    theirs = entry_points(fake_torch_npu(tmp_path / "theirs"), "theirs", THEIRS)
    (tmp_path / "theirs" / "torchair.py").write_text("")
    code = "import torch, torch_npu, torchair; print(torchair.__file__)"
    assert python(code, theirs, ours).split() == [str(tmp_path / "theirs" / "torchair.py")]


@pytest.mark.slow
def test_a_torch_npu_that_fails_to_load_is_reported_by_torch(tmp_path):
    theirs = entry_points(tmp_path / "theirs", "theirs", "[torch.backends]\ntorch_npu = no_such_module:load\n")
    ours = entry_points(tmp_path / "ours", "ours", OURS)
    out = python(
        """
        try:
            import torch
            print("loaded")
        except RuntimeError as error:
            print("torch_npu" in str(error), "no_such_module" in str(error.__cause__))
        """,
        ours,
        theirs,
    )
    assert out.split() == ["True", "True"]


def test_generated_operator_functions_work():
    """The form that generated files of custom operators have."""
    from ge_graph import Graph, building
    from torchair._ge_concrete_graph.compat_ir import IrDef, ge_op
    from torchair.ge import DataType, attr
    from torchair.ge._ge_graph import auto_convert_to_tensor, get_default_ge_graph

    @auto_convert_to_tensor([False, False, True], [False, True, False])
    def ScaleAndPick(x, bias, parts, *, factor=1.0, dependencies=[], node_name=None):
        return ge_op(
            op_type="ScaleAndPickForTest",
            inputs={"x": x, "bias": bias, "parts": parts},
            attrs={"factor": attr.Float(factor)},
            outputs=["y"],
            dependencies=dependencies,
            node_name=node_name,
            ir=IrDef("ScaleAndPickForTest")
            .input("x", "DT_FLOAT, DT_FLOAT16")
            .optional_input("bias", "DT_FLOAT, DT_FLOAT16")
            .dynamic_input("parts", "DT_FLOAT, DT_FLOAT16")
            .attr("factor", attr.Float(1.0))
            .output("y", "DT_FLOAT, DT_FLOAT16"),
        )

    with building(Graph("g")) as graph:
        x = torchair.ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2, 3))
        first = torchair.ge.Abs(x)
        y = ScaleAndPick(x, None, [x, 2.0], factor=3.0, dependencies=[first], node_name="mine")
        assert get_default_ge_graph().graph is graph
    node = graph.node("mine")
    assert y.node is node
    assert node.attr("factor") == 3.0
    assert node.inputs[1] is None
    assert [t.dtype for t in node.inputs[2]] == [DataType.DT_FLOAT, DataType.DT_FLOAT]
    assert first.node in node.control


@pytest.mark.slow
@pytest.mark.parametrize("ours_first", [True, False])
def test_ops_that_both_define(tmp_path, ours_first):
    """torch_npu defines ops of these names when its own torchair loads; neither order may raise."""
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("")
    out = python(
        f"""
        import torch

        def theirs():
            global libraries
            libraries = [torch.library.Library(space, "FRAGMENT") for space in ("air", "npugraph_ex")]
            for library in libraries:
                library.define("scope_enter(str[] keys, str[] values, bool need_excute=False) -> ()")
                library.define("scope_exit(bool need_excute=False) -> ()")
                library.define("record() -> Tensor")
                library.define("wait(Tensor[] x) -> ()")
                for name in ("scope_enter", "scope_exit", "wait"):
                    library.impl(name, lambda *a, **k: None, "CompositeExplicitAutograd")
                    torch.fx.node.has_side_effect(getattr(getattr(torch.ops, library.ns), name).default)

        if not {ours_first}:
            theirs()
        import torchair
        if {ours_first}:
            theirs()
        from tair_debug.observer import observing
        graphs = []
        class Seen:
            def dynamo_graph(self, *a): pass
            def fx_graph(self, *a): pass
            def output_code(self, *a): pass
            def ge_graph(self, stage, label, graph): graphs.append(graph)
        def f(x):
            with torchair.scope.npu_stream_switch("s"):
                y = x + 1
            torch.ops.npugraph_ex.scope_enter(["_user_stream_label"], ["t"])
            z = y * 2
            torch.ops.npugraph_ex.scope_exit()
            return torchair.scope.npu_wait_tensor(z, y) - 1
        with observing(Seen()):
            print(torch.equal(torch.compile(f, backend="npu", fullgraph=True)(torch.ones(2)), torch.tensor([3.0, 3.0])))
        print([n.attr("_user_stream_label") for n in graphs[-1].nodes if n.op in ("Add", "Mul")])
        """,
        tmp_path,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.split("\n")[:2] == ["True", "['s', 't']"]
