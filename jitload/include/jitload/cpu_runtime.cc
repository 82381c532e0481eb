/* The translation unit that runs kernels on the CPU: for each block these files call each other's functions. */
#include "cpu_fibers.cc"
#include "cpu.cc"
