"""Modules with the same paths as in tvm-ffi: imports and commands need only `jitload` in place of `tvm_ffi`."""
