// Stands in where no CUDA header is installed: what device code needs of
// <texture_types.h> is built into NVRTC.
