// <time.h>. clock_t and clock() are built into NVRTC. time_t is the type that CCCL uses, so that a source can include both.
#pragma once
#include "_jitload/config.h"

typedef long long int time_t;
#define CLOCKS_PER_SEC 1000000L
