"""The kinds of source. Each is a module with `tools`, `key_parts` and `build`, as `Source` in `common` describes."""
