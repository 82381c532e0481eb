// vec: typed functions around its kernels, from sm_80.cubin, sm_90a.cubin, sm_100f.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(vec_sm_80);
JITLOAD_EMBED(vec_sm_80, "sm_80.cubin");
TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");
TVM_FFI_EMBED_CUBIN(vec_sm_100f);
JITLOAD_EMBED(vec_sm_100f, "sm_100f.cubin");

// The kernels, with their launch expressions:
//   add(const float* x, float* y, int n)
//       grid = 4
//       block = 64
//       cluster[0] = 2
//       cluster[1] = 1
//   none()
//       grid = 1
//       block = 1
//       shared_bytes = 1024
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_vec_sm_80,
    __tvm_ffi__cubin_vec_sm_90a,
    __tvm_ffi__cubin_vec_sm_100f,
    NULL,
};

JITLOAD_EXPORT(add, 0)
JITLOAD_EXPORT(none, 1)
