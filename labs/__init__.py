"""Measurements and experiments on what the packages do; nothing here ships, and nothing else needs it but tests."""
