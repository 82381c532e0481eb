#error "<torch/types.h> is for host code, and this source is compiled for the device alone: keep the kernels, leave out the bindings"
