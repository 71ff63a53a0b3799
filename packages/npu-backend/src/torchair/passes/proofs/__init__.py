"""Evidence that a rewrite changes no numbers: what it replaced and what took its place, evaluated side by side."""

from torchair.passes.proofs.watch import RewriteWatch

__all__ = ["RewriteWatch"]
