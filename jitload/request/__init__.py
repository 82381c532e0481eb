"""Checks the arguments of a public function such as `load_inline`, and turns them into one `Request`."""
