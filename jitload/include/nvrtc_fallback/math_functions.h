// Stands in where no CUDA header is installed: what device code needs of
// <math_functions.h> is built into NVRTC.
