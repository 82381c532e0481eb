#include "jitload_torch/all.h"
