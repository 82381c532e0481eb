"""Kernels with more shared memory than the default limit, and kernels that read through tensor maps."""

from string import Template

from jitload import Launch, Tma

SHARED = r"""
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[n - 1 - i];
}
"""
SHARED_FUNCTIONS = {"reverse": Launch(grid=1, block=1024, shared_bytes="4 * n", args={"n": "x.numel()"})}


_TILED = """
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     ::"r"(tile_at), "l"(&$map), "r"($column), "r"($row), "r"(barrier_at) : "memory");
"""
# The pixels are filters' corners, and the offsets say which element of the filters is fetched for each of them.
_IM2COL = """
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
                     ::"r"(tile_at), "l"(&map), "r"(0), "r"(column), "r"(row), "r"(image), "r"(barrier_at),
                     "h"((unsigned short)right), "h"((unsigned short)below) : "memory");
"""
# 256 elements, such as a 32 by 8 tile of a matrix, fetched by the tensor memory accelerator.
_FETCH_TILE = Template(r"""
    __shared__ alignas(128) float tile[8 * 32];
    __shared__ alignas(8) unsigned long long barrier;
    const unsigned tile_at = __cvta_generic_to_shared(tile), barrier_at = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(barrier_at), "r"((unsigned)sizeof tile) : "memory");
        $fetch
    }
    __syncthreads();
    unsigned is_done = 0;
    while (!is_done) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(is_done) : "r"(barrier_at) : "memory");
    }
    for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) $out[i] = tile[i];
""")


def fetch_tile(**names: str) -> str:
    """Return the body of a kernel that fetches the tile at `row` and `column` of what `map` describes, to `out`."""
    return _FETCH_TILE.substitute(names, fetch=Template(_TILED).substitute(names))


TENSOR_MAP = f"""
#include <cuda.h>
extern "C" __global__ void fetch_tile(const __grid_constant__ CUtensorMap map, float* out, int column, int row) {{
{fetch_tile(map="map", column="column", row="row", out="out")}
}}
extern "C" __global__ void fetch_pixels(const __grid_constant__ CUtensorMap map, float* out, int image, int row,
                                        int column, int below, int right) {{
{_FETCH_TILE.substitute(out="out", fetch=_IM2COL)}
}}
"""
_PIXELS = {"lower": (-1, 0), "upper": (-1, -1), "box": (16, 16)}  # for filters of 3 by 2, padded by 1 and 0
TENSOR_MAP_FUNCTIONS = {
    "fetch": Launch(
        grid=1, block=64, kernel="fetch_tile", tma={"map": Tma("matrix", box=(8, 32), dtype="float32", fill="nan")}
    ),
    "fetch_pixels": Launch(grid=1, block=64, tma={"map": Tma("images", dtype="float32", **_PIXELS)}),
}
