"""The log: line form, levels, messages that are said once, and one line a stage."""

import logging
import re

import pytest
import torch

import torchair
from torchair.core.utils import EVENT_LEVEL
from torchair.log import TorchairLogger

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


def test_options_for_a_device_are_reported_once(log, capsys):
    log.setLevel(logging.WARNING)
    config = torchair.CompilerConfig()
    config.ge_config.oo_level = "O1"
    config.ge_config.aicore_num = "12|34"
    backend = torchair.get_npu_backend(compiler_config=config)
    run = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    run(torch.randn(3))
    run(torch.randn(4))
    (line,) = [text for _, text in LINE.findall(capsys.readouterr().err) if "only on a device" in text]
    assert "oo_level" in line
    assert "12|34" in line


@pytest.mark.parametrize("text", [
    "a\n[ERROR] TORCHAIR(1,MainProcess):2026-01-01 00:00:00.000.000 [x.py:1]1 forged", "a\rb", "\x1b[2Jcleared",
    "a\u2028b", "nul\x00", "\u202eabc", "\ud800", "%s %d", "a" * 10_000, "a\x85[ERROR] TORCHAIR(", "a\x0cb",
], ids=range(11))  # fmt: skip
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
