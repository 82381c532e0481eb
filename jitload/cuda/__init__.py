"""NVRTC and the linkers: CUDA source, PTX and LTO-IR to machine code."""
