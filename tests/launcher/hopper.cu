// What the GPU tests of the launcher run. Each kernel takes a tensor and a number.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ unsigned block_number() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

// Each block writes the number that its neighbour in the cluster, along an axis, has in its shared memory.
extern "C" __global__ void ask_neighbour(int* out, long long axis) {
  __shared__ int mine;
  cg::cluster_group cluster = cg::this_cluster();
  const dim3 at = cluster.block_index(), size = cluster.dim_blocks();
  unsigned where[3] = {at.x, at.y, at.z}, extent[3] = {size.x, size.y, size.z};
  if (threadIdx.x == 0) mine = block_number();
  cluster.sync();
  where[axis] = (where[axis] + 1) % extent[axis];
  const unsigned rank = where[0] + extent[0] * (where[1] + extent[1] * where[2]);
  if (threadIdx.x == 0) out[block_number()] = *cluster.map_shared_rank(&mine, rank);
  cluster.sync();
}

// The same with a cluster over the portable size that the kernel itself declares.
extern "C" __global__ void __cluster_dims__(16, 1, 1) declared_cluster(int* out, long long unused) {
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) out[block_number()] = cluster.num_blocks();
}

// A pair: the first lets the second start, works on for so many nanoseconds, and notes when it ended.
extern "C" __global__ void begin_early(unsigned long long* times, long long nanoseconds) {
  asm volatile("griddepcontrol.launch_dependents;");
  const unsigned long long start = now();
  while (now() - start < nanoseconds) {
  }
  times[0] = now();
}

// The second notes when it began, when the first had ended, and what it then saw of the first's work.
extern "C" __global__ void follow(unsigned long long* times, long long unused) {
  times[1] = now();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  times[2] = now();
  times[3] = *(volatile unsigned long long*)times;
}

// out[0] is the sum over all blocks; out[1 + block] is that sum as the block sees it after the grid's barrier.
extern "C" __global__ void meet(int* out, long long unused) {
  if (threadIdx.x == 0) atomicAdd(out, (int)blockIdx.x);
  cg::this_grid().sync();
  if (threadIdx.x == 0) out[1 + blockIdx.x] = *(volatile int*)out;
}

// Reverses n floats by way of as much dynamic shared memory.
extern "C" __global__ void reverse(float* x, long long n) {
  extern __shared__ float tile[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = tile[n - 1 - i];
}

extern "C" __global__ void __launch_bounds__(64) add(float* x, long long number) {
  if (threadIdx.x == 0) x[blockIdx.x] += number;
}

// The multiprocessor that each block ran on; busy for a while, so that one cannot run them all.
extern "C" __global__ void where(int* out, long long nanoseconds) {
  unsigned place;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
  const unsigned long long start = now();
  while (now() - start < nanoseconds) {
  }
  if (threadIdx.x == 0) out[block_number()] = place;
}
