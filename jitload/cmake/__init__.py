"""The CMake package, and the commands that it runs as `python -m jitload.cmake.…`."""
