#include "all.h"
#include "pybind.h"
