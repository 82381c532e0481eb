/* One unit of compilation of four files: the headers take longer to read than the files to compile. */
#include "values.cc"
#include "explain.cc"
#include "refusal.cc"
#include "cpu_launch.cc"
