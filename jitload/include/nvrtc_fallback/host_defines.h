// Stands in where no CUDA header is installed: what device code needs of
// <host_defines.h> is built into NVRTC.
