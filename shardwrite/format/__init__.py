"""Where the bytes of an array lie: metadata, shard indexes, and the order and place of inner chunks."""
