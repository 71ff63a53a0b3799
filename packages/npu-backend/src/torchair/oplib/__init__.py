"""Operators of our own and converters of users: what they are and what they become."""
