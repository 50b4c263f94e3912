"""User functions: create, write, update, compact, verify and repair arrays, whole or in parts."""
