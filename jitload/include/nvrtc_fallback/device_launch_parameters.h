// Stands in where no CUDA header is installed: what device code needs of
// <device_launch_parameters.h> is built into NVRTC.
