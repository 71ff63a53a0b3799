"""FX graphs as the backend gets them, and the embedded engine to run what comes out."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering import lower
from ge_converters.report import smoke


@pytest.fixture
def aot():
    """``aot(fn, *args, dynamic=False)``: the inference graph of a function after dynamo and AOTAutograd."""

    def capture(fn, *args, dynamic=False, keep_mutations=False):
        found = []

        def keep(gm, _):
            found.append(gm)
            return make_boxed_func(gm.forward)

        def backend(gm, inputs):
            return aot_module_simplified(
                gm,
                inputs,
                fw_compiler=keep,
                decompositions=decomposition_table(),
                keep_inference_input_mutations=keep_mutations,
            )

        torch._dynamo.reset()
        with torch.no_grad():
            try:
                torch.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
            except NotImplementedError:  # the op has no CPU kernel; the graph is there
                pass
        (gm,) = found
        return gm

    return capture


@pytest.fixture(scope="session")
def engine():
    """The embedded engine."""
    return smoke.find_engine("cpu")


@pytest.fixture
def run(engine):
    """``run(lowered, fx_inputs)``: the FX outputs as the engine computes them; inputs in FX order, numbers included."""

    def execute(lowered, inputs):
        return smoke.execute(lowered, engine, inputs)

    return execute


@pytest.fixture
def lowered(aot):
    """``lowered(fn, *args)``: capture and lower."""

    def both(fn, *args, **options):
        return lower(aot(fn, *args, **options))

    return both
