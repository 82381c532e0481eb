"""Tools that stand beside the road: what a build system of a user's own runs, as `python -m jitload.utils.…`."""
