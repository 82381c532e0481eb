"""A matrix product of bfloat16 for Hopper: TMA copies tiles to shared memory, and `wgmma` multiplies them there.

`c = a @ b.T`, with a ring of tiles: one warp asks for tiles, and two groups of 128 threads multiply.
"""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
#include <cuda.h>
#include <cuda_bf16.h>

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 4;
constexpr int TILE = BM * BK;  // elements of a tile of a, and of b, which has as many

struct Stage {
    alignas(1024) __nv_bfloat16 a[TILE];
    alignas(1024) __nv_bfloat16 b[TILE];
};

__device__ unsigned shared(const void* p) { return __cvta_generic_to_shared(p); }

__device__ void wait(const unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(shared(barrier)), "r"(parity) : "memory");
}

__device__ void copy_tile(void* tile, const CUtensorMap& map, int column, int row, unsigned long long* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(shared(tile)), "l"(&map), "r"(column), "r"(row), "r"(shared(barrier)) : "memory");
}

// Describe rows of 128 bytes with the swizzle of 128 bytes. Groups of eight rows are 1024 bytes apart.
__device__ unsigned long long describe(const __nv_bfloat16* tile) {
    return ((shared(tile) & 0x3FFFFull) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// sums += 64 rows of a times 128 rows of b, over 16 columns.
__device__ void multiply(float (&d)[64], unsigned long long a, unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "l"(a), "l"(b));
}

// c = a @ b.T for a of (m, k) and b of (n, k). Rows and columns beyond m, n and k are zeros in the tiles.
__global__ void __launch_bounds__(384) gemm(const __grid_constant__ CUtensorMap a_map,
                                            const __grid_constant__ CUtensorMap b_map, __nv_bfloat162* c, int m, int n,
                                            int k) {
    extern __shared__ unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>((reinterpret_cast<unsigned long long>(memory) + 1023) & ~1023ull);
    __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128, row = blockIdx.y * BM, column = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(&full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(shared(&empty[i])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 256) return;
        for (int step = 0; step < steps; ++step) {
            const int i = step % STAGES;
            if (step >= STAGES) wait(&empty[i], (step / STAGES - 1) & 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                         ::"r"(shared(&full[i])), "r"((unsigned)(2 * TILE * sizeof(__nv_bfloat16))) : "memory");
            copy_tile(stages[i].a, a_map, step * BK, row, &full[i]);
            copy_tile(stages[i].b, b_map, step * BK, column, &full[i]);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float sums[64] = {};
    for (int step = 0; step < steps; ++step) {
        const int i = step % STAGES;
        wait(&full[i], step / STAGES & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int part = 0; part < BK; part += 16) {
            multiply(sums, describe(stages[i].a + group * 64 * BK + part), describe(stages[i].b + part));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (threadIdx.x % 128 == 0) {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(&empty[i])) : "memory");
        }
    }
    // A thread has two neighbours in each of two rows, for each eight columns.
    const int lane = threadIdx.x % 32, first = row + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int r = first + (i / 2 % 2) * 8, s = column + i / 4 * 8 + lane % 4 * 2;
        if (r < m && s < n) {
            c[((size_t)r * n + s) / 2] = __floats2bfloat162_rn(sums[i], sums[i + 1]);
        }
    }
}"""

BOX = {"box": (128, 64), "dtype": "bfloat16", "swizzle": "128B"}
LAUNCH = jitload.Launch(
    grid=("ceil_div(n, 128)", "ceil_div(m, 128)"),
    block=384,
    shared_bytes=4 * 2 * 128 * 64 * 2 + 1024,
    args={"m": "a.shape[0]", "n": "b.shape[0]", "k": "a.shape[1]"},
    requires=("a.shape[1] == b.shape[1]", "c.numel() == m * n", "n % 8 == 0", "k % 8 == 0"),
    tma={"a_map": jitload.Tma("a", **BOX), "b_map": jitload.Tma("b", **BOX)},
)


def main() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print(jitload.compile_cubin(SOURCE, name="gemm", arch="sm_90a").kernels[0])
        print("no Hopper GPU here: launching needs one")
        return
    mod = jitload.load_inline("gemm", cuda_sources=SOURCE, functions={"gemm": LAUNCH}, arch="sm_90a")
    for m, n, k in ((4096, 4096, 4096), (1000, 520, 712)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        mod.gemm(a, b, c)
        torch.testing.assert_close(c, a @ b.T, rtol=2e-2, atol=2e-2)
        print(f"gemm: equal to torch's result on ({m}, {k}) @ ({k}, {n})")
        if m == 4096:
            functions = {"torch": lambda a, b, c: torch.matmul(a, b.T, out=c), "gemm": mod.gemm}
            print(jitload.compare(functions, a, b, c, outputs=2, rtol=2e-2, atol=2e-2, flop=2 * m * n * k))


if __name__ == "__main__":
    main()
