#include "jitload_torch/parallel.h"
