"""A run from its plan to its end: what to write, under which lease, in which graph, with which result."""
