"""Numbers of modules as constants: an epsilon or a scale that dynamo made an input of the graph.

With ``dynamic=True`` dynamo takes every float that it meets as an input, so that a norm, an attention or a fused
operator whose attribute it is cannot be told. A float that belongs to a module, or that a global or captured variable
leads to, is nearly always the same in every call. It becomes a constant under a guard, once; if it changes after all,
dynamo calls it dynamic, and from then on it is the input that it was. Arguments of the function stay inputs from the
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ge_converters.base.torch_compat import (
    constants_of_this_graph,
    current_translation,
    float_inputs,
    retrace_with_constants,
)
from ge_converters.base.torch_frames import belongs_to_the_model
from torchair.config.log import logger


@contextmanager
def module_numbers_fixed(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Around the compilation of a graph: have dynamo trace it anew if it has floats of modules as inputs.

    Args:
        gm: The graph that dynamo is handing to its backend just now, or any other, which stays as it is.

    The block is not entered if there is something to fix: dynamo catches what is raised and starts over.
    """
    if current_translation() is None:
        yield
        return
    with constants_of_this_graph():
        numbers = [each for each in float_inputs(gm) if not each.changed and belongs_to_the_model(each.source)]
        if numbers:
            logger.debug("numbers that become constants under a guard: %s", ", ".join(each.name for each in numbers))
            retrace_with_constants(each.symbol for each in numbers)
        yield
