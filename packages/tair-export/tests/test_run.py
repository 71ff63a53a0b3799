"""The command line."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tair_export.export import write_graph
from tair_export.run import app

X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


@pytest.fixture
def saved(tmp_path, make):
    made = make(state=True)
    write_graph(made.captured, tmp_path / "a")
    np.save(tmp_path / "x.npy", X)
    return made, tmp_path


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


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
