"""The command `jitload`: checks an installation, builds libraries, shows what they hold, and manages the cache."""

from jitload.cli.main import main

__all__ = ["main"]
