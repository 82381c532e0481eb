"""Measures how long functions take on the device and on the host, and compares functions that compute the same."""
