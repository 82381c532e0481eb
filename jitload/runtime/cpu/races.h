/* What sanitize="race" knows about the accesses of a launch, and about their order.
 *
 * Each word of a tensor and of shared memory has a shadow, which keeps up to four accesses. A block begins an epoch, and
 * so does what may order its accesses: a barrier, an operation of a warp, an atomic. Two accesses of different threads
 * are unordered if no barrier of their block, no operation of their warp, and no atomics of both have come after the
 * first one. Which atomic an atomic synchronizes with is not followed: a race between two threads that both use atomics
 * may be missed, but an order is never overlooked.
 *
 * Several workers run blocks. An access is one number, which is loaded and stored without a lock. So two workers that
 * access a word at the very same time may both miss the other's access.
 */
#ifndef JITLOAD_CPU_RACES_H_
#define JITLOAD_CPU_RACES_H_

#include <sys/mman.h>

#include "worker.h"

namespace {

/* `bits` is computed and loaded as a whole: numbers that are stored to its parts would have to reach memory first. */
union Access {
  uint64_t bits;
  struct {
    uint64_t bytes : 4; /* a bit for each byte of the word */
    uint64_t is_write : 1;
    uint64_t is_atomic : 1;
    uint64_t code : 22; /* the lower bits of the return address */
    uint64_t thread : 10;
    uint64_t epoch : 26;
  };
};
constexpr uint64_t kLastCode = (1 << 22) - 1;
constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kEpochs = 1 << 26;
constexpr uint32_t kEpochsAtOnce = 64; /* for a worker */
constexpr int kMostTensors = 4096;     /* as many pointers as the parameters of a kernel can be */

typedef Access Shadow[4];

/* A range of memory, and the shadow of its words: that of the word at `address` is `shadow[address / 4]`. */
struct Watched {
  Memory memory;
  Shadow* shadow;
};

/* The global memory of a launch. Pages that are not touched take no memory. */
struct Races {
  uint32_t next_epoch;
  int count;
  Watched watched[kMostTensors + kMostSegments];
  uint32_t epoch_blocks[kEpochs];  /* the block of each epoch */
  uint32_t atomic_epochs[kEpochs]; /* when a thread of each block last did an atomic, or 0 */
};

}  // namespace

/* The order of the accesses of a worker's current block. */
struct jitload_cpu_order {
  uint32_t thread_index[3]; /* the kernel's threadIdx */
  uint32_t thread;
  uint32_t epoch; /* 0 while no block runs */
  uint64_t bits;  /* those of the thread and the epoch in an access */
  uint32_t next_epoch; /* a multiple of kEpochsAtOnce if the worker needs further ones */
  uint32_t block_epoch; /* when the block began, or its barrier opened last */
  uint32_t lane_epochs[kMostThreads]; /* when each thread took part in an operation of its warp */
  uint32_t atomic_epochs[kMostThreads];
  uint32_t warp_epochs[kMostThreads / kWarp]; /* when a thread of each warp did an atomic */
  uint32_t block;
  Races* races;
  Watched shared;
  Memory unused_shared; /* the dynamic shared memory that the launch did not ask for */
};
typedef struct jitload_cpu_order Order;

extern "C" JITLOAD_CPU_HIDDEN __thread Order jitload_cpu_race_order __asm__("jitload_cpu_thread_index");
#ifdef JITLOAD_CPU_WATCHES
__thread Order jitload_cpu_race_order;
#endif

namespace {

bool has_race_checks;   /* whether this library was built with sanitize="race" */
uint32_t race_launches; /* how many launches are watched now */

/* Return where the order of a fiber's worker is, at the upper end of the stack that contains an address. Thread-local
 * variables are slower. */
inline Order** order_of_stack(const void* address) {
  return (Order**)(((uintptr_t)address | (kStack - 1)) + 1) - 1;
}

/* Let accesses be those of a thread. */
void order_thread(Order* order, uint32_t thread) {
  order->thread = thread;
  order->bits = (uint64_t)order->epoch << 38 | (uint64_t)thread << 28;
}

uint32_t begin_epoch(Worker* worker) {
  Order* order = worker->order;
  Races* races = order->races;
  if (order->next_epoch % kEpochsAtOnce == 0) {
    order->next_epoch = __atomic_fetch_add(&races->next_epoch, kEpochsAtOnce, __ATOMIC_RELAXED);
  }
  if (order->next_epoch >= kEpochs) {
    fail(worker, NULL, "more blocks, barriers, operations of warps and atomics than sanitize=\"race\" can order,");
    if (worker->is_in_fibers) leave(worker);
    return order->epoch;
  }
  order->epoch = order->next_epoch++;
  races->epoch_blocks[order->epoch] = order->block;
  __atomic_thread_fence(__ATOMIC_RELEASE);
  order_thread(order, order->thread);
  return order->epoch;
}

void order_block(Worker* worker) {
  if (has_race_checks) worker->order->block_epoch = begin_epoch(worker);
}

void begin_block(Worker* worker) {
  if (!has_race_checks) return;
  const uint32_t* index = worker->block.block_index;
  const uint32_t* grid = worker->block.grid_dim;
  worker->order->block = (uint32_t)((uint64_t)(index[2] * (uint64_t)grid[1] + index[1]) * grid[0] + index[0]);
  order_block(worker);
#ifdef JITLOAD_CPU_WATCHES
  memcpy(jitload_cpu_block_index, index, sizeof jitload_cpu_block_index);
#endif
}

void end_block(Worker* worker) { worker->order->epoch = 0; }

/* Order what the given lanes of the warp that begins with thread `first` have done before what they do next. */
void order_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  if (!has_race_checks) return;
  const uint32_t epoch = begin_epoch(worker);
  for (; lanes != 0; lanes &= lanes - 1) worker->order->lane_epochs[first + (uint32_t)__builtin_ctz(lanes)] = epoch;
}

/* Take notice of an atomic before it is done, so that no other block can see its value before. */
void order_atomic(Worker* worker, uint32_t thread) {
  Order* order = worker->order;
  const uint32_t epoch = begin_epoch(worker);
  order->atomic_epochs[thread] = order->warp_epochs[thread / kWarp] = epoch;
  __atomic_store_n(&order->races->atomic_epochs[order->block % kEpochs], epoch, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

}  // namespace

#endif /* JITLOAD_CPU_RACES_H_ */
