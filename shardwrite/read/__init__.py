"""Arrays that exist: their values, their indexes, and how they compare with a source."""
