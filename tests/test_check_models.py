"""The demo models before the eyes of each chip: a verdict for every operator."""

import pytest
import torch

from ge_graph import kernels
from tair_debug import check, tracing
from tair_debug.models import Subject
from tools import models


def graphs(name):
    case = models.ZOO[name]("tiny")
    subject = Subject(case.model, tuple(case.inputs), {}, name)
    return [tracing.to_ge(g.gm, name) for g in tracing.capture(subject, fake=False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "resnet50"])
def test_a_verdict_per_chip(name, monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    torch._dynamo.reset()
    found = graphs(name)
    tasks = sum(n.op not in ("Data", "Const", "NetOutput") for g in found for n in g.nodes)
    for soc in kernels.socs():
        report = check.examine(found, kernels.oracle(soc))
        assert report.headline().startswith(f"{soc}: {tasks} operators")
        assert sum(report.counts().values()) == tasks
        assert report.ok == (report.counts()["none"] == 0)
    whole = check.examine(found, kernels.oracle("ascend950"))
    assert whole.ok, check.text(whole.troubles())
    assert whole.counts()["aicore"] >= 10
