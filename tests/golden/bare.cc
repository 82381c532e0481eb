// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

// The kernels, with their launch expressions:
//   add(const float* x, float* y, int n)
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_vec_sm_90a,
    NULL,
};

JITLOAD_EXPORT(add, 0)
