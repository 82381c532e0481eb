/* One unit of compilation of two files: the headers take longer to read than the files to compile. */
#include "device.cc"
#include "module.cc"
