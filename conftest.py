"""Makes the root importable, so that tests can use `tools.models`."""
