"""How calls of users come in, and how errors go out."""
