"""The log: line form, levels, messages that are said once, and one line per stage."""

import logging
import os
import pathlib
import re

import pytest
import torch

import torchair
from tair_testing import warm
from torchair.config.log import TorchairLogger, record_no_longer_to, record_to
from torchair.core.utils import EVENT_LEVEL

LINE = re.compile(
    r"^\[(\w+)\] TORCHAIR\(\d+,\w+\):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\.\d{3} \[\w+\.py:\d+\]\d+ (.*)$",
    re.MULTILINE,
)


@pytest.fixture
def log():
    before = torchair.logger.level
    yield torchair.logger
    torchair.logger.setLevel(before)


def test_default_level_is_error(log, capsys):
    assert log.level == logging.ERROR
    log.warning("nobody reads this")
    log.error("everybody reads %s", "this")
    assert [m[1] for m in LINE.findall(capsys.readouterr().err)] == ["everybody reads this"]


def test_line_form(log, capsys):
    log.setLevel(logging.DEBUG)
    log.info("two\nlines")
    ((level, text),) = LINE.findall(capsys.readouterr().err)
    assert (level, text) == ("INFO", "two")


def test_event_level_prints_events_and_errors_only(log, capsys):
    log.setLevel(EVENT_LEVEL)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, EVENT_LEVEL, logging.ERROR):
        log.log(level, "%d", level)
    assert [m[0] for m in LINE.findall(capsys.readouterr().err)] == ["EVENT", "ERROR"]


def test_warning_once(capsys):
    log = TorchairLogger("one", logging.WARNING)
    seen = []
    log.addHandler(logging.Handler())
    log.handlers[0].emit = lambda record: seen.append(record.getMessage())
    for value in (1, 1, 2):
        log.warning_once("value %d", value)
    assert seen == ["value 1", "value 2"]


def test_records_of_the_sibling_packages_come_through(log, capsys):
    log.setLevel(logging.DEBUG)
    logging.getLogger("ge_converters.lowering").debug("from below")
    assert "from below" in [m[1] for m in LINE.findall(capsys.readouterr().err)]
    log.setLevel(logging.ERROR)
    logging.getLogger("ge_converters.lowering").debug("from below")
    assert not LINE.findall(capsys.readouterr().err)


def test_one_line_a_stage(log, capsys):
    log.setLevel(logging.INFO)
    torch.compile(lambda x: x.abs() + 1, backend=torchair.get_npu_backend())(torch.randn(3))
    lines = [text for _, text in LINE.findall(capsys.readouterr().err)]
    for stage in ("RemoveNoops", "lower", "GE passes", "verify", "engine"):
        (line,) = [text for text in lines if re.match(rf"model \d+ forward: {stage}: ", text)]
        assert re.search(r"\d+ .*, \d+\.\d ms$", line)


@pytest.mark.parametrize(
    "text",
    [
        "a\n[ERROR] TORCHAIR(1,MainProcess):2026-01-01 00:00:00.000.000 [x.py:1]1 forged",
        "a\rb",
        "\x1b[2Jcleared",
        "a\u2028b",
        "nul\x00",
        "\u202eabc",
        "\ud800",
        "%s %d",
        "a" * 10_000,
        "a\x85[ERROR] TORCHAIR(",
        "a\x0cb",
    ],
    ids=range(11),
)
def test_a_text_of_others_is_no_record_and_steers_no_terminal(log, capsys, text):
    log.setLevel(logging.INFO)
    log.info("name %s", text)
    shown = capsys.readouterr().err
    assert len(LINE.findall(shown)) == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", shown)


def test_what_was_said_once_does_not_grow_without_end():
    one = TorchairLogger("one", logging.WARNING)
    for number in range(12_000):
        one.warning_once("graph %d", number)
    assert len(one._said) == 10_000


# --- what is told ----------------------------------------------------------------------------------------------------

_MODEL = """
import os
import torch, torchair
{before}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4).t())

    def forward(self, x):
        with torchair.scope.npu_stream_switch("s1"):
            y = x @ self.weight
        return y.relu() + 0, x + 1

with torch.no_grad():
    run = torch.compile(Model(), backend=torchair.get_npu_backend(), dynamic={dynamic})
    run(torch.ones(4, 3).t())
"""


_EACH_LEVEL = """
import os, runpy
import torch._dynamo
for level in "012347":
    child = os.fork()
    if not child:
        os.dup2(os.open(f"{level}.log", os.O_CREAT | os.O_WRONLY), 2)
        os.environ["TNG_LOG_LEVEL"] = level
        runpy.run_path("model.py")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def run_python(folder, script, **environment):
    """What a process that runs a script in a folder writes to stderr."""
    kept = {k: v for k, v in os.environ.items() if k != "TNG_LOG_LEVEL"}
    return warm.run(script, cwd=folder, env={**kept, **environment}).stderr


def told(tmp_path, *, before="", dynamic=False, **environment):
    """What a process that runs the model writes, without what differs from run to run."""
    (tmp_path / "model.py").write_text(_MODEL.format(before=before, dynamic=dynamic))
    written = run_python(tmp_path, "model.py", **environment)
    text = re.sub(r"TORCHAIR\(\d+,\w+\):[\d-]+[ -][\d:.]+ \[([\w/]+\.py):\d+\]\d+", r"TORCHAIR [\1]", written)
    text = re.sub(r"[\d.]+ ms", "<time> ms", re.sub(r"0x[0-9a-f]+", "<address>", text))
    return text.replace(str(tmp_path), "<folder>")


_DEBUG = "import logging; torchair.logger.setLevel(logging.DEBUG)"
_GOLDEN = pathlib.Path(__file__).parent / "data" / "debug_log.txt"


@pytest.mark.slow
@pytest.mark.unverified  # whose own lines are in the log too
def test_the_log_of_a_model_is_this(tmp_path):
    got = told(tmp_path, before=_DEBUG, TNG_LOG_LEVEL="0")
    if os.environ.get("UPDATE_GOLDEN"):
        _GOLDEN.parent.mkdir(exist_ok=True)
        _GOLDEN.write_text(got)
    assert got == _GOLDEN.read_text()


@pytest.mark.slow
def test_nothing_is_told_by_default(tmp_path):
    option = "config = torchair.CompilerConfig(); config.ge_config.oo_level = 'O1'\n"
    option += "backend = torchair.get_npu_backend\ntorchair.get_npu_backend = lambda: backend(compiler_config=config)"
    text = told(tmp_path, before=f"import warnings; warnings.simplefilter('ignore')\n{option}")
    assert text == ""


@pytest.mark.slow
def test_each_level_of_the_native_layer_is_another(tmp_path):
    """torchair is imported anew for each level, torch once."""
    (tmp_path / "model.py").write_text(_MODEL.format(before="", dynamic=False))
    (tmp_path / "each_level.py").write_text(_EACH_LEVEL)
    assert run_python(tmp_path, "each_level.py") == ""
    logs = {n: (tmp_path / f"{n}.log").read_text() for n in "012347"}
    assert "TNG_LOG_LEVEL is '7', known are 0 to 4" in logs.pop("7")
    levels = {n: set(re.findall(r"^\[(\w+)\]", text, re.MULTILINE)) for n, text in logs.items()}
    assert levels == {
        "0": {"DEBUG", "INFO"},
        "1": {"INFO"},
        "2": set(),
        "3": set(),
        "4": {"EVENT"},
    }
    assert [n for n, text in logs.items() if "Compiling concrete graph 1 with options:" in text] == ["0", "1"]


@pytest.mark.slow
def test_the_native_layer_warns_and_names_dynamic_graphs(tmp_path):
    option = "config = torchair.CompilerConfig(); config.ge_config.oo_level = 'O1'\n"
    option += "backend = torchair.get_npu_backend\ntorchair.get_npu_backend = lambda: backend(compiler_config=config)"
    text = told(tmp_path, before=option, dynamic=True, TNG_LOG_LEVEL="1")
    assert re.search(
        r"^\[WARNING\] TORCHAIR .*Engine 'cpu' does nothing with: ge_config\.oo_level = 'O1'", text, re.MULTILINE
    )
    assert "Dynamic FX graph compiled to dynamic Ascend GE graph by engine 'cpu', graph id: 1" in text
    assert "Graph 1 ran successfully" in text


def test_runs_tell_of_their_inputs_whenever_the_level_is_on(log, capsys):
    run = torch.compile(lambda x, n: x + n, backend=torchair.get_npu_backend(), dynamic=True)
    run(torch.ones(3, 2), 5)
    assert "runtime inputs" not in capsys.readouterr().err
    log.setLevel(logging.DEBUG)
    run(torch.ones(2, 3).t(), 5)
    shown = capsys.readouterr().err
    assert "runtime inputs:" in shown
    assert re.search(
        r"^  input \d+: Tensor shape=\[3, 2\] dtype=torch\.float32 device=cpu contiguous=False$", shown, re.MULTILINE
    )


def test_no_text_is_made_while_the_level_is_off(monkeypatch):
    from ge_converters.lowering import conversion_log
    from torchair.compiler import records

    def never(*args):
        raise AssertionError("a text that nobody reads")

    for module, name in ((conversion_log, "converted"), (records, "_tensor"), (records, "_address")):
        monkeypatch.setattr(module, name, never)
    torch.compile(lambda x: x.abs() + 1, backend=torchair.get_npu_backend())(torch.randn(3))


def test_packages_are_left_as_they_were_when_nothing_records_any_more():
    package, handler = logging.getLogger("ge_converters"), logging.NullHandler()
    before = package.propagate
    record_to(handler)
    assert not package.propagate
    record_no_longer_to(handler)
    assert package.propagate is before
