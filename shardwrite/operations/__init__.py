"""What users ask for: write, update, create, compact, repair, verify, in parts or in one go."""
