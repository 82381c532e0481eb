/* Finds accesses of two threads to one address without an order between them, in kernels with sanitize="race".
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
namespace {

/* `bits` is loaded and stored as a whole: a part that is stored has to reach memory before the whole can be loaded. */
union Access {
  uint64_t bits;
  struct {
    uint64_t bytes : 4; /* a bit for each byte of the word */
    uint64_t is_write : 1;
    uint64_t is_atomic : 1;
    uint64_t code : 22; /* where the call instruction is in the library's code */
    uint64_t thread : 10;
    uint64_t epoch : 26;
  };
};
constexpr uint64_t kIsWrite = 1 << 4, kEpochAndKind = ~0ull << 38 | 63; /* in the bits of an access */
constexpr uint64_t kLastCode = (1 << 22) - 1;
constexpr uint32_t kEpochs = 1 << 26;
constexpr uint32_t kEpochsAtOnce = 64; /* for a worker */

constexpr size_t kLine = 128; /* what processors exchange at once: what all read lies apart from what some write */

/* A range of memory, and the accesses to its words. */
struct Watched {
  Memory memory;
  const Watched* next;
  bool is_const; /* there are only reads, and none is kept */
  alignas(kLine) mutable Access shadow[][4];
};

/* What the workers of a launch share. It is followed by what is watched. Pages that are not touched take no memory. */
struct Races {
  size_t size; /* of all, in bytes */
  size_t used;
  const Watched* watched; /* if ranges overlap, the first one is used: those of const pointers come last */
  alignas(kLine) uint32_t next_epoch;
  uint32_t epoch_blocks[kEpochs];  /* the block of each epoch */
  uint32_t atomic_epochs[kEpochs]; /* when a thread of each block last did an atomic, or 0 */
};

/* The order of the accesses of a worker's current block. */
struct Order {
  Access now;            /* a read of no bytes by the current thread in the current epoch */
  const Watched* shared; /* the memory of this thread of the operating system */
  Memory unused_shared;  /* the dynamic shared memory for which the launch did not ask */
  uintptr_t code_begin;  /* of the library; a copy, because to look at own_memory takes longer */
  Races* races;
  uint32_t block;
  uint32_t block_epoch; /* when the block began, or its barrier opened last */
  uint32_t next_epoch;  /* a multiple of kEpochsAtOnce if the worker needs further ones */
  uint32_t lane_epochs[kMostLanes]; /* when each thread took part in an operation of its warp */
  uint32_t atomic_epochs[kMostLanes];
  uint32_t warp_epochs[kMostLanes / kWarp]; /* when a thread of each warp did an atomic */
};

thread_local Order race_order;
bool has_race_checks; /* whether this library was built with sanitize="race" */

/* ---- the memory that is watched --------------------------------------------------------------------------------- */

size_t watched_size(Memory memory, bool is_const) {
  const size_t words = is_const ? 0 : (memory.end + 3) / 4 - memory.begin / 4;
  const size_t size = sizeof(Watched) + words * sizeof(Access[4]);
  return (size + kLine - 1) / kLine * kLine;
}

/* Watch a range of memory; return NULL if there is no room. */
const Watched* watch_memory(Races* races, Memory memory, bool is_const) {
  const size_t size = watched_size(memory, is_const), end = __atomic_add_fetch(&races->used, size, __ATOMIC_RELAXED);
  if (end > races->size) return NULL;
  Watched* watched = (Watched*)((char*)races + end - size);
  watched->memory = memory;
  watched->is_const = is_const;
  watched->next = races->watched;
  return watched;
}

/* Return the state for a launch, with the global memory that it watches, or NULL if there is not enough memory. */
Races* make_races(const jitload_cpu_launch* call) {
  const auto memory_of = [=](int i) { return Memory{call->tensors[i].begin, call->tensors[i].end}; };
  const auto is_const = [=](int i) { return call->tensors[i].is_const && !call->has_addresses; };
  size_t size = sizeof(Races) + watched_size(own_memory.library, false);
  size += (count_processors() + 1) * watched_size(own_memory.thread_local_data, false);
  for (int i = 0; i < call->tensor_count; ++i) size += watched_size(memory_of(i), is_const(i));
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  madvise(memory, size, MADV_HUGEPAGE);
  Races* races = (Races*)memory;
  races->size = size;
  races->used = sizeof(Races);
  races->next_epoch = kEpochsAtOnce; /* so that the first one is not 0 */
  races->watched = watch_memory(races, own_memory.library, false);
  for (int i = 0; i < call->tensor_count; ++i) {
    if (is_const(i)) races->watched = watch_memory(races, memory_of(i), true);
  }
  for (int i = 0; i < call->tensor_count; ++i) {
    if (!is_const(i)) races->watched = watch_memory(races, memory_of(i), false);
  }
  return races;
}

/* Let a worker watch the blocks of its launch if the launch has checks; return whether there is enough memory. */
bool watch_launch(Worker* worker) {
  Launch* launch = worker->launch;
  const jitload_cpu_block* block = &launch->call->block;
  worker->order = NULL;
  if (!has_race_checks || launch->call->is_unchecked) return true;
  if (own_memory.code.end - own_memory.code.begin > kLastCode) {
    return fail(worker, NULL, "more than 4 MiB of code, which sanitize=\"race\" cannot watch,"), false;
  }
  if (launch->races == NULL && (launch->races = make_races(launch->call)) == NULL) return false;
  race_order = Order();
  race_order.races = launch->races;
  race_order.code_begin = own_memory.code.begin;
  race_order.shared = watch_memory(launch->races, own_memory.thread_local_data, false);
  const uintptr_t dynamic = (uintptr_t)__jitload_dynamic_shared;
  race_order.unused_shared = {dynamic + block->shared_bytes, dynamic + JITLOAD_MOST_SHARED};
  worker->order = &race_order;
  memcpy(jitload_cpu_block_dim, block->block_dim, sizeof jitload_cpu_block_dim);
  memcpy(jitload_cpu_grid_dim, block->grid_dim, sizeof jitload_cpu_grid_dim);
  return race_order.shared != NULL;
}

void free_races(Races* races) {
  if (races != NULL) munmap(races, races->size);
}

/* Return the range that contains an access to a word, or NULL. */
inline const Watched* find_watched(const Order* order, uintptr_t begin, size_t size) {
  const Watched* watched = order->shared;
  if (contains(watched->memory, begin, size)) {
    return begin + size > order->unused_shared.begin && begin < order->unused_shared.end ? NULL : watched;
  }
  watched = order->races->watched;
  while (watched != NULL && !contains(watched->memory, begin, size)) watched = watched->next;
  return watched;
}

/* ---- the order of accesses -------------------------------------------------------------------------------------- */

uint32_t begin_epoch(Worker* worker) {
  Order* order = worker->order;
  Races* races = order->races;
  if (order->next_epoch % kEpochsAtOnce == 0) {
    order->next_epoch = __atomic_fetch_add(&races->next_epoch, kEpochsAtOnce, __ATOMIC_RELAXED);
  }
  if (order->next_epoch >= kEpochs) {
    fail(worker, NULL, "more blocks, barriers, operations of warps and atomics than sanitize=\"race\" can order,");
    return order->now.epoch;
  }
  Access now = order->now;
  now.epoch = order->next_epoch;
  order->now.bits = now.bits;
  races->epoch_blocks[order->next_epoch] = order->block;
  __atomic_thread_fence(__ATOMIC_RELEASE);
  return order->next_epoch++;
}

void order_thread(Worker* worker, const Fiber* fiber) {
  memcpy(jitload_cpu_thread_index, fiber->index, sizeof fiber->index);
  Access now = worker->order->now;
  now.thread = fiber->number;
  worker->order->now.bits = now.bits;
}

void order_block(Worker* worker) {
  const uint32_t* index = worker->block.block_index;
  const uint32_t* grid = worker->block.grid_dim;
  worker->order->block = (index[2] * grid[1] + index[1]) * grid[0] + index[0];
  worker->order->block_epoch = begin_epoch(worker);
  memcpy(jitload_cpu_block_index, index, sizeof jitload_cpu_block_index);
}

void order_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  const uint32_t epoch = begin_epoch(worker);
  for (; lanes != 0; lanes &= lanes - 1) worker->order->lane_epochs[first + (uint32_t)__builtin_ctz(lanes)] = epoch;
}

/* Take notice of an atomic before it is done, so that no other block can see its value before. */
void order_atomic(Worker* worker) {
  Order* order = worker->order;
  const uint32_t epoch = begin_epoch(worker), thread = order->now.thread;
  order->atomic_epochs[thread] = order->warp_epochs[thread / kWarp] = epoch;
  __atomic_store_n(&order->races->atomic_epochs[order->block % kEpochs], epoch, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Return whether something after an access may order it before what the current thread does now. */
bool is_ordered(const Order* order, Access access) {
  const uint32_t thread = order->now.thread, other = access.thread, epoch = access.epoch;
  const uint32_t block = order->races->epoch_blocks[epoch];
  if (block != order->block) {
    /* The other block, which may still run, takes notice of its atomics before others can see their effects. */
    const uint32_t* last = order->races->atomic_epochs;
    return last[order->block % kEpochs] != 0 && __atomic_load_n(&last[block % kEpochs], __ATOMIC_ACQUIRE) > epoch;
  }
  const auto are_after = [=](const uint32_t* epochs, uint32_t a, uint32_t b) {
    return epochs[a] > epoch && epochs[b] > epoch;
  };
  if (epoch < order->block_epoch || other == thread) return true;
  if (other / kWarp != thread / kWarp) return are_after(order->warp_epochs, other / kWarp, thread / kWarp);
  return are_after(order->lane_epochs, other, thread) || are_after(order->atomic_epochs, other, thread);
}

/* ---- the accesses to a word ------------------------------------------------------------------------------------- */

/* Return whether two accesses are in one epoch, of one kind and to the same bytes. */
inline bool are_alike(Access access, Access other) { return ((access.bits ^ other.bits) & kEpochAndKind) == 0; }

const char* kind_of(Access access) {
  return access.is_atomic ? "an atomic operation" : access.is_write ? "a write" : "a read";
}

/* Report a race of two accesses to a word, of which the first one is part of an access of `size` bytes. */
[[noreturn, gnu::noinline]] void report_race(Worker* worker, uintptr_t word, Access access, size_t size, Access other) {
  Launch* launch = worker->launch;
  uint32_t index[3];
  set_thread_index(worker->block, other.thread, index);
  char place[256];
  describe_address(launch->call, word + (uint32_t)__builtin_ctzll(access.bytes & other.bytes), place, sizeof place);
  worker->fault_address = (const char*)own_memory.code.begin + access.code;
  if (fail(worker, worker->current->index, "a race: %s of %zu bytes %s, and another access are not ordered,",
           kind_of(access), size, place)) {
    launch->other_address = (const char*)own_memory.code.begin + other.code;
    snprintf(launch->other, sizeof launch->other, "; the other is %s", kind_of(other));
    go_to_block(&worker->block, worker->order->races->epoch_blocks[other.epoch]);
    append_place(launch->other, sizeof launch->other, worker, index);
  }
  leave(worker);
}

/* Report a race with an access that a shadow keeps. Otherwise keep this access, too. If there is no room, it takes the
 * place of another one, but a read only that of a read of another epoch. What is older than `oldest` is ordered. */
[[gnu::noinline]] void compare_with_shadow(Worker* worker, uintptr_t word, Access access, size_t size, Access* shadow,
                                           uint32_t oldest) {
  Access* const last_resort = &shadow[worker->order->block % 4];
  Access* target = NULL;
  for (Access* kept = shadow; kept < shadow + 4; ++kept) {
    const Access last = {__atomic_load_n(&kept->bits, __ATOMIC_ACQUIRE)}; /* another worker may replace it */
    if (last.epoch < oldest) {
      if (target == NULL) target = kept;
      break;
    }
    const bool is_same = last.thread == access.thread, has_write = access.is_write || last.is_write;
    if (is_same && are_alike(last, {access.bits | (last.bits & kIsWrite)})) return; /* a write is a read, too */
    if ((last.bytes & access.bytes) == 0 || (!has_write && !is_same)) continue;
    const bool is_before = (access.is_atomic && last.is_atomic) || is_ordered(worker->order, last);
    /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
    const bool may_be_loop = oldest == 1 && last.is_atomic != access.is_atomic && !(last.is_write && access.is_write);
    if (!is_before && has_write && !may_be_loop) report_race(worker, word, access, size, last);
    /* Is every race with the last access from now on also a race with this one? */
    const bool is_less = last.is_atomic >= access.is_atomic && access.is_write >= last.is_write;
    if (is_before && is_less && (last.bytes & ~access.bytes) == 0) target = kept;
  }
  const bool is_old_read = !last_resort->is_write && last_resort->epoch != access.epoch;
  if (target == NULL && (access.is_write || is_old_read)) target = last_resort;
  if (target != NULL) target->bits = access.bits;
}

/* Watch a part of an access of `size` bytes, which lies in one word of a range of memory. Many threads read a word: of
 * four reads, of which two are of this epoch, none has to make room for another one of this epoch. */
[[gnu::always_inline]] inline void watch_word(Worker* worker, const Watched* watched, uintptr_t address, Access access,
                                              size_t size) {
  const Order* order = worker->order;
  if (watched->is_const) {
    const void* code = (const char*)order->code_begin + access.code + 1;
    if (access.is_write) report_access(worker, address, size, true, code, ", through a pointer to const");
    return;
  }
  Access* const shadow = watched->shadow[address / 4 - watched->memory.begin / 4];
  const uint32_t oldest = watched == order->shared ? order->block_epoch : 1;
  const Access rest = {shadow[0].bits | shadow[1].bits | access.bits};
  if (are_alike(shadow[2], access) && are_alike(shadow[3], access) && !rest.is_write && !rest.is_atomic) return;
  if (shadow->epoch >= oldest) return compare_with_shadow(worker, address / 4 * 4, access, size, shadow, oldest);
  shadow->bits = access.bits;
}

/* Watch an access, of which each word may be in the memory of another tensor. */
[[gnu::noinline]] void watch_words(Worker* worker, const void* memory, size_t size, Access access) {
  const Order* order = worker->order;
  for (size_t done = 0, part; done < size; done += part) {
    const uintptr_t address = (uintptr_t)memory + done, offset = address % 4;
    part = size - done < 4 - offset ? size - done : 4 - offset;
    const Watched* watched = find_watched(order, address, part);
    if (watched == NULL || !contains(watched->memory, address, size - done)) {
      jitload_cpu_check(memory, size, access.is_write, (const char*)order->code_begin + access.code + 1);
    }
    if (watched == NULL) break;
    access.bytes = ((1u << part) - 1) << offset;
    watch_word(worker, watched, address, access, size);
  }
}

/* Watch an access of the current thread, if there is one. Most are to a whole word. */
[[gnu::always_inline]] inline void watch_access(const void* memory, size_t size, bool is_write, bool is_atomic,
                                                const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL || worker->order == NULL) return;
  const Order* order = worker->order;
  const uintptr_t address = (uintptr_t)memory;
  const uint64_t place = (uintptr_t)code - 1 - order->code_begin, kind = is_atomic * 2u + is_write;
  const uint64_t bits = order->now.bits | place << 6 | kind << 4;
  const Watched* watched = size == 4 && address % 4 == 0 ? find_watched(order, address, size) : NULL;
  if (watched != NULL) {
    watch_word(worker, watched, address, {bits | 15}, size);
  } else {
    watch_words(worker, memory, size, {bits});
  }
  if (is_atomic) order_atomic(worker);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ------------------------------------------------------------------------- */

#define JITLOAD_HOOK extern "C" __attribute__((visibility("hidden")))
JITLOAD_HOOK void __tsan_init() { has_race_checks = true; }

#define JITLOAD_ACCESS(p, size, is_write) watch_access(p, size, is_write, false, __builtin_return_address(0))
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                       \
  watch_access(p, size, is_write, true, __builtin_return_address(0)); \
  jitload_cpu_step(jitload_cpu_current_worker, p, is_write, __builtin_return_address(0))
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write)                         \
  watch_access(p, size, is_write, true, __builtin_return_address(0)); \
  jitload_cpu_atomic(jitload_cpu_current_worker)
#include <jitload/accesses.h>
