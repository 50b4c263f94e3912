"""The tests. wkw installs a package of this name, which would be imported in its place."""
