"""Fixtures: a clean dynamo, a working directory of the test's own, and a small model."""

import html
import json
import re
import shutil
import subprocess

import pytest
import torch

import torchair

# an op that nobody converts, whatever the converters learn
_library = torch.library.Library("tair_tests", "FRAGMENT")
_library.define("odd(Tensor x) -> Tensor")
_library.impl("odd", lambda x: x + 1, "CompositeExplicitAutograd")
torch.library.register_fake("tair_tests::odd", torch.empty_like, lib=_library)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    yield
    torch._dynamo.reset()


class Model(torch.nn.Module):
    """Norm, sums, a function with two results."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x, y):
        c = self.norm(x) + y + 1
        d = c - x
        return torch.topk(d, 2)[0], d


@pytest.fixture
def model():
    return Model().eval()


@pytest.fixture
def inputs():
    return torch.randn(4, 8), torch.randn(4, 8)


@pytest.fixture
def compiled(model):
    """``compiled(config)``: the model through our backend."""

    def make(config, module=None, **options):
        backend = torchair.get_npu_backend(compiler_config=config)
        return torch.compile(module or model, backend=backend, **{"dynamic": False, **options})

    return make


@pytest.fixture
def config():
    return torchair.CompilerConfig()


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def driven(tmp_path):
    """``driven(text, script, language)``: what a script in a page pushes on ``out``, in a headless browser."""
    if BROWSER is None:
        pytest.skip("opens pages in a headless chromium")

    def drive(text, script, language):
        tail = 'const done = document.createElement("pre"); done.id = "seen"; done.textContent = JSON.stringify(out);'
        page = tmp_path / "page.html"
        inside = f"<script>{script}{tail} document.body.append(done);</script></body>"
        page.write_text(text.replace("</body>", inside), encoding="utf-8")
        command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        command += [f"--accept-lang={language}", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=180).stdout
        (seen,) = re.findall(r'<pre id="seen">(.*?)</pre>', shown)
        return json.loads(html.unescape(seen))

    return drive
