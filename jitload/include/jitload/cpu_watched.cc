/* The translation unit that runs kernels with sanitize= and debug=. */
#define JITLOAD_CPU_WATCHES 1
#include "cpu_fibers.cc"
#include "cpu.cc"
#include "cpu_sanitize.cc"
