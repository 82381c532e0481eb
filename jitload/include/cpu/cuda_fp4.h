/* Includes NVIDIA's header after our headers, which have the types that it uses. */
#if !__has_include_next(<cuda_fp4.h>)
#error "cuda_fp4.h is NVIDIA's: pip install 'jitload[cu13]' brings it ('jitload[cu12]' for CUDA 12)"
#endif
#include <cuda_bf16.h>
#include_next <cuda_fp4.h>
