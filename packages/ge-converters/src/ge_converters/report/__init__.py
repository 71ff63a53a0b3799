"""Reads everything and is read by nothing: coverage, and the proof of the declared forms."""
