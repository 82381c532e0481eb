// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/record.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

// The kernels, with their launch expressions:
//   ns::matmul<float, 4>(const float* a, float* b, int rows, int columns)
//       columns = a.size(1)
//       rows = a.numel() // columns
//       grid[0] = ceil_div(columns, 32)
//       grid[1] = ceil_div(a.shape[0], 32) if rows > 0 else 0
//       block[0] = 32
//       block[1] = min(rows, 8)
//       shared_bytes = 4 * rows * (columns + 1)
//   add(const float* x, float* y, int n)
//       n = x.numel()
//       grid = next_power_of_2(n)
//       block = 256
JITLOAD_EMBED_RECORD("kernels.record");

// What the record needs of this library.
const void* const jitload_library_addresses[] = {
    __tvm_ffi__cubin_vec_sm_90a,
    NULL,
};

JITLOAD_EXPORT(matmul, 0)
JITLOAD_EXPORT(add, 1)
