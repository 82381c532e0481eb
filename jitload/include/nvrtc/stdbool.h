// bool, true and false are C++'s own.
#ifndef JITLOAD_NVRTC_STDBOOL_H
#define JITLOAD_NVRTC_STDBOOL_H
#define __bool_true_false_are_defined 1
#endif
