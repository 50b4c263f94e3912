"""Machine and process: cores, memory, scratch directories, settings, stopping, and the log."""
