"""Whether the inputs of a run are like those of an earlier one, asked in one call instead of several a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ge_runtime.cpu.torch_compat import tensor_guards

_TIMES: Final = 8  # kinds of inputs after which a caller is taken for one whose inputs always differ


class KnownInputs:
    """Remembers types, sizes and dispatch of inputs that were accepted; a yes is certain, a no only asks for a look.

    torch's own guard on tensors does the comparison. It is stricter than an engine has to be (it tells apart whether
    gradients are wanted, and inference mode), so that a no is not a refusal; and it is left alone after a few different
    kinds of inputs.

    Args:
        shapes: Of each input, None if its rank may differ; sizes that are no numbers from 0 on may differ too.
        strides: Likewise; without them all may differ.
    """

    def __init__(
        self, shapes: Sequence[Sequence[Any] | None], strides: Sequence[Sequence[int | None]] | None = None
    ) -> None:
        self._sizes = [[d if type(d) is int and d >= 0 else None for d in s or ()] for s in shapes]
        self._strides = [[None] * len(s) for s in self._sizes] if strides is None else list(map(list, strides))
        self._left = 0 if None in shapes or not shapes or tensor_guards() is None else _TIMES
        self._check: Any = None

    def fits(self, inputs: list[Any]) -> bool:
        """Whether all of ``inputs`` are like those learned last."""
        check = self._check
        return check is not None and len(inputs) == len(self._sizes) and check(*inputs)

    def learn(self, inputs: Sequence[Any]) -> None:
        """Take inputs that were accepted, strided tensors on the CPU, as the measure of later ones."""
        if self._left <= 0 or len(set(map(id, inputs))) < len(inputs):  # a tensor given twice is always a no
            return
        self._left -= 1
        try:
            guard = tensor_guards()(*inputs, dynamic_dims_sizes=self._sizes, dynamic_dims_strides=self._strides)
        except (TypeError, RuntimeError):  # a torch whose guard takes something else
            self._left, self._check = 0, None
            return
        self._check = guard.check
