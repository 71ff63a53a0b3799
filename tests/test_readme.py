"""README's example as it stands there. Needs nothing of the tree but that page, so it runs beside any torch."""

import re
from pathlib import Path

import torch

PAGE = next(p for folder in Path(__file__).resolve().parents if (p := folder / "README.md").is_file())


def test_the_example_gives_what_eager_gives():
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert example.startswith("import torch, torchair\n")
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), torch.randn(3, 8)
    names = {"model": model, "x": x}
    exec(compile(f"{example}result = model(x)\n", str(PAGE), "exec"), names)
    assert names["model"] is not model
    torch.testing.assert_close(names["result"], model(x))
