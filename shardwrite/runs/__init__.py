"""Runs from plan to receipt: checked arguments, jobs, sessions, task graphs and results."""
