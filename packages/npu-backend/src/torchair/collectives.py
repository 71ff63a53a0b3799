"""Collectives in the graph."""

from __future__ import annotations


def patch_for_hcom() -> None:
    """Nothing: torch >= 2.6 traces collectives by itself. Kept because scripts for torch 2.1 call it."""
