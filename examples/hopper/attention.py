"""Attention for Hopper, causal or not: TMA copies tiles, `wgmma` multiplies them, and the softmax stays in registers.

A group of 128 threads has 64 rows. It computes the softmax of a tile while it multiplies the values of the one before.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

import jitload

SOURCE = r"""
#include <cuda.h>
#include <cuda_bf16.h>
#define MAP const __grid_constant__ CUtensorMap

constexpr int ROWS = 128, DIM = 128, TILES = 6;  // a tile has ROWS by DIM elements, in two halves of 64 columns
constexpr float SCALE = 0.12751743f;  // log2(e) / sqrt(DIM)
struct alignas(1024) Tile { __nv_bfloat16 half[2][ROWS * DIM / 2]; };
using Barrier = unsigned long long;

__device__ unsigned shared(const void* p) { return __cvta_generic_to_shared(p); }
__device__ float exp2_of(float x) { asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
__device__ void arrive(Barrier& b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared(&b)) : "memory"); }

__device__ void wait(Barrier& barrier, int parity) {
    for (int done = 0; !done;)
        asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.s32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(shared(&barrier)), "r"(parity) : "memory");
}

__device__ void copy_tile(Tile& to, const CUtensorMap& map, int row, int head, Barrier& b) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared(&b)), "n"(sizeof(Tile)) : "memory");
    for (int i = 0; i < 2; ++i)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared(to.half[i])), "l"(&map), "r"(i * 64), "r"(row),
                     "r"(head), "r"(shared(&b)) : "memory");
}

// Describe rows of 128 bytes, swizzled in groups of eight. For values, the other 64 columns are half a tile away.
__device__ unsigned long long describe(const __nv_bfloat16* rows) {
    return ((shared(rows) & 0x3FFFFull) >> 4) | (sizeof(Tile) / 32 << 16) | (64ull << 32) | (1ull << 62);
}

#define PRODUCT "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SUMS SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)

// d = 64 rows of queries times 128 rows of keys.
__device__ void multiply_keys(float (&d)[64], const Tile& queries, const Tile& keys, int group) {
    for (int i = 0; i < DIM; i += 16)
        asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" PRODUCT ", %64, %65, p, 1, 1, 0, 0;}"
                     : SUMS : "l"(describe(queries.half[i / 64] + group * 64 * 64 + i % 64)),
                       "l"(describe(keys.half[i / 64] + i % 64)), "r"(i));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// d = 64 rows of probabilities, in registers, times 128 rows of values, added to d if `add` is not 0.
__device__ void multiply_values(float (&d)[64], const unsigned (&p)[32], const Tile& values, int add) {
    for (int i = 0; i < 32; i += 4)
        asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" PRODUCT ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
                     : SUMS : "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3]),
                       "l"(describe(values.half[0] + i * 4 * 64)), "r"(add + i));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most PENDING groups of multiplications run. The compiler uses d afterwards, and computes `sum` before.
template <int PENDING>
__device__ void wait_for(float (&d)[64], float (&sum)[2]) {
    asm volatile("wgmma.wait_group.sync.aligned %66;" : SUMS, "+f"(sum[0]), "+f"(sum[1]) : "n"(PENDING) : "memory");
}

// out = softmax(q @ k.T / sqrt(DIM)) @ v for each head. If CAUSAL, a row has the keys up to its own position.
template <bool CAUSAL>
__global__ void __launch_bounds__(384) attention(MAP q_map, MAP k_map, MAP v_map, __nv_bfloat162* out, int size) {
    extern __shared__ unsigned char memory[];
    Tile* tiles = reinterpret_cast<Tile*>((reinterpret_cast<unsigned long long>(memory) + 1023) & ~1023ull);
    __shared__ Barrier full[TILES + 1], empty[TILES + 1];  // the last ones are those of the queries
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, head = blockIdx.y;
    const int row = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * ROWS;
    const int steps = ((CAUSAL ? min(size, row + ROWS) : size) + ROWS - 1) / ROWS;
    if (threadIdx.x == 0) {
        for (int i = 0; i <= TILES; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;\nmbarrier.init.shared.b64 [%1], 2;"
                         ::"r"(shared(&full[i])), "r"(shared(&empty[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (thread > 0) return;
        copy_tile(tiles[TILES], q_map, row, head, full[TILES]);
        for (int turn = 0; turn < 2 * steps; ++turn) {  // keys and values in turns
            const int i = turn % TILES;
            if (turn >= TILES) wait(empty[i], (turn / TILES - 1) & 1);
            copy_tile(tiles[i], turn % 2 ? v_map : k_map, turn / 2 * ROWS, head, full[i]);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    // A thread has two neighbours in each of two rows, for each eight columns.
    const int first = row + group * 64 + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    float s[64], o[64] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, factor[2];
    unsigned p[32];
    wait(full[TILES], 0);
    wait(full[0], 0);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply_keys(s, tiles[TILES], tiles[0], group);
    wait_for<0>(s, sum);
    if (thread == 0) arrive(empty[0]);
    for (int step = 0; step < steps; ++step) {
        const bool is_last = step + 1 == steps;
        const int value = 2 * step + 1, key = 2 * step + 2;  // the next turns
        for (int i = 0; i < 64 && is_last; ++i) {
            const int limit = CAUSAL ? min(first + i / 2 % 2 * 8, size - 1) : size - 1;
            if (step * ROWS + column + i / 4 * 8 + i % 2 > limit) s[i] = -INFINITY;
        }
        for (int half = 0; half < 2; ++half) {
            float most = top[half];
            for (int i = half * 2; i < 64; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            factor[half] = exp2_of((top[half] - most) * SCALE);
            top[half] = most;
            sum[half] *= factor[half];
            for (int i = half * 2; i < 64; i += i % 2 ? 3 : 1) {
                s[i] = exp2_of(s[i] * SCALE - most * SCALE);
                sum[half] += s[i];
            }
        }
        if (!is_last) wait(full[key % TILES], key / TILES & 1);
        wait_for<0>(o, sum);  // for the values of the last step
        if (step > 0 && thread == 0) arrive(empty[(value - 2) % TILES]);
        for (int i = 0; i < 64; ++i) o[i] *= factor[i / 2 % 2];
        for (int i = 0; i < 64; i += 2) (__nv_bfloat162&)p[i / 2] = __floats2bfloat162_rn(s[i], s[i + 1]);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        if (!is_last) multiply_keys(s, tiles[TILES], tiles[key % TILES], group);
        wait(full[value % TILES], value / TILES & 1);
        multiply_values(o, p, tiles[value % TILES], step);
        wait_for<1>(s, sum);
        if (!is_last && thread == 0) arrive(empty[key % TILES]);
    }
    wait_for<0>(o, sum);
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
        sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
        const int r = first + half * 8;
        const float inverse = 1 / sum[half];
        __nv_bfloat162* to = out + (((size_t)head * size + r) * DIM + column) / 2;
        for (int i = half * 2; i < 64 && r < size; i += 4) {
            to[i / 4 * 4] = __floats2bfloat162_rn(o[i] * inverse, o[i + 1] * inverse);
        }
    }
}"""

FUNCTIONS = {
    name: jitload.Launch(
        kernel=f"attention<{is_causal}>",
        grid=("ceil_div(size, 128)", "q.shape[0]"),
        block=384,
        shared_bytes=7 * 128 * 128 * 2 + 1024,
        args={"size": "q.shape[1]"},
        requires=("q.shape == k.shape", "q.shape == v.shape", "q.shape[2] == 128", "out.numel() == q.numel()"),
        tma={f"{x}_map": jitload.Tma(x, box=(1, 128, 64), dtype="bfloat16", swizzle="128B") for x in "qkv"},
    )
    for name, is_causal in (("attention", "false"), ("causal_attention", "true"))
}


def check(mod: jitload.Module, name: str, size: int) -> None:
    """Compare a function with torch's, its results and its time."""
    q, k, v, out = torch.randn(4, 64, size, 128, device="cuda", dtype=torch.bfloat16)
    is_causal = name == "causal_attention"
    functions = {
        "torch": lambda q, k, v, _: scaled_dot_product_attention(q[None], k[None], v[None], is_causal=is_causal)[0],
        name: mod[name],
    }
    flop = 4 * q.numel() * size // (2 if is_causal else 1)
    print(jitload.compare(functions, q, k, v, out, outputs=3, rtol=2e-2, atol=2e-2, flop=flop))
    print(f"{name}: equal to torch's result for {size} rows")


def main() -> None:
    mod = jitload.load_inline("attention", cuda_sources=SOURCE, functions=FUNCTIONS, arch="sm_90a")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print(f"{mod.attention}\nno Hopper GPU here: launching needs one")
        return
    for name in FUNCTIONS:
        for size in (1000, 4096):
            check(mod, name, size)


if __name__ == "__main__":
    main()
