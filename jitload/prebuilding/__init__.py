"""Builds many libraries into the cache ahead of time: what `jitload.prebuild` and the command `jitload prebuild` do."""
