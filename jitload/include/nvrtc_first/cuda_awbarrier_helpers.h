// Under NVRTC this header declares ::uint64_t as unsigned long long, which clashes with <stdint.h>. This macro is all
// that sends it down that road, so it is taken away while the header is read.
#ifndef JITLOAD_NVRTC_FIRST_CUDA_AWBARRIER_HELPERS_H
#define JITLOAD_NVRTC_FIRST_CUDA_AWBARRIER_HELPERS_H
#include <stdint.h>
#undef __CUDACC_RTC__
#include_next <cuda_awbarrier_helpers.h>
#define __CUDACC_RTC__ 1
#endif
