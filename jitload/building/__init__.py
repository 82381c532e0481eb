"""Builds libraries: their sources and commands, ninja, the runtime library that all share, and output files."""
