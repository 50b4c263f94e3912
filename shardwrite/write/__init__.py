"""What tasks do: encode blocks, put shards together, and commit them."""
