// ops: typed functions around its kernels, from kernel0_sm_90a.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(kernel0_sm_90a);
JITLOAD_EMBED(kernel0_sm_90a, "kernel0_sm_90a.cubin");

// The kernels, with their launch expressions:
//   softmax_kernel(*bf16 out, *bf16 x, None mask, i32 n)
//       grid[0] = ceil_div(n, BLOCK)
//       grid[1] = x.shape[0]
//       block = 256
//       shared_bytes = 65536
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_kernel0_sm_90a,
    NULL,
};

JITLOAD_EXPORT(softmax, 0)
