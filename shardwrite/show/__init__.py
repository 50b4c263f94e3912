"""What a person looks at: HTML, pictures of the shard grid, bars, and reports of runs."""
