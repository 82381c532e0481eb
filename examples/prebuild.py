"""Build a family of kernels ahead of time, for several architectures, on all cores and without a GPU."""

import torch

import jitload

# One source for each length of a row, so that the compiler unrolls the loop.
SOURCE = """
extern "C" __global__ void sum_rows_{size}(const float* x, float* sums, int rows) {{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int column = 0; column < {size}; ++column) sum += x[row * {size} + column];
    sums[row] = sum;
}}"""
LAUNCH = jitload.Launch(grid="ceil_div(rows, 256)", block=256, args={"rows": "sums.numel()"})
SIZES = (1, 2, 3, 4)


def request(size: int) -> dict:
    """Return the keywords that `load_inline` takes, and `prebuild`, too."""
    name = f"sum_rows_{size}"
    return {"name": name, "cuda_sources": SOURCE.format(size=size), "functions": {name: LAUNCH}}


# On a cluster: executor=client.get_executor() of Dask, or MPIPoolExecutor() of mpi4py.
ARCHS = ["sm_80", "sm_90a", *(["native"] if torch.cuda.is_available() else [])]
done = jitload.prebuild([request(size) for size in SIZES], archs=ARCHS, progress=False)
done.check()  # raises if anything failed, with the first line of each error
print(done)

# A job that asks for the same later, with arch="native" on such a GPU, finds it and compiles nothing.
modules = [jitload.load_inline(**request(size), arch=ARCHS[-1]) for size in SIZES]
for size, mod in zip(SIZES, modules, strict=True):
    kernel = mod[f"sum_rows_{size}"].kernel
    print(f"{kernel}: {kernel.registers} registers")

if torch.cuda.is_available():
    for size, mod in zip(SIZES, modules, strict=True):
        x = torch.randn(1000, size, device="cuda")
        sums = torch.empty(1000, device="cuda")
        mod[f"sum_rows_{size}"](x, sums)
        torch.testing.assert_close(sums, x.sum(dim=1))
    print("sum_rows: equal to torch's results for rows of 1, 2, 3 and 4")
else:
    print("no GPU here: launching needs one")
