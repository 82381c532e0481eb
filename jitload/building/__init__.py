"""Builds libraries: runs ninja, builds the runtime library that is linked into each one, and writes output files."""
