"""Pages on a telephone and on a wide screen, light and dark, by keyboard: nothing is cut and everything is reached."""

import json

import pytest
import torch

from tair_debug import ask, summary_forms
from tair_debug.fx_summary import TargetRow
from tair_debug.graph_page import to_html

pytestmark = pytest.mark.slow
LONG = "torch_npu.npu_grouped_matmul_finalize_routing.default"
EMPTY = "<!DOCTYPE html><html><body style='margin:0'></body></html>"
# the page in a frame of its own, as wide as a screen, and what is seen of it
FRAME = """
const out = [], frame = document.createElement("iframe");
frame.style = "width: %dpx; height: 800px; border: 0";
document.body.append(frame);
frame.contentDocument.open(); frame.contentDocument.write(%s); frame.contentDocument.close();
const inner = frame.contentDocument, wide = inner.documentElement.clientWidth;
"""
LOOK = """
const name = e => e.id || e.textContent || e.tagName;
const seen = [...inner.querySelectorAll("button, input, select")].filter(e => e.getClientRects().length);
const box = e => e.getBoundingClientRect();
out.push({
  wide, controls: seen.length, scrolls: inner.documentElement.scrollWidth > wide + 1,
  outside: seen.filter(e => box(e).left < 0 || box(e).right > wide + 1).map(name),
  clipped: seen.filter(e => e.tagName === "BUTTON" && e.scrollWidth > e.clientWidth + 1).map(name),
  small: seen.filter(e => wide < 760 && box(e).height < 24).map(name),
});
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@pytest.fixture(scope="module")
def pages():
    torch._dynamo.reset()
    ones, others = (ask.view(Net(), torch.randn(2, 4)) for _ in range(2))
    two = ask.beside_of(ones, others, ("one", "two"))
    rows = [TargetRow(LONG, "npu", calls=2, good=1), TargetRow("aten.add.Tensor", "aten", calls=1, good=1)]
    for row in rows:
        row.inputs["(float32(8, 128, 4096), bfloat16(4096, 11008), None, 0.125)"] += 1
        row.reasons["no converter, no decomposition"] += 1
        row.sources["/home/somebody/models/decoder/attention.py:127 in forward"] += 1
    return {
        "graph": to_html(ones.graphs[0], "a graph with a name_of_one_word_that_goes_on_and_on_and_on_and_on"),
        "summary": summary_forms.to_html(rows, "model"),
        "beside": two.html(two.matches[0]),
    }


def frame(page, width):
    return FRAME % (width, json.dumps(page).replace("</", "<\\/"))


@pytest.mark.parametrize("name", ["graph", "summary", "beside"])
@pytest.mark.parametrize("width", [390, 1600])
def test_a_page_fits(driven, pages, name, width):
    (seen,) = driven(EMPTY, frame(pages[name], width) + LOOK, "en")
    assert seen.pop("wide") == pytest.approx(width, abs=20)  # less a scroll bar
    assert seen.pop("controls") > 2
    assert seen == {"scrolls": False, "outside": [], "clipped": [], "small": []}


def test_keys(driven, pages):
    """/ searches, Enter goes to a hit, Shift and arrows follow edges, Escape lets go; each control can be reached."""
    script = """
const Key = inner.defaultView.KeyboardEvent;
const press = (to, key, more = {}) => to.dispatchEvent(new Key("keydown", {key, bubbles: true, ...more}));
const box = inner.getElementById("search"), canvas = inner.getElementById("view");
const heading = () => inner.querySelector("aside h2")?.textContent ?? null;
press(inner.body, "/"); out.push(inner.activeElement === box);
box.value = "relu_3"; box.oninput(); press(box, "Enter"); out.push(heading());
canvas.focus();
press(canvas, "ArrowUp", {shiftKey: true}); out.push(heading());
press(canvas, "ArrowDown", {shiftKey: true}); out.push(heading());
press(canvas, "Escape"); out.push(heading());
out.push([...inner.querySelectorAll("button, input, select, canvas#view, a")].filter(e => e.tabIndex < 0).length);
"""
    found, hit, above, below, gone, unreached = driven(EMPTY, frame(pages["graph"], 1600) + script, "en")
    assert found
    assert hit.lower() == "relu_3"
    assert above.startswith(("MatMul", "BiasAdd", "Add"))
    assert below == hit
    assert gone is None
    assert unreached == 0
