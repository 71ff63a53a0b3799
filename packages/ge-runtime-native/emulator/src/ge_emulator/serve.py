"""Kernels in a process of their own: the kernels' side, see ``ge_emulator.apart``."""

from __future__ import annotations

import os
import sys

from ge_emulator import groups, memory
from ge_emulator.apart import Parent, receive, send
from ge_emulator.verbs import answer


def main() -> None:
    """Answer the parent's requests until it closes the pipe."""
    asked, told = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print does not belong into the pipe
    memory.look_into(os.getppid())
    groups.reach_by(Parent(told, asked))
    while (request := receive(asked)) is not None:
        head, data = request
        value, reply, error = answer(head["verb"].encode(), data, head["words"])
        memory.write_back()
        send(told, {"value": value, "error": error}, reply)


if __name__ == "__main__":
    main()
