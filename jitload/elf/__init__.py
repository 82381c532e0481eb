"""Read and write ELF: object files, shared libraries and cubins, and the fatbins that hold cubins."""
