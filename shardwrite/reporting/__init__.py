"""Reports of runs: from journals to numbers, advice, text and pictures."""
