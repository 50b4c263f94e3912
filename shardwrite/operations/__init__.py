"""User functions: create, write, update, read, compact, verify and repair arrays."""
