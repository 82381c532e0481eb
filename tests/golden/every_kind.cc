// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

// The kernels, with their launch expressions:
//   every(const float* f, __half* h, __nv_bfloat16* b, const __nv_fp8_e4m3* e, unsigned int* u, bool* flags, void* any, const float4* v, float2* c, Params* p, bool flag, char i8, short i16, int i32, long long i64, unsigned int u32, unsigned long long u64, float f32, double f64, __half f16, Params by_value, Empty nothing)
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_vec_sm_90a,
    NULL,
};

JITLOAD_EXPORT(every, 0)
