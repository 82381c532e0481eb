/* What sanitize="race" knows about the accesses of a launch, and about their order.
 *
 * Time counts what may order accesses: barriers, operations of warps, atomics. Each word of a tensor and of shared
 * memory has the last write and two reads with their times. Two accesses of different threads are unordered if no
 * barrier of their block, no operation of their warp, and no atomics of both have come after the first one. Which
 * atomic an atomic synchronizes with is not followed: a race between two threads that both use atomics may be missed,
 * but an order is never overlooked. One thread of the operating system runs all blocks, so nothing here is locked.
 */
#ifndef JITLOAD_CPU_RACES_H_
#define JITLOAD_CPU_RACES_H_

#include <sys/mman.h>

#include "worker.h"

namespace {

/* An access. Its fields are shifted by hand, because bit-fields are stored one by one, which makes copies wait. */
struct Access {
  uint64_t bits;
  uint32_t block;
  int32_t code; /* the return address, from `code_base` on */

  uint64_t time() const { return bits >> 20; } /* 0 if there was no access */
  uint32_t thread() const { return (uint32_t)(bits >> 8) & 1023; }
  uint32_t size() const { return (uint32_t)(bits >> 2) & 63; }
  bool is_atomic() const { return bits & 1; }
};

constexpr uint64_t kSplit = 2; /* in the bits of a write: the bytes of this word have cells of their own */

inline Access make_access(uint64_t time, uint32_t thread, uint32_t block, size_t size, bool is_atomic, int32_t code) {
  return {time << 20 | (uint64_t)thread << 8 | (size < 63 ? size : 63) << 2 | is_atomic, block, code};
}

/* The last accesses to a word or to a byte. */
struct Cell {
  Access write;
  Access reads[2];
};

/* A range of memory, with the cells of its words and of its bytes. Pages without accesses take no memory. */
struct Watched {
  Memory memory;
  Memory valid; /* the part in which any access is valid, so that only races need to be checked */
  bool is_shared;
  Cell* words;
  Cell* bytes;
};

constexpr int kMostWatched = 96;
constexpr uint32_t kMostThreads = 1024;
constexpr int kIndices = 4;
constexpr size_t kIndexSize = 14; /* the size of a __jitload_index */
constexpr size_t kRecent = 64;

struct Races {
  uint64_t time;
  uint64_t part_time;  /* when anything but the block's barrier has ordered accesses last */
  uint64_t block_time; /* when the block began, or its barrier opened last */
  uint64_t lane_times[kMostThreads];  /* when each thread took part in an operation of its warp */
  uint64_t atomic_times[kMostThreads];
  uint64_t warp_times[kMostThreads / kWarp]; /* when a thread of each warp did an atomic */
  uint64_t* block_times;                     /* likewise of each block */
  uint64_t blocks;
  uint32_t block;
  Memory stacks;
  Memory dynamic_shared;
  uintptr_t indices[kIndices]; /* where threadIdx, blockIdx, blockDim and gridDim are */
  int count;
  uint8_t recent[kRecent]; /* the range of the last access to a page with such a number */
  Watched watched[kMostWatched];
};

bool has_race_checks; /* whether this library was built with sanitize="race" */

/* Take notice of where the kernel's threadIdx, blockIdx, blockDim and gridDim are. They are not shared memory. */
void find_indices(Races* races, const void* const* addresses) {
  for (int i = 0; i < kIndices; ++i) races->indices[i] = (uintptr_t)addresses[i];
}

void begin_block(Worker* worker) {
  Races* races = worker->launch->races;
  if (races == NULL) return;
  const uint32_t* index = worker->block.block_index;
  const uint32_t* grid = worker->block.grid_dim;
  races->block = (uint32_t)((uint64_t)(index[2] * (uint64_t)grid[1] + index[1]) * grid[0] + index[0]);
  races->block_time = ++races->time;
}

void order_block(Worker* worker) {
  Races* races = worker->launch->races;
  if (races != NULL) races->block_time = ++races->time;
}

/* Order what the given lanes of the warp that begins with thread `first` have done before what they do next. */
void order_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  Races* races = worker->launch->races;
  if (races == NULL) return;
  races->part_time = ++races->time;
  for (; lanes != 0; lanes &= lanes - 1) races->lane_times[first + (uint32_t)__builtin_ctz(lanes)] = races->time;
}

/* Order the threads of a tile of several warps. Other threads that have met in a tile may seem ordered, too. */
void order_tile(Worker* worker, uint32_t first, uint32_t size) {
  Races* races = worker->launch->races;
  if (races == NULL) return;
  races->part_time = ++races->time;
  for (uint32_t i = first; i < first + size && i < kMostThreads; ++i) {
    races->lane_times[i] = races->time;
    races->warp_times[i / kWarp] = races->time;
  }
}

void order_atomic(Races* races, uint32_t thread) {
  races->part_time = ++races->time;
  races->atomic_times[thread] = races->warp_times[thread / kWarp] = races->block_times[races->block] = races->time;
}

}  // namespace

#endif /* JITLOAD_CPU_RACES_H_ */
