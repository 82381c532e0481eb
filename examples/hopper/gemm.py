"""A matrix product of bfloat16 for Hopper: TMA copies tiles to shared memory, and `wgmma` multiplies them there.

`c = a @ b.T`, with a ring of tiles: one thread of a block asks for tiles, and two groups of 128 threads multiply them.
The blocks stay for the whole product, so the next tiles arrive while a block writes its sums. With a cluster of two
blocks, each of them asks for a half of their common tile of b, and both get it.
"""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
#include <cuda.h>
#include <cuda_bf16.h>

constexpr int BM = 128, BN = 256, BK = 64;

struct alignas(1024) Stage { __nv_bfloat16 a[BM * BK], b[BN * BK]; };

__device__ unsigned shared(const void* p) { return __cvta_generic_to_shared(p); }

__device__ void init(const unsigned long long* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(arrivals) : "memory");
}

__device__ void wait(const unsigned long long* barrier, unsigned parity) {
    for (int done = 0; !done;)
        asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.s32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(shared(barrier)), "r"(parity) : "memory");
}

// Arrive at the barrier of a block of the cluster.
__device__ void arrive(const unsigned long long* barrier, unsigned block) {
    asm volatile("{.reg .u32 a;\nmapa.shared::cluster.u32 a, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [a];}"
                 ::"r"(shared(barrier)), "r"(block) : "memory");
}

// Copy 128 rows of 64 columns to this block, or to the same place in both blocks of a cluster.
template <int BLOCKS>
__device__ void copy_rows(void* to, const CUtensorMap& map, int column, int row, const unsigned long long* barrier) {
#define COPY "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    if constexpr (BLOCKS == 1) {
        asm volatile(COPY " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared(to)), "l"(&map), "r"(column), "r"(row),
                     "r"(shared(barrier)) : "memory");
    } else {
        asm volatile(COPY ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared(to)), "l"(&map),
                     "r"(column), "r"(row), "r"(shared(barrier)), "h"((unsigned short)3) : "memory");
    }
}

// Describe rows of 128 bytes with the swizzle of 128 bytes. Groups of eight rows are 1024 bytes apart.
__device__ unsigned long long describe(const __nv_bfloat16* tile) {
    return ((shared(tile) & 0x3FFFFull) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SUMS SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)

// d = 64 rows of a times 256 rows of b over 16 columns, added to d if `add` is not 0.
__device__ void multiply(float (&d)[128], unsigned long long a, unsigned long long b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
        "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
        "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "
        "%124, %125, %126, %127}, %128, %129, p, 1, 1, 0, 0;\n}"
        : SUMS : "l"(a), "l"(b), "r"(add));
}

// Wait until at most PENDING groups of multiplications run. The compiler must not read the sums before.
template <int PENDING>
__device__ void wait_for(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;" : SUMS : "n"(PENDING) : "memory");
}

__device__ void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Return row and column of a tile. The tiles go through bands of columns, `band` tiles wide, so that blocks that run
// together share rows and columns in the L2 cache.
template <int CLUSTER>
__device__ int2 origin(int tile, int high, int wide, int band) {
    const int left = tile / (band * high) * band, width = min(band, wide - left), place = tile % (band * high);
    return {(place / width * CLUSTER + (int)blockIdx.x % CLUSTER) * BM, (left + place % width) * BN};
}

// c = a @ b.T for a of (m, k) and b of (n, k). Rows and columns beyond m, n and k are zeros in the tiles.
template <int STAGES, int CLUSTER>
__global__ void __launch_bounds__(384) gemm(const __grid_constant__ CUtensorMap a_map,
                                            const __grid_constant__ CUtensorMap b_map, __nv_bfloat162* c, int m, int n,
                                            int k, int band) {
    extern __shared__ unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>((reinterpret_cast<unsigned long long>(memory) + 1023) & ~1023ull);
    __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, steps = (k + BK - 1) / BK;
    const int high = (m + BM * CLUSTER - 1) / (BM * CLUSTER), wide = (n + BN - 1) / BN, tiles = high * wide;
    const int start = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init(&full[i], 1);
            init(&empty[i], 2 * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    synchronize_cluster();
    unsigned turn = 0;  // counts the stages that were filled
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (int tile = start; tile < tiles && thread == 0; tile += stride) {
            const auto [row, column] = origin<CLUSTER>(tile, high, wide, band);
            for (int step = 0; step < steps; ++step, ++turn) {
                const int i = turn % STAGES;
                if (turn >= STAGES) wait(&empty[i], (turn / STAGES - 1) & 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                             ::"r"(shared(&full[i])), "n"(sizeof(Stage)) : "memory");
                copy_rows<1>(stages[i].a, a_map, step * BK, row, &full[i]);
                for (int part = blockIdx.x % CLUSTER * 128; part < BN; part += CLUSTER * 128) {
                    copy_rows<CLUSTER>(stages[i].b + part * BK, b_map, step * BK, column + part, &full[i]);
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (int tile = start; tile < tiles; tile += stride) {
            float sums[128];
            for (int step = 0; step < steps; ++step, ++turn) {
                const Stage& stage = stages[turn % STAGES];
                wait(&full[turn % STAGES], turn / STAGES & 1);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int part = 0; part < BK; part += 16) {
                    multiply(sums, describe(stage.a + group * 64 * BK + part), describe(stage.b + part), step + part);
                }
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                wait_for<1>(sums);
                if (step > 0 && thread < CLUSTER) arrive(&empty[(turn - 1) % STAGES], thread);
            }
            wait_for<0>(sums);
            if (thread < CLUSTER) arrive(&empty[(turn - 1) % STAGES], thread);
            // A thread has two neighbours in each of two rows, for each eight columns.
            const auto [row, column] = origin<CLUSTER>(tile, high, wide, band);
            const int first = row + group * 64 + thread / 32 * 16 + thread % 32 / 4;
            __nv_bfloat162* out = c + ((size_t)first * n + column) / 2 + thread % 4;
            __nv_bfloat162* const rows[2] = {out, out + 4 * (size_t)n};
#pragma unroll
            for (int i = 0; i < 128; i += 2) {
                const int lower = i / 2 % 2, right = i / 4 * 8;
                if (first + 8 * lower < m && column + right < n) {
                    rows[lower][right / 2] = __floats2bfloat162_rn(sums[i], sums[i + 1]);
                }
            }
        }
    }
    synchronize_cluster();  // another block may still arrive at the barriers of this one
}"""

BOX = {"box": (128, 64), "dtype": "bfloat16", "swizzle": "128B"}
LAUNCH = jitload.Launch(
    kernel="gemm<{STAGES}, {CLUSTER}>",
    grid=132,  # the multiprocessors of an H100 or H200
    block=384,
    cluster="CLUSTER",
    shared_bytes="STAGES * (128 + 256) * 64 * 2 + 1024",
    args={"m": "a.shape[0]", "n": "b.shape[0]", "k": "a.shape[1]", "band": "BAND"},
    requires=("a.shape[1] == b.shape[1]", "c.numel() == m * n", "n % 8 == 0", "k % 8 == 0"),
    tma={"a_map": jitload.Tma("a", **BOX), "b_map": jitload.Tma("b", **BOX)},
    tune=jitload.Tune(STAGES=(4, 3), CLUSTER=(1, 2), BAND=(8, 4, 16), key=("m", "n", "k"), nearest="log2"),
)
FUNCTIONS = {"gemm": LAUNCH}


def main() -> None:
    mod = jitload.load_inline("gemm", cuda_sources=SOURCE, functions=FUNCTIONS, arch="sm_90a")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print(f"{mod.gemm}\nno Hopper GPU here: launching needs one")
        return
    for m, n, k in ((1000, 520, 712), (4096, 4096, 4096)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        mod.gemm(a, b, c)
        torch.testing.assert_close(c, a @ b.T, rtol=2e-2, atol=2e-2)
        print(f"gemm: equal to torch's result on ({m}, {k}) @ ({k}, {n})")
    functions = {"torch": lambda a, b, c: torch.matmul(a, b.T, out=c), "gemm": mod.gemm}
    options = {"outputs": 2, "rtol": 2e-2, "atol": 2e-2, "flop": 2 * m * n * k}
    found = mod.gemm.tune(a, b, c, reference=functions["torch"], **options)
    mod = jitload.load_inline("gemm", cuda_sources=SOURCE, functions=FUNCTIONS, arch="sm_90a", tuned=found)
    print(found, jitload.compare(functions | {"gemm": mod.gemm}, a, b, c, **options), sep="\n\n")


if __name__ == "__main__":
    main()
