// Stands in where no CUDA header is installed: what device code needs of
// <vector_functions.h> is built into NVRTC.
