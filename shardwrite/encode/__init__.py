"""Pieces of a source become encoded inner chunks."""
