/* One unit of compilation of two files, whose functions call each other on the way of every block. */
#include "cpu_fibers.cc"
#include "cpu.cc"
