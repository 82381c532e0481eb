// Exports a function to Python through tvm-ffi's C calling convention. tvm-ffi's own headers take seconds to compile.
#pragma once
#include <stdint.h>

struct Any {
  int32_t type;
  uint32_t zero;
  int64_t value;
};

// `long name(float* x, int n)` is called with an address and a number, and returns 0 or an error of CUDA.
#define EXPORT(name)                                                                                       \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const Any* arguments, int32_t, \
                                                                         Any* result) {                    \
    *result = {1, 0, name(reinterpret_cast<float*>(arguments[0].value), int(arguments[1].value))};         \
    return 0;                                                                                              \
  }
#define TRY(call) \
  if (cudaError_t error = (call)) return error
