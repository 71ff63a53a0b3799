"""Fixtures: a clean dynamo and verified rewrites for every test, and an observer that keeps what it sees."""

from contextlib import contextmanager

import pytest
import torch

from tair_debug.observer import observing


class Recorder:
    def __init__(self):
        self.models = []
        self.fx = []
        self.ge = []
        self.code = []

    def dynamo_graph(self, model_id, gm):
        self.models.append(model_id)

    def fx_graph(self, stage, label, gm):
        self.fx.append((stage, label, [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]))

    def ge_graph(self, stage, label, graph):
        self.ge.append((stage, label, graph))

    def output_code(self, stage, code):
        self.code.append((stage, code))

    def last_graph(self):
        return next(graph for _, label, graph in reversed(self.ge) if label == "optimized")

    def fx_labels(self):
        return [label for _, label, _ in self.fx]


@pytest.fixture
def recording():
    """``with recording() as seen:`` keeps every stage of the compilations inside."""

    @contextmanager
    def record():
        recorder = Recorder()
        with observing(recorder):
            yield recorder

    return record


@pytest.fixture(scope="module")
def ranks(request):
    """Two processes, or as many as an indirect parameter says, that carry out the ``CASES`` of a test file."""
    from tair_testing.ranks import WORLD, processes

    with processes(str(request.path), getattr(request, "param", WORLD)) as made:
        yield made


@pytest.fixture(autouse=True)
def verified_rewrites(request, monkeypatch):
    """Each rewrite of each compilation is evaluated (``debug.verify_rewrites``), but for the tests of wrong ones."""
    if not request.node.get_closest_marker("unverified"):
        monkeypatch.setenv("TAIR_VERIFY_REWRITES", "1")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
