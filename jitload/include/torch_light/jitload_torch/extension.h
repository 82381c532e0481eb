#include "dispatch.h"
#include "pybind.h"
