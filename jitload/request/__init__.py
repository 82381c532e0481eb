"""Arguments of a public call, checked and turned into one `Request`."""
