"""Decorators of the functions that users call."""
