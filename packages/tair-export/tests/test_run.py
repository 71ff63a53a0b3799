"""The command line."""

import contextlib
import io
import json
import re
from typing import NamedTuple

import numpy as np
import pytest

from ge_graph.dtypes import DataType
from tair_export import measure
from tair_export.export import write_graph
from tair_export.load import CompiledModel
from tair_export.run import main, prepared
from tair_export.signature import Input, Signature

X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


@pytest.fixture
def saved(tmp_path, make):
    made = make(state=True)
    write_graph(made.captured, tmp_path / "a")
    np.save(tmp_path / "x.npy", X)
    return made, tmp_path


class Done(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr


def run(*args):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([str(a) for a in args])
    return Done(code, out.getvalue(), errors.getvalue())


def test_info(saved):
    _, path = saved
    found = json.loads(run("--info", path / "a", "--json").stdout)
    assert found["inputs"] == ["x: f32[s0, 4]"]
    assert found["outputs"] == ["f32[s0, 8]"]
    assert found["ops"]["MatMulV2"] == 1
    assert found["states"] == ["n"]
    assert found["writer"]["tair-export"]
    text = run("--info", path / "a").stdout
    assert "x: f32[s0, 4]" in text
    assert "MatMulV2" in text


def test_run(saved):
    made, path = saved
    for inputs in (["--inputs", path / "x.npy"], ["-i", f"x={path / 'x.npy'}"]):
        done = run(path / "a", *inputs, "--output", path / "out")
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(np.load(path / "out/output_0.npy"), made.expected(X, 1), rtol=1e-5)
    rows = json.loads(run(path / "a", "--inputs", path / "x.npy", "--json").stdout)
    assert rows[0]["name"] == "y"
    assert rows[0]["shape"] == [3, 8]


def test_mistakes_end_with_one_line(saved, tmp_path):
    _, path = saved
    done = run(path / "a")
    assert done.exit_code == 1
    assert "0 inputs given for 1: x: f32[s0, 4]" in done.output
    done = run(path / "nothing", "--info")
    assert done.exit_code == 1
    assert "GE5020" in done.output
    np.save(tmp_path / "bad.npy", np.array([{}], object), allow_pickle=True)
    done = run(path / "a", "--inputs", tmp_path / "bad.npy")
    assert done.exit_code == 1
    assert "GE5045" in done.output
    assert "object" in done.output


def test_keys(saved, key):
    """``--key`` takes only what the key has signed, for describing as for running."""
    from tair_export.signing import sign

    _, path = saved
    (path / "key.pem").write_bytes(key[1])
    ways = [["--info"], ["--inputs", path / "x.npy"]]
    for way in ways:
        done = run(path / "a", *way, "--key", path / "key.pem")
        assert (done.exit_code, "GE5044" in done.output) == (1, True)
    sign(path / "a", key[0])
    for way in ways:
        assert run(path / "a", *way, "--key", path / "key.pem").exit_code == 0
        assert "GE5044" in run(path / "a", *way, "--key", path / "key.pem", "--signed-for", "a 1").output
    sign(path / "a", key[0], text="a 1")
    for way in ways:
        assert run(path / "a", *way, "--key", path / "key.pem", "--signed-for", "a 1").exit_code == 0
    done = run(path / "a", "--info", "--key", path / "key.pem", "--signed-for", "a 1", "--verify", "fast")
    assert "GE5042" in done.output
    assert "--key" in run(path / "a", "--info", "--signed-for", "a 1").output
    (path / "a" / "compiled_graph.air").rename(path / "bare.air")
    done = run(path / "bare.air", "--info", "--key", path / "key.pem")
    assert (done.exit_code, "no manifest" in done.output) == (1, True)


def test_times_of_random_inputs(saved):
    _, path = saved
    done = run(path / "a", "--random", "--size", "s0=5", "--iterations", 20, "--warm-up", 2, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["iterations"] == 20
    assert found["warm_up"] == 2
    order = [found[f"{name}_ms"] for name in ("min", "p50", "p90", "p99", "max")]
    assert order == sorted(order)
    assert order[0] > 0
    assert found["runs_per_second"] == pytest.approx(1e3 / found["mean_ms"])
    assert "p99_ms" in run(path / "a", "--inputs", path / "x.npy", "--iterations", 2).stdout


def test_each_run_is_one_call_and_the_first_do_not_count(saved):
    """The state of the model counts its calls; the times are those of the last ones."""
    _, path = saved
    model = CompiledModel.load_graph(path / "a")
    before = int(np.asarray(model.states["n"]).reshape(-1)[0])
    found = measure.times(prepared(model, [X]), warm_up=3, iterations=4)
    assert len(found) == 4
    assert int(np.asarray(model.states["n"]).reshape(-1)[0]) - before == 7


def test_percentiles_are_those_of_the_nearest_rank():
    found = measure.described([0.001 * n for n in (4, 1, 3, 2, 5, 10, 9, 8, 7, 6)], 0)
    assert [found[f"p{p}_ms"] for p in (50, 90, 99)] == pytest.approx([5, 9, 10])
    assert found["mean_ms"] == pytest.approx(5.5)


def test_random_inputs_are_of_the_sizes_and_types_asked_for():
    shapes = {"x": ("DT_FLOAT", ("s0", 4)), "m": ("DT_BOOL", (3,)), "i": ("DT_INT64", ("s0",)), "b": ("DT_BF16", (2,))}
    inputs = [Input(name, "tensor", DataType[dtype], shape) for name, (dtype, shape) in shapes.items()]
    inputs += [Input("n", "number", value="s0"), Input("c", "constant", value="text")]
    contract = Signature("*", "*", (), "*", tuple(inputs), (), (), {"s0": (2, 6)})
    x, m, i, b, n, c = measure.random_inputs(contract, {}, 3, 1)
    assert (x.shape, x.dtype, m.dtype, i.shape, n, c) == ((6, 4), np.float32, np.bool_, (6,), 6, "text")
    assert str(b.dtype) == "torch.bfloat16"
    assert set(i) <= {0, 1, 2}
    again = measure.random_inputs(contract, {"s0": 3}, 3, 1)
    assert again[0].shape == (3, 4)
    with pytest.raises(ValueError, match="its sizes that may change are: s0"):
        measure.random_inputs(contract, {"s9": 3}, 3, 1)


def test_options_that_would_do_nothing_are_refused(saved):
    _, path = saved
    for more in (
        ["--size", "s0=5"],
        ["--seed", 1],
        ["--warm-up", 1],
        ["--random", "--size", "5"],
        ["--random", "--inputs", path / "x.npy"],
        ["--inputs", path / "x.npy", "--iterations", 1, "--output", path / "o"],
    ):
        done = run(path / "a", *more)
        assert done.exit_code == 1
        assert "tair-run: " in done.output
    assert not (path / "o").exists()


def test_its_help_and_refusals_are_chinese(saved, monkeypatch):
    _, path = saved
    monkeypatch.setenv("TAIR_LANG", "zh")
    monkeypatch.setenv("COLUMNS", "80")
    said = [run("-h").stdout, run(path / "a").stderr, run(path / "nothing").stderr, run("--nosuch").stderr]
    said += [run(path / "a", "--seed", 1).stderr, run(path / "a", "--iterations", 0).stderr]
    for text in said:
        lines = [each for each in text.splitlines() if "tair-run ARCHIVE" not in each]
        assert re.search("[\u4e00-\u9fff]", text), text
        assert [each for each in lines if re.search(r"[a-z]{4,} [a-z]{3,} [a-z]{3,}", each)] == []
    assert re.search("选项[：:]", said[0])
    assert run(path / "a", "--info").stdout.startswith("归档")


@pytest.mark.parametrize("words", [(), ("--nosuch",), ("a", "--iterations", "0"), ("a", "--seed", "x")])
def test_wrong_usage_is_code_two(words):
    done = run(*words)
    assert done.exit_code == 2
    assert "usage: tair-run ARCHIVE" in done.stderr
