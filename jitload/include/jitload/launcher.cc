/* The C++ launcher as an object file, for wrappers compiled with JITLOAD_LAUNCHER_LINKED. */
#ifndef JITLOAD_LAUNCHER_LINKED
#define JITLOAD_LAUNCHER_LINKED
#endif
#include "launcher.h"

#include "launcher_launch.h"
