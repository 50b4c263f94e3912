"""The machine and the process: cores, memory, scratch space, signals, and threads that take turns."""
