"""Measurements as ratios against a peer in one run."""
