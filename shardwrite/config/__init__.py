"""Defaults that users can change: their names, types and values."""
