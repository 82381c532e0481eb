#error "<pybind11/pybind11.h> is for host code, and this source is compiled for the device alone: keep the kernels, leave out the bindings"
