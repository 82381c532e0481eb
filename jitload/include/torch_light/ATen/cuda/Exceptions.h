#include "jitload_torch/cuda.h"
