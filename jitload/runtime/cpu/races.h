/* What sanitize="race" knows about the accesses of a launch, and about their order.
 *
 * Each worker has a clock, which counts what may order accesses: barriers, operations of warps, atomics. Each word of a
 * tensor and of shared memory has the last write and two reads with their times. Two accesses of different threads are
 * unordered if no barrier of their block, no operation of their warp, and no atomics of both have come after the first
 * one. Which atomic an atomic synchronizes with is not followed: a race between two threads that both use atomics may be
 * missed, but an order is never overlooked.
 *
 * Several workers run blocks. A worker locks a word of global memory while it compares and stores an access, so that of
 * two accesses the second one always finds the first.
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

/* Flags in the bits of a word's write. */
constexpr uint64_t kSplit = 2;           /* the bytes of this word have cells of their own */
constexpr uint64_t kReadByTwo = 1 << 18; /* two blocks have read this word: any write is a race */
constexpr uint64_t kLocked = 1 << 19;
constexpr uint64_t kFlags = kSplit | kReadByTwo | kLocked;

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
  bool is_shared;
  Cell* words;
  Cell* bytes;
};

constexpr int kMostWatched = 96;
constexpr uint32_t kMostThreads = 1024;
constexpr size_t kRecent = 64;

/* The global memory of a launch. */
struct Races {
  uint64_t* block_times; /* when a thread of each block last did an atomic */
  uint64_t blocks;
  int count;
  Watched watched[kMostWatched];
};

/* The order of the accesses of a worker's current block. */
struct Order {
  uint64_t time;
  uint64_t part_time;  /* when anything but the block's barrier has ordered accesses last */
  uint64_t block_time; /* when the block began, or its barrier opened last */
  uint64_t lane_times[kMostThreads];  /* when each thread took part in an operation of its warp */
  uint64_t atomic_times[kMostThreads];
  uint64_t warp_times[kMostThreads / kWarp]; /* when a thread of each warp did an atomic */
  uint32_t block;
  bool has_atomics; /* whether a thread of the block did an atomic */
  bool is_active;   /* while threads of the block run */
  Races* races;
  Memory dynamic_shared; /* the memory that dynamic shared memory may have, and has in this launch */
  uintptr_t shared_end;
  Memory stacks;
  Watched shared;
  const Watched* recent[kRecent]; /* the range of the last access to a page with such a number */
};

bool has_race_checks; /* whether this library was built with sanitize="race" */

void begin_block(Worker* worker) {
  Order* order = worker->order;
  if (order == NULL) return;
  const uint32_t* index = worker->block.block_index;
  const uint32_t* grid = worker->block.grid_dim;
  order->block = (uint32_t)((uint64_t)(index[2] * (uint64_t)grid[1] + index[1]) * grid[0] + index[0]);
  order->block_time = ++order->time;
  order->has_atomics = false;
  order->is_active = true;
#ifdef JITLOAD_CPU_WATCHES
  memcpy(jitload_cpu_block_index, index, sizeof jitload_cpu_block_index);
#endif
}

void end_block(Worker* worker) {
  if (worker->order != NULL) worker->order->is_active = false;
}

void order_block(Worker* worker) {
  Order* order = worker->order;
  if (order != NULL) order->block_time = ++order->time;
}

/* Order what the given lanes of the warp that begins with thread `first` have done before what they do next. */
void order_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  Order* order = worker->order;
  if (order == NULL) return;
  order->part_time = ++order->time;
  for (; lanes != 0; lanes &= lanes - 1) order->lane_times[first + (uint32_t)__builtin_ctz(lanes)] = order->time;
}

/* Order the threads of a tile of several warps. Other threads that have met in a tile may seem ordered, too. */
void order_tile(Worker* worker, uint32_t first, uint32_t size) {
  Order* order = worker->order;
  if (order == NULL) return;
  order->part_time = ++order->time;
  for (uint32_t i = first; i < first + size && i < kMostThreads; ++i) {
    order->lane_times[i] = order->time;
    order->warp_times[i / kWarp] = order->time;
  }
}

/* Take notice of an atomic before it is done, so that no other block can see its value before. */
void order_atomic(Order* order, uint32_t thread) {
  order->part_time = ++order->time;
  order->atomic_times[thread] = order->warp_times[thread / kWarp] = order->time;
  order->has_atomics = true;
  __atomic_exchange_n(&order->races->block_times[order->block], order->time, __ATOMIC_SEQ_CST);
}

}  // namespace

#endif /* JITLOAD_CPU_RACES_H_ */
