// ops: typed functions around its kernels, from kernel0_sm_80.cubin, kernel0_sm_90a.cubin, kernel1_sm_90a.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(kernel0_sm_80);
JITLOAD_EMBED(kernel0_sm_80, "kernel0_sm_80.cubin");
TVM_FFI_EMBED_CUBIN(kernel0_sm_90a);
JITLOAD_EMBED(kernel0_sm_90a, "kernel0_sm_90a.cubin");
TVM_FFI_EMBED_CUBIN(kernel1_sm_90a);
JITLOAD_EMBED(kernel1_sm_90a, "kernel1_sm_90a.cubin");

// The kernels, with their launch expressions:
//   matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
//       block = 384
//       cluster[0] = 2
//       cluster[1] = 1
//       cluster[2] = 1
//   matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
//       block = 128
//   matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
//       block = 384
//       cluster[0] = 2
//       cluster[1] = 1
//       cluster[2] = 1
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_kernel0_sm_80,
    __tvm_ffi__cubin_kernel1_sm_90a,
    __tvm_ffi__cubin_kernel0_sm_90a,
    NULL,
};

JITLOAD_EXPORT(matmul, 0)
JITLOAD_EXPORT(matmul__fast, 1)
JITLOAD_EXPORT(matmul__one, 2)
