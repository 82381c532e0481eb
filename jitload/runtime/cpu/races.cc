/* The functions that kernels compiled with sanitize="race" call for each access to memory; see races.h. */

extern "C" __attribute__((visibility("hidden"))) void __tsan_init() { has_race_checks = true; }

namespace {

const char code_base[1] = {}; /* addresses of this library's code are stored from here on */

/* ---- the memory that is watched ----------------------------------------------------------------------------------- */

void* reserve_cells(size_t count) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* cells = mmap(NULL, count * sizeof(Cell), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (cells == MAP_FAILED) return NULL;
  madvise(cells, count * sizeof(Cell), MADV_HUGEPAGE);
  return cells;
}

size_t count_words(Memory memory) { return (memory.end + 3) / 4 - memory.begin / 4; }

bool has_cells(Watched* watched) {
  const size_t words = count_words(watched->memory);
  watched->words = (Cell*)reserve_cells(words);
  watched->bytes = (Cell*)reserve_cells(words * 4);
  return watched->words != NULL && watched->bytes != NULL;
}

void free_cells(Watched* watched) {
  const size_t words = count_words(watched->memory);
  if (watched->words != NULL) munmap(watched->words, words * sizeof(Cell));
  if (watched->bytes != NULL) munmap(watched->bytes, words * 4 * sizeof(Cell));
}

/* Watch a range. Ranges that overlap, such as those of two tensors of one memory, become one. */
void watch_memory(Races* races, Memory memory) {
  if (memory.begin >= memory.end) return;
  for (int i = 0; i < races->count; ++i) {
    Watched* other = &races->watched[i];
    if (memory.end <= other->memory.begin || memory.begin >= other->memory.end) continue;
    if (other->memory.begin < memory.begin) memory.begin = other->memory.begin;
    if (other->memory.end > memory.end) memory.end = other->memory.end;
    *other = races->watched[--races->count];
    i = -1;
  }
  if (races->count < kMostWatched) races->watched[races->count++] = {memory, false, NULL, NULL};
}

void forget_races(Races* races) {
  if (races == NULL) return;
  for (int i = 0; i < races->count; ++i) free_cells(&races->watched[i]);
  if (races->block_times != NULL) munmap(races->block_times, races->blocks * 8);
  free(races);
}

/* Return the state for a launch, or NULL if there is not enough memory. */
Races* watch_races(const Launch* launch) {
  const jitload_cpu_launch* call = launch->call;
  Races* races = (Races*)calloc(1, sizeof(Races));
  if (races == NULL) return NULL;
  for (int i = 0; i < call->tensor_count; ++i) watch_memory(races, {call->tensors[i].begin, call->tensors[i].end});
  for (int i = 0; i < own_memory.segment_count; ++i) watch_memory(races, own_memory.segments[i]);
  races->blocks = launch->blocks;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* times = mmap(NULL, races->blocks * 8, PROT_READ | PROT_WRITE, flags, -1, 0);
  bool is_whole = times != MAP_FAILED;
  races->block_times = is_whole ? (uint64_t*)times : NULL;
  for (int i = 0; is_whole && i < races->count; ++i) is_whole = has_cells(&races->watched[i]);
  if (is_whole) return races;
  forget_races(races);
  return NULL;
}

void forget_order(Worker* worker) {
  if (worker->order != NULL) free_cells(&worker->order->shared);
  free(worker->order);
  worker->order = NULL;
}

/* Let a worker watch the blocks of its launch; return whether there is enough memory. */
bool watch_launch(Worker* worker) {
  Launch* launch = worker->launch;
  const jitload_cpu_block* block = &launch->call->block;
  if (!own_memory.is_complete) find_own_memory();
  if (launch->races == NULL && (launch->races = watch_races(launch)) == NULL) return false;
  if (worker->order == NULL) {
    worker->order = (Order*)calloc(1, sizeof(Order));
    if (worker->order == NULL) return false;
    worker->order->shared = {own_memory.thread_local_data, true, NULL, NULL};
    if (!has_cells(&worker->order->shared)) return forget_order(worker), false;
  }
  Order* order = worker->order;
  order->races = launch->races;
  order->stacks = memory_at(worker->stacks, worker->capacity * kStack);
  order->dynamic_shared = memory_at(__jitload_dynamic_shared, JITLOAD_MOST_SHARED);
  order->shared_end = order->dynamic_shared.begin + block->shared_bytes;
  for (const Watched*& recent : order->recent) recent = &order->shared;
  memcpy(jitload_cpu_block_dim, block->block_dim, sizeof jitload_cpu_block_dim);
  memcpy(jitload_cpu_grid_dim, block->grid_dim, sizeof jitload_cpu_grid_dim);
  jitload_cpu_shared_bytes = block->shared_bytes;
  return true;
}

__attribute__((noinline)) const Watched* search_watched(Order* order, uintptr_t begin, size_t size) {
  if (contains(order->stacks, begin, size)) return NULL;
  const Watched** recent = &order->recent[(begin >> 12) % kRecent];
  if (contains(order->shared.memory, begin, size)) return *recent = &order->shared;
  const Races* races = order->races;
  for (int i = 0; i < races->count; ++i) {
    if (contains(races->watched[i].memory, begin, size)) return *recent = &races->watched[i];
  }
  return NULL;
}

/* Return the range that contains an access, or NULL. */
inline const Watched* find_watched(Order* order, uintptr_t begin, size_t size) {
  const Watched* recent = order->recent[(begin >> 12) % kRecent];
  return __builtin_expect(contains(recent->memory, begin, size), 1) ? recent : search_watched(order, begin, size);
}

/* ---- the order of accesses ---------------------------------------------------------------------------------------- */

/* Return whether atomics may have ordered an access of another block before what the current block does now. The other
 * block may still run, on another worker. It takes notice of its atomics before their effects can be seen. */
__attribute__((noinline)) bool is_released(const Races* races, const Access* access) {
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&races->block_times[access->block], __ATOMIC_RELAXED) > access->time();
}

/* Return whether atomics or operations of warps may have ordered an access of the current block before what a thread
 * does now. */
__attribute__((noinline)) bool is_ordered_in_part(const Order* order, const Access* access, uint32_t thread) {
  const uint64_t time = access->time();
  const uint32_t other = access->thread();
  if (order->warp_times[other / kWarp] <= time && order->lane_times[other] <= time) return false;
  if (other / kWarp != thread / kWarp) {
    return order->warp_times[other / kWarp] > time && order->warp_times[thread / kWarp] > time;
  }
  return (order->lane_times[other] > time && order->lane_times[thread] > time) ||
         (order->atomic_times[other] > time && order->atomic_times[thread] > time);
}

/* Return whether something after an access may order it before what a thread of the current block does now. */
inline __attribute__((always_inline)) bool is_ordered(const Order* order, const Access* access, uint32_t thread,
                                                      bool is_shared) {
  const uint64_t time = access->time();
  if (time == 0) return true;
  if (access->block != order->block) return is_shared || (order->has_atomics && is_released(order->races, access));
  if (order->block_time > time || access->thread() == thread) return true;
  return order->part_time > time && is_ordered_in_part(order, access, thread);
}

/* An access that is made now. */
struct Now {
  Worker* worker;
  const Order* order;
  const Watched* watched;
  uint32_t thread;
  bool is_write;
  Access access;
};

/* Write where an access is, such as "byte 4 of 'x'". */
void describe_address(const Now* now, uintptr_t address, char* text, size_t size) {
  const jitload_cpu_region* tensor = nearest_tensor(now->worker->launch->call, address);
  if (contains(now->order->dynamic_shared, address)) {
    snprintf(text, size, "byte %zu of dynamic shared memory", (size_t)(address - now->order->dynamic_shared.begin));
  } else if (now->watched->is_shared) {
    snprintf(text, size, "shared memory");
  } else if (tensor != NULL && contains({tensor->begin, tensor->end}, address)) {
    snprintf(text, size, "byte %zu of '%.48s'", (size_t)(address - tensor->begin), tensor->name);
  } else {
    snprintf(text, size, "a variable of the module");
  }
}

const char* kind_of(bool is_write, bool is_atomic) {
  return is_atomic ? "an atomic operation" : is_write ? "a write" : "a read";
}

[[noreturn]] void report_race(const Now* now, const Access* other, bool was_write, uintptr_t address) {
  Worker* worker = now->worker;
  Launch* launch = worker->launch;
  const uint32_t* block_dim = worker->block.block_dim;
  const uint32_t number = other->thread();
  char place[96], text[320], whose[96] = "";
  describe_address(now, address, place, sizeof place);
  snprintf(text, sizeof text, "a race: %s of %u bytes at %s and another access are not ordered,",
           kind_of(now->is_write, now->access.is_atomic()), now->access.size(), place);
  worker->fault_address = code_base + now->access.code - 1;
  if (!fail(worker, worker->current->index, "%s", text)) leave(worker);
  launch->other_address = code_base + other->code - 1;
  if (other->block != now->order->block) {
    jitload_cpu_block block = worker->block;
    go_to_block(&block, other->block);
    const uint32_t* index = block.block_index;
    snprintf(whose, sizeof whose, " of block (%u, %u, %u)", index[0], index[1], index[2]);
  }
  snprintf(launch->other, sizeof launch->other, "; the other is %s by thread (%u, %u, %u)%s",
           kind_of(was_write, other->is_atomic()), number % block_dim[0], number / block_dim[0] % block_dim[1],
           number / block_dim[0] / block_dim[1], whose);
  leave(worker);
}

/* ---- the cells of a word ------------------------------------------------------------------------------------------ */

/* Lock the cells of a word of global memory. Until they are unlocked, the worker is not interrupted. */
inline void lock(const Now* now, Cell* cell) {
  if (now->watched->is_shared) return;
  now->worker->is_uninterruptible = 1;
  uint64_t bits = __atomic_load_n(&cell->write.bits, __ATOMIC_RELAXED) & ~kLocked;
  while (__builtin_expect(!__atomic_compare_exchange_n(&cell->write.bits, &bits, bits | kLocked, true, __ATOMIC_ACQUIRE,
                                                       __ATOMIC_RELAXED), 0)) {
    if (bits & kLocked) sched_yield();
    bits &= ~kLocked;
  }
}

inline void unlock(const Now* now, Cell* cell) {
  if (now->watched->is_shared) return;
  __atomic_store_n(&cell->write.bits, cell->write.bits & ~kLocked, __ATOMIC_RELEASE);
  now->worker->is_uninterruptible = 0;
}

inline __attribute__((always_inline)) bool conflicts(const Now* now, const Access* other, bool has_read) {
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const bool is_harmless_read = has_read && !now->watched->is_shared;
  const bool is_atomic = now->access.is_atomic();
  if (other->is_atomic() ? is_atomic || is_harmless_read : is_harmless_read && is_atomic) return false;
  return !is_ordered(now->order, other, now->thread, now->watched->is_shared);
}

/* Functions that are not inlined take a copy of the access, so that it stays in registers where they are not called. */
__attribute__((noinline)) void report_conflict(Now now, Cell* word, const Cell* cell, const Access* access,
                                               uintptr_t address) {
  const Access other = *access;
  unlock(&now, word);
  report_race(&now, &other, access == &cell->write, address);
}

/* Report an access if it races with those of a cell of the word. */
inline __attribute__((always_inline)) void compare(const Now* now, Cell* word, const Cell* cell, uintptr_t address) {
  const Access* other = &cell->write;
  bool has_conflict = conflicts(now, other, !now->is_write);
  for (int i = 0; now->is_write && !has_conflict && i < 2; ++i) {
    has_conflict = conflicts(now, other = &cell->reads[i], true);
  }
  if (__builtin_expect(has_conflict, 0)) report_conflict(*now, word, cell, other, address);
}

inline __attribute__((always_inline)) void record_write(const Now* now, Cell* cell) {
  /* An atomic of the thread that has just written orders no other atomics after its write. */
  const Access* last = &cell->write;
  const bool is_last = last->block == now->order->block && last->thread() == now->thread;
  if (now->access.is_atomic() && !last->is_atomic() && is_last && last->time() >= now->order->block_time) return;
  const uint64_t flags = cell->write.bits & (kSplit | kLocked);
  *cell = {now->access, {}};
  cell->write.bits |= flags;
}

/* Store a read. Of a word that two blocks have read, a read of each is kept, so that any write is a race with one. */
inline __attribute__((always_inline)) void record_read(const Now* now, Cell* cell) {
  Access* reads = cell->reads;
  const bool is_shared = now->watched->is_shared;
  /* A read that is ordered before this one is ordered before what this one is. */
  if (is_ordered(now->order, &reads[0], now->thread, is_shared)) {
    reads[0] = now->access;
    return;
  }
  if (is_shared || reads[0].block == reads[1].block || is_ordered(now->order, &reads[1], now->thread, false)) {
    reads[1] = now->access;
  }
  const bool is_plain = !reads[0].is_atomic() && !reads[1].is_atomic();
  if (!is_shared && reads[0].block != reads[1].block && is_plain) cell->write.bits |= kReadByTwo;
}

inline __attribute__((always_inline)) void record(const Now* now, Cell* cell) {
  now->is_write ? record_write(now, cell) : record_read(now, cell);
}

/* Watch an access of some of the bytes of a word, or of a word whose bytes have cells of their own. */
__attribute__((noinline)) void watch_bytes(Now now, Cell* cell, uintptr_t word, uintptr_t begin, uintptr_t end) {
  Cell* bytes = &now.watched->bytes[(word / 4 - now.watched->memory.begin / 4) * 4];
  const bool is_whole = word >= begin && word + 4 <= end;
  compare(&now, cell, cell, word < begin ? begin : word);
  cell->write.bits |= kSplit;
  for (uintptr_t byte = word < begin ? begin : word; byte < word + 4 && byte < end; ++byte) {
    compare(&now, cell, &bytes[byte - word], byte);
    if (!is_whole) record(&now, &bytes[byte - word]);
  }
  if (is_whole) record(&now, cell);
}

inline __attribute__((always_inline)) void watch_words(const Now* now, uintptr_t begin, uintptr_t end) {
  for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
    Cell* cell = &now->watched->words[word / 4 - now->watched->memory.begin / 4];
    const uint64_t flags = __atomic_load_n(&cell->write.bits, __ATOMIC_RELAXED) & ~kLocked;
    if (!now->is_write && flags == kReadByTwo) continue; /* only reads, and no further one need be kept */
    lock(now, cell);
    if (word < begin || word + 4 > end || (cell->write.bits & kSplit)) {
      watch_bytes(*now, cell, word, begin, end);
    } else {
      compare(now, cell, cell, word);
      record(now, cell);
    }
    unlock(now, cell);
  }
}

enum Kind { kRead, kWrite, kAtomic, kAtomicRead };

inline __attribute__((always_inline)) void watch_access(const void* memory, size_t size, Kind kind, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  Order* order = worker == NULL ? NULL : worker->order;
  if (order == NULL || !order->is_active || size == 0) return;
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  const Watched* watched = find_watched(order, begin, size);
  const bool is_beyond = end > order->shared_end && begin < order->dynamic_shared.end;
  if (__builtin_expect(watched == NULL || (watched->is_shared && is_beyond), 0)) {
    check(memory, size, kind == kWrite || kind == kAtomic, code);
  }
  const uint32_t thread = worker->current->number;
  const bool is_atomic = kind == kAtomic || kind == kAtomicRead;
  if (watched != NULL) {
    const int32_t place = (int32_t)((const char*)code - code_base);
    const Access access = make_access(order->time, thread, order->block, size, is_atomic, place);
    const Now now = {worker, order, watched, thread, kind == kWrite || kind == kAtomic, access};
    watch_words(&now, begin, end);
  }
  if (is_atomic) order_atomic(order, thread);
}

__attribute__((noinline)) void watch_rare_access(const void* memory, size_t size, Kind kind, const void* code) {
  watch_access(memory, size, kind, code);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ----------------------------------------------------------------------------- */

#define JITLOAD_HOOK extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_ACCESS(p, size, is_write) watch_access(p, size, is_write ? kWrite : kRead, JITLOAD_HERE_)
#define JITLOAD_RARE_ACCESS(p, size, is_write) watch_rare_access(p, size, is_write ? kWrite : kRead, JITLOAD_HERE_)
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                              \
  watch_rare_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_); \
  jitload_cpu_step(jitload_cpu_current_worker, p, is_write, JITLOAD_HERE_)
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write)                                \
  watch_rare_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_); \
  jitload_cpu_atomic(jitload_cpu_current_worker)
#include <jitload/accesses.h>
