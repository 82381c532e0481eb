"""Runs a call of a typed function on copies, with checks of each access."""
