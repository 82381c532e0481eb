"""Builds libraries: runs ninja, builds the runtime library that is linked into others, and writes output files."""
