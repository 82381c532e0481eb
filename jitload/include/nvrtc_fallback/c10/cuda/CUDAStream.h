#error "<c10/cuda/CUDAStream.h> is for host code, and this source is compiled for the device alone: keep the kernels, leave out the bindings"
