// Collectives of cooperative groups that add to atomics. NVIDIA's headers of groups bring cuda::atomic.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void group_updates(const int* x, int* out) {
  __shared__ cuda::atomic<int, cuda::thread_scope_block> scanned;
  __shared__ int sum, largest, first;
  auto block = cg::this_thread_block();
  auto eight = cg::tiled_partition<8>(block);
  auto warp = cg::tiled_partition<32>(block);
  const int t = block.thread_rank(), v = x[t];
  if (t == 0) scanned.store(1000), sum = 0, largest = -1;
  block.sync();
  out[t] = t < 32 ? cg::inclusive_scan_update(warp, scanned, v) : 0;
  block.sync();
  out[64 + t] = t < 32 ? cg::exclusive_scan_update(warp, scanned, v, cg::plus<int>()) : 0;
  block.sync();
  out[128 + t] = t < 8 ? cg::inclusive_scan_update(eight, scanned, v) : 0;
  cuda::atomic_ref<int, cuda::thread_scope_block> total(sum);
  cg::reduce_update_async(eight, total, v, cg::plus<int>());
  cg::reduce_update_async(warp, cuda::atomic_ref<int, cuda::thread_scope_block>(largest), v, cg::greater<int>());
  if (t < 32) cg::reduce_store_async(warp, &first, v, cg::plus<int>());
  block.sync();
  out[192 + t] = sum;
  out[256 + t] = largest;
  out[320 + t] = first;
}
