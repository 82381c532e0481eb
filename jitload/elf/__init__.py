"""Read and write ELF: object files, shared libraries and cubins."""
