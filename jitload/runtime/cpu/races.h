/* What sanitize="race" knows about the accesses of a launch, and about their order.
 *
 * Of each word of a tensor and of shared memory, up to four accesses are kept. A block begins a step, and so does what
 * may order its accesses: a barrier, an operation of a warp, an atomic. Two accesses of different threads are unordered
 * if no barrier of their block, no operation of their warp, and no atomics of both have come after the first one. Which
 * atomic an atomic synchronizes with is not followed: a race between two threads that both use atomics may be missed,
 * but an order is never overlooked.
 *
 * Several workers run blocks. An access is one number, which is loaded and stored without a lock. So two workers that
 * access a word at the very same time may both miss the other's access.
 */
#ifndef JITLOAD_CPU_RACES_H_
#define JITLOAD_CPU_RACES_H_

#include <sys/mman.h>

#include "worker.h"

namespace {

/* An access: a step, the thread, the lower bits of the return address, the kind, and a bit for each byte of the word. A
 * later step makes a greater number. */
struct Access {
  uint64_t bits;

  uint64_t step() const { return bits / kStep; }
  uint32_t thread() const { return (uint32_t)(bits / kThread) & 1023; }
  uint64_t code() const { return bits / kCode & kLastCode; }
  bool is_atomic() const { return bits & kAtomic; }
  bool is_write() const { return bits & kWrite; }
  uint64_t bytes() const { return bits & kBytes; }

  static constexpr uint64_t kStep = (uint64_t)1 << 38, kThread = 1 << 28, kCode = 1 << 6, kLastCode = (1 << 22) - 1;
  static constexpr uint64_t kAtomic = 32, kWrite = 16, kBytes = 15;
};
constexpr uint64_t kLastStep = 1 << 26;
constexpr uint64_t kStepsAtOnce = 64; /* for a worker */
constexpr uint32_t kKept = 4;         /* accesses for each word */

/* The accesses to the words of several ranges of memory. Pages without accesses take no memory. */
struct Accesses {
  Access (*memory)[kKept];
  size_t word_count;
};

/* A range of memory. The word at `address` has the number `address / 4`. */
struct Watched {
  Memory memory;
  size_t last_word; /* the offset of the last four bytes */
  Access (*kept)[kKept];
  uint64_t fresh; /* lesser accesses are ordered before what is done now, and come after all others of a word */
  bool is_shared;
};

constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kRecent = 1024;

/* The global memory of a launch. Later launches use it again, and ignore what has steps before `first_step`. */
struct Races {
  uint64_t next_step;
  uint64_t first_step;
  Accesses accesses;
  int count;
  Watched* watched;
  uint32_t step_blocks[kLastStep];  /* the block of each step of the launch */
  uint32_t atomic_steps[kLastStep]; /* when a thread of each block last did an atomic */
};

}  // namespace

/* The order of the accesses of a worker's current block. */
struct jitload_cpu_order {
  uint32_t thread_index[3]; /* the kernel's threadIdx */
  uint64_t now;             /* an access of the current thread in the current step; 0 while no block runs */
  uint64_t step;            /* the same without the thread */
  uint64_t next_step;       /* a multiple of kStepsAtOnce if the worker needs further ones */
  uint64_t part_step;       /* when anything but the block's barrier has ordered accesses last */
  uint64_t block_step;      /* when the block began, or its barrier opened last */
  uint32_t lane_steps[kMostThreads]; /* when each thread took part in an operation of its warp */
  uint32_t atomic_steps[kMostThreads];
  uint32_t warp_steps[kMostThreads / kWarp]; /* when a thread of each warp did an atomic */
  uint32_t block;
  bool has_atomics; /* whether a thread of the block did an atomic */
  Races* races;
  Accesses accesses;
  Watched shared[3]; /* the memory before, in and after dynamic shared memory */
  const Watched* recent[kRecent]; /* the range of the last access by code with such an address */
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

/* Begin a step, and return its number. */
uint64_t begin_step(Worker* worker) {
  Order* order = worker->order;
  Races* races = order->races;
  if (order->next_step % kStepsAtOnce == 0) {
    order->next_step = __atomic_fetch_add(&races->next_step, kStepsAtOnce, __ATOMIC_RELAXED);
  }
  const uint64_t step = order->next_step++;
  if (step >= kLastStep) {
    fail(worker, NULL, "more blocks, barriers, operations of warps and atomics than sanitize=\"race\" can order,");
    if (worker->is_in_fibers) leave(worker);
    return order->block_step;
  }
  races->step_blocks[step - races->first_step] = order->block;
  __atomic_thread_fence(__ATOMIC_RELEASE);
  order->now = step * Access::kStep | order->now % Access::kStep;
  order->step = step * Access::kStep;
  return step;
}

void order_block(Worker* worker) {
  if (!has_race_checks) return;
  Order* order = worker->order;
  order->block_step = begin_step(worker);
  for (Watched& watched : order->shared) watched.fresh = order->step;
}

void begin_block(Worker* worker) {
  if (!has_race_checks) return;
  const uint32_t* index = worker->block.block_index;
  const uint32_t* grid = worker->block.grid_dim;
  Order* order = worker->order;
  order->block = (uint32_t)((uint64_t)(index[2] * (uint64_t)grid[1] + index[1]) * grid[0] + index[0]);
  order->has_atomics = false;
  order_block(worker);
#ifdef JITLOAD_CPU_WATCHES
  memcpy(jitload_cpu_block_index, index, sizeof jitload_cpu_block_index);
#endif
}

void end_block(Worker* worker) { worker->order->now = worker->order->step = 0; }

/* Order what the given lanes of the warp that begins with thread `first` have done before what they do next. */
void order_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  if (!has_race_checks) return;
  Order* order = worker->order;
  order->part_step = begin_step(worker);
  for (; lanes != 0; lanes &= lanes - 1) {
    order->lane_steps[first + (uint32_t)__builtin_ctz(lanes)] = (uint32_t)order->part_step;
  }
}

/* Order the threads of a tile of several warps. Other threads that have met in a tile may seem ordered, too. */
void order_tile(Worker* worker, uint32_t first, uint32_t size) {
  if (!has_race_checks) return;
  Order* order = worker->order;
  order->part_step = begin_step(worker);
  for (uint32_t i = first; i < first + size && i < kMostThreads; ++i) {
    order->lane_steps[i] = order->warp_steps[i / kWarp] = (uint32_t)order->part_step;
  }
}

/* Take notice of an atomic before it is done, so that no other block can see its value before. */
void order_atomic(Worker* worker, uint32_t thread) {
  Order* order = worker->order;
  const uint32_t step = (uint32_t)(order->part_step = begin_step(worker));
  order->atomic_steps[thread] = order->warp_steps[thread / kWarp] = step;
  order->has_atomics = true;
  __atomic_store_n(&order->races->atomic_steps[order->block % kLastStep], step, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

}  // namespace

#endif /* JITLOAD_CPU_RACES_H_ */
