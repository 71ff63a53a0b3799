"""Pages on a telephone and on a wide screen, light and dark, by keyboard: nothing is cut and everything is reached."""

import html

import pytest
import torch

from tair_debug import ask, models, summary_forms
from tair_debug.fx_summary import TargetRow
from tair_debug.graph_page import to_html

pytestmark = pytest.mark.slow
LONG = "torch_npu.npu_grouped_matmul_finalize_routing.default"
# what a page is asked once it stands in a frame of so many pixels
LOOK = """
const out = [];
addEventListener("message", e => {}, false);
"""
_SEEN = """
(() => {
  const wide = document.documentElement.clientWidth, tall = document.documentElement.clientHeight;
  const shown = e => e.getClientRects().length > 0;
  const controls = [...document.querySelectorAll("header button, header input, header select, button, input")].filter(shown);
  const outside = controls.filter(e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > wide + 1; });
  const clipped = controls.filter(e => e.tagName === "BUTTON" && e.scrollWidth > e.clientWidth + 1);
  const small = controls.filter(e => { const r = e.getBoundingClientRect(); return wide < 760 && r.height < 24; });
  const text = getComputedStyle(document.body).color, back = getComputedStyle(document.body).backgroundColor;
  return {
    wide, scrolls: document.documentElement.scrollWidth > wide + 1, text, back,
    outside: outside.map(e => e.id || e.textContent), clipped: clipped.map(e => e.textContent),
    small: small.map(e => e.id || e.textContent),
  };
})()
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
    graphs = [ask.view(Net(), torch.randn(2, 4)).graphs[0] for _ in range(2)]
    two = ask.beside_of(*(ask.Page([g]) for g in graphs), ("one", "two")) if hasattr(ask, "Page") else None
    rows = [TargetRow(LONG, "npu", calls=2, good=1), TargetRow("aten.add.Tensor", "aten", calls=1, good=1)]
    for row in rows:
        row.inputs["(float32(8, 128, 4096), bfloat16(4096, 11008), None, 0.125)"] += 1
        row.reasons["no converter, no decomposition"] += 1
        row.sources["/home/somebody/models/decoder/attention.py:127 in forward"] += 1
    return {
        "graph": to_html(graphs[0], "a graph with a rather long name_of_one_word_that_goes_on_and_on"),
        "summary": summary_forms.to_html(rows, "model"),
        **({} if two is None else {"beside": two.html(two.matches[0])}),
    }


def framed(page, width, script):
    """The page in a frame of its own, as wide as a screen; ``script`` gives what it says."""
    inside = html.escape(page)
    return f"""<!DOCTYPE html><html><body style="margin:0">
<iframe id="frame" style="width:{width}px;height:800px;border:0" srcdoc="{inside}"></iframe></body></html>"""


@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("name", ["graph", "summary", "beside"])
def test_a_page_fits(driven, pages, name, width):
    script = f"""
      const out = [], frame = document.getElementById("frame");
      const look = () => out.push(frame.contentWindow.eval({_SEEN!r}));
    """
    (seen,) = driven(framed(pages[name], width, script), script + SETTLED, "en")
    assert seen["wide"] == pytest.approx(width, abs=20)  # less a scroll bar
    assert not seen["scrolls"]
    assert seen["outside"] == seen["clipped"] == seen["small"] == []


SETTLED = "look();"
