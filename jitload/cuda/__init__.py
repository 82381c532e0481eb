"""Device code to a typed cubin: the runs of NVRTC, and the linkers for PTX, LTO-IR and fatbins."""
