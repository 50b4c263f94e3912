"""The place of an array, what stands there, and whether an array may go there."""
