"""Makes the root importable, so that tests can use `tools.models`; and cleans up between modules.

What one test leaves in the process must not reach the next: all folders run in one.
"""

import sys

import pytest


@pytest.fixture(autouse=True, scope="module")
def _no_names_of_gone_operators():
    """Libraries that a test defined and destroyed leave their names behind, on which torch.export stumbles."""
    yield
    if "torch" not in sys.modules:
        return
    ops = sys.modules["torch"].ops
    for name in ops._dir:
        space = vars(ops).get(name)
        if isinstance(getattr(space, "_dir", None), list):
            space._dir[:] = [op for op in space._dir if op in vars(space)]
