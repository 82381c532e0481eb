"""C++ written by hand: its headers, its cubins, its build."""
