// Cooperative groups of one device: every type and member, in the forms in which kernels use them.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

// Writes a thread's numbers, one row for each.
struct Rows {
  int* next;
  int stride;
  __device__ Rows(int* out) : next(out + cg::this_grid().thread_rank()), stride(cg::this_grid().size()) {}
  __device__ void put(long long value) {
    *next = (int)value;
    next += stride;
  }
  template <class Group>
  __device__ void shape(const Group& group) {
    put(((group.meta_group_rank() * 200ll + group.meta_group_size()) * 200 + group.thread_rank()) * 200 + group.size());
  }
  __device__ void any_group(const cg::thread_group& group) {
    put(group.thread_rank() * 10000 + group.size());
  }
  __device__ void warp_argument(cg::thread_block_tile<32> warp) { shape(warp); }
  template <unsigned int Size, class Parent>
  __device__ void tile_argument(cg::thread_block_tile<Size, Parent> tile) { put(Size * 1000 + cg::thread_rank(tile)); }
};

extern "C" __global__ void group_shapes(int* out) {
  Rows rows(out);
  cg::thread_block block = cg::this_thread_block();
  cg::grid_group grid = cg::this_grid();
  dim3 a = block.group_index(), b = block.thread_index(), c = block.dim_threads(), d = block.group_dim();
  rows.put(block.thread_rank() * 1000 + block.size() + block.num_threads());
  rows.put(a.x * 100 + a.y * 10 + a.z);
  rows.put(b.x * 10000 + b.y * 100 + b.z);
  rows.put(c.x * 100 + c.y * 10 + c.z + d.x);
  rows.put(grid.thread_rank() * 10000 + grid.size() + grid.num_threads());
  rows.put(grid.block_rank() * 100 + grid.num_blocks() + 1000 * grid.is_valid());
  a = grid.block_index(), b = grid.thread_index(), c = grid.dim_threads(), d = grid.dim_blocks();
  rows.put(a.x * 100 + a.y * 10 + a.z);
  rows.put(b.x * 10000 + b.y * 100 + b.z);
  rows.put(c.x * 10000 + c.y * 100 + c.z);
  rows.put(d.x * 100 + d.y * 10 + d.z + grid.group_dim().x);
  auto typed = cg::tiled_partition<32>(block);
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  auto sixteen = cg::tiled_partition<16>(typed);
  cg::thread_block_tile<4> in_sixteen = cg::tiled_partition<4>(sixteen);
  cg::thread_block_tile<4> in_warp = cg::tiled_partition<4>(warp);
  cg::thread_block_tile<4> in_block = cg::tiled_partition<4>(block);
  cg::thread_block_tile<4, cg::thread_block> named = cg::tiled_partition<4, cg::thread_block>(block), other = named;
  cg::thread_block_tile<4> copy(in_sixteen);
  named = other, __prof_trigger(0), free(__nv_aligned_device_malloc(64, 64));
  static_assert(decltype(warp)::size() == 32 && decltype(sixteen)::num_threads() == 16, "");
  rows.shape(typed), rows.shape(warp), rows.shape(sixteen), rows.shape(in_sixteen), rows.shape(in_warp);
  rows.shape(in_block), rows.shape(named), rows.shape(copy);
  rows.shape(cg::this_thread()), rows.warp_argument(typed), rows.tile_argument(sixteen), rows.tile_argument(warp);
  cg::thread_group group = sixteen;
  rows.any_group(block), rows.any_group(typed), rows.any_group(in_sixteen), rows.any_group(group);
  rows.put(cg::group_size(block) * 1000 + cg::group_size(sixteen) + cg::thread_rank(in_block));
  cg::sync(block), cg::sync(typed), cg::sync(warp), cg::sync(group), (void)static_cast<const cg::thread_group&>(grid);
}

struct Triple { int a, b, c; };
struct Large { double values[4]; };

template <class Group>
__device__ void votes(Rows& rows, const Group& group, int v) {
  int same, other;
  rows.put(group.any(v > 90) * 2 + group.all(v < 90));
  rows.put(group.ballot(v & 2));
  rows.put(group.match_any(v % 3));
  rows.put(group.match_all(v / 1000, same));
  rows.put(group.match_all((long long)v << 32, other) + same);
  group.sync();
}

extern "C" __global__ void group_exchanges(const int* x, int* out) {
  Rows rows(out);
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  auto eight = cg::tiled_partition<8>(warp);
  const int v = x[block.thread_rank()];
  rows.put(eight.shfl(v, 11));
  rows.put(eight.shfl_up(v, 3));
  rows.put(eight.shfl_down(v, 3u));
  rows.put(eight.shfl_xor(v, 5));
  rows.put((long long)(warp.shfl_down(v * 0.5, 1) * 2) + warp.shfl((char)v, 7));
  Triple triple = eight.shfl(Triple{v, v + 1, v + 2}, 2);
  rows.put(triple.a * 10000 + triple.b * 100 + triple.c);
  rows.put(warp.shfl_up(Large{{0, 0, 0, v * 1.0}}, 1).values[3]);
  votes(rows, eight, v);
  votes(rows, warp, v);
  if (v & 1) {
    cg::coalesced_group odd = cg::coalesced_threads();
    rows.shape(odd);
    rows.any_group(odd);
    rows.put(odd.shfl(v, 1));
    rows.put(odd.shfl_up(v, 2) * 100 + odd.shfl_down((short)v, 2));
    votes(rows, odd, v);
  }
}

extern "C" __global__ void group_partitions(const int* x, int* out) {
  Rows rows(out);
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  const int v = x[block.thread_rank()];
  rows.shape(cg::labeled_partition(warp, v % 3));
  rows.shape(cg::labeled_partition(warp, (long long)(v % 3) << 40));
  rows.shape(cg::labeled_partition(warp, x + v % 3));
  rows.shape(cg::binary_partition(warp, v & 1));
  rows.shape(cg::labeled_partition(warp, (v & 1) != 0));
  rows.shape(cg::binary_partition(cg::tiled_partition<8>(warp), true));
  cg::thread_group four = cg::tiled_partition(block, 4), two = cg::tiled_partition(four, 2);
  rows.any_group(four), rows.any_group(two), rows.any_group(cg::tiled_partition(warp, 8));
  if (v & 1) {
    cg::coalesced_group odd = cg::coalesced_threads(), fours = cg::tiled_partition(odd, 4);
    rows.shape(fours), rows.any_group(fours), rows.shape(cg::tiled_partition(odd, 32));
    rows.put(fours.shfl(v, 0));
    rows.shape(cg::binary_partition(odd, v & 2));
    rows.shape(cg::labeled_partition(odd, v % 5));
  }
}

template <class Group>
__device__ void sums(Rows& rows, const Group& group, int v) {
  rows.put(cg::reduce(group, v, cg::plus<int>()));
  rows.put(cg::reduce(group, v, cg::less<int>()));
  rows.put(cg::reduce(group, v, cg::greater<int>()));
  rows.put(cg::reduce(group, v, cg::bit_and<int>()));
  rows.put(cg::reduce(group, (unsigned)v, cg::bit_or<unsigned>()));
  rows.put(cg::reduce(group, (long long)v << 32, cg::bit_xor<long long>()) >> 32);
  rows.put(cg::reduce(group, v * 0.5f, cg::plus<float>()) * 2);
  rows.put(cg::reduce(group, v, [](int a, int b) { return a > b ? a : b; }));
  rows.put(cg::inclusive_scan(group, v));
  rows.put(cg::inclusive_scan(group, v, cg::greater<int>()));
  rows.put(cg::exclusive_scan(group, v));
  rows.put(cg::exclusive_scan(group, v * 0.5) * 2);
  rows.put(cg::exclusive_scan(group, v, cg::bit_xor<int>()));
}

extern "C" __global__ void group_sums(const int* x, int* out) {
  Rows rows(out);
  cg::thread_block block = cg::this_thread_block();
  const int v = x[block.thread_rank()];
  cg::thread_block_tile<8> eight = cg::tiled_partition<8>(block);
  sums(rows, eight, v);
  sums(rows, cg::tiled_partition<32>(block), v);
  if (v & 1) sums(rows, cg::coalesced_threads(), v);
}

extern "C" __global__ void group_copies(const int* x, int* out) {
  Rows rows(out);
  __shared__ int first[128], second[128];
  auto block = cg::this_thread_block();
  auto eight = cg::tiled_partition<8>(block);
  const int t = block.thread_rank(), start = t / 8 * 8;
  cg::memcpy_async(block, first, x, cuda::aligned_size_t<16>(sizeof(int) * block.size()));
  cg::memcpy_async(eight, second + start, 8, x + 128 - 8 - start, 100);
  cg::wait_prior<1>(block);
  rows.put(first[127 - t]);
  cg::wait(eight);
  rows.put(second[start + 7 - t % 8]);
  __shared__ __align__(16) int third[512];
  __pipeline_memcpy_async(&third[4 * t], x + t / 4 * 4, 16, 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  rows.put(third[4 * (127 - t) + 2] * 1000 + third[4 * t + 3]);
}
