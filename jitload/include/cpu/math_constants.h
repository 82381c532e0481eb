/* NVIDIA's header. */
#if !__has_include_next(<math_constants.h>)
#error "math_constants.h is NVIDIA's: pip install 'jitload[cu13]' brings it ('jitload[cu12]' for CUDA 12)"
#endif
#include_next <math_constants.h>
