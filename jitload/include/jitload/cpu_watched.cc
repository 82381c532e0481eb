/* The unit of compilation for kernels that are watched: with sanitize= and with debug=. */
#define JITLOAD_CPU_WATCHES 1
#include "cpu_fibers.cc"
#include "cpu.cc"
#include "cpu_sanitize.cc"
