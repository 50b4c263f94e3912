"""Plans: how shapes and limits become tasks. Only integers, no I/O."""
