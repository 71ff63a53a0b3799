"""Compiled graphs that are kept: their files, their keys, the conditions they hold under."""
