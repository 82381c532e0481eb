#include "dispatch.h"
#include "parallel.h"
