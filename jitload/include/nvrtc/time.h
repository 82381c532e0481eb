// clock_t and clock() are built into NVRTC. time_t is spelled as CCCL spells it, so that both fit into one source.
#ifndef JITLOAD_NVRTC_TIME_H
#define JITLOAD_NVRTC_TIME_H
#include "_jitload/config.h"

typedef long long int time_t;
#define CLOCKS_PER_SEC 1000000L

#endif
