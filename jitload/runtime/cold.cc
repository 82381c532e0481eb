/* The parts of the runtime off the fast path, as one translation unit: reading the headers takes longer than compiling. */
#include "arguments.cc"
#include "launch_errors.cc"
#include "cpu_launch.cc"
