"""What the tests share: a stub CUDA driver, and arrays that claim to lie on a GPU."""
