"""What dynamo knows of a frame, on a torch of another version too."""

import math
from types import SimpleNamespace

from torch._dynamo import source as s

from ge_converters.base import torch_frames


def test_modules_are_found_where_dynamo_keeps_no_list_of_them():
    listed = SimpleNamespace(output=SimpleNamespace(import_sources={"__import_math": "math"}), f_globals={})
    assert torch_frames.imported_modules(listed) == {"__import_math": "math"}
    older = SimpleNamespace(output=SimpleNamespace(), f_globals={"__import_math": math, "other": 1})
    assert torch_frames.imported_modules(older) == {"__import_math": "math"}


def test_paths_lead_to_values_or_say_why_not():
    local = s.LocalSource("self", is_input=True)
    attribute = s.AttrSource(local, "weight")
    assert torch_frames.path_of(attribute, {}) == [["local", "self"], ["attr", "weight"]]
    assert torch_frames.path_of(s.GlobalSource("m"), {"m": "math"}) == [["module", "math"]]
    assert torch_frames.path_of(s.GetItemSource(attribute, 2), {})[-1] == ["item", 2]
    assert "its key is a float" in torch_frames.path_of(s.GetItemSource(attribute, 2.5), {})
    assert torch_frames.path_of(s.ConstantSource("c"), {}).startswith("input ")


def test_a_class_of_sources_that_an_older_torch_lacks_is_not_asked_for(monkeypatch):
    for name in ("SkipGuardSource", "GenericAttrSource", "DictSubclassGetItemSource"):
        monkeypatch.delattr(s, name, raising=False)
    attribute = s.AttrSource(s.LocalSource("self"), "weight")
    assert torch_frames.path_of(attribute, {}) == [["local", "self"], ["attr", "weight"]]
