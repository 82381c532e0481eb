#include "jitload_torch/extension.h"
