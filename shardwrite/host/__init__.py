"""Machine and process: cores, memory, scratch directories, stopping, and turns of threads."""
