"""Modules under the same paths as in tvm-ffi, so that only the first part of an import or command changes."""
