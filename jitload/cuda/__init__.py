"""Compiles device code to typed cubins: runs NVRTC, and links PTX, LTO-IR and fatbins."""
