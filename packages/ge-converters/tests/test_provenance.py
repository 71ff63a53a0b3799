"""User frames and module paths."""

import os

import pytest
import torch

from ge_converters.base.provenance import last_user_frame, readable_path

TORCH_FRAME = (
    f'  File "{os.path.dirname(torch.__file__)}/nn/modules/linear.py", line 134, in forward\n    return F.linear(x)'
)
USER_FRAME = '  File "/home/me/model.py", line 41, in forward\n    y = self.proj(x)'


def test_the_innermost_frame_outside_torch_is_the_user_s():
    assert last_user_frame(f"{USER_FRAME}\n{TORCH_FRAME}") == ("/home/me/model.py:41 in forward", "y = self.proj(x)")
    assert last_user_frame("") == ("", "")
    assert last_user_frame('  File "a.py", line 3, in f') == ("a.py:3 in f", "")


def test_torch_s_own_frame_is_better_than_none():
    assert "linear.py:134" in last_user_frame(TORCH_FRAME)[0]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("L['self']", ""),
        ("L['self'].proj", "proj"),
        ("L['self'].model.layers['0'].self_attn", "model.layers.0.self_attn"),
        ("L['self']._modules['m'].layers[3]", "m.layers.3"),
        ("L['fn'].proj", "proj"),  # a module that is compiled itself, not its forward
        ("L['model'].proj", "L.model.proj"),
    ],
)
def test_module_paths_read_like_attribute_access(raw, path):
    assert readable_path(raw) == path
