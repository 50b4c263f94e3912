"""Work of the tasks: encode blocks, assemble shards, and commit them."""
