"""Work of the tasks: encode blocks, copy encoded chunks, assemble shards, and commit them."""
