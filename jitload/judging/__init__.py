"""Judges generated kernels: runs code that may crash, hang or cheat in processes that may die, and says what it is."""
