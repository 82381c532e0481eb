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

__attribute__((noinline)) const Watched* search_watched(Races* races, uintptr_t begin, size_t size) {
  for (int i = 0; i < races->count; ++i) {
    if (!contains(races->watched[i].memory, begin, size)) continue;
    races->recent[(begin >> 12) % kRecent] = (uint8_t)i;
    return &races->watched[i];
  }
  return NULL;
}

/* Return the range that contains an access, or NULL. */
inline const Watched* find_watched(Races* races, uintptr_t begin, size_t size) {
  const Watched* recent = &races->watched[races->recent[(begin >> 12) % kRecent]];
  return __builtin_expect(contains(recent->memory, begin, size), 1) ? recent : search_watched(races, begin, size);
}

/* Watch a range. Ranges that overlap, such as those of two tensors of one memory, become one. */
void watch_memory(Races* races, Memory memory, bool is_shared) {
  Memory valid = memory;
  memory = {memory.begin & ~(uintptr_t)3, (memory.end + 3) & ~(uintptr_t)3};
  if (memory.begin >= memory.end) return;
  for (int i = 0; i < races->count; ++i) {
    Watched* other = &races->watched[i];
    if (memory.end <= other->memory.begin || memory.begin >= other->memory.end) continue;
    if (other->memory.begin < memory.begin) memory.begin = other->memory.begin;
    if (other->memory.end > memory.end) memory.end = other->memory.end;
    *other = races->watched[--races->count];
    valid = {};
    i = -1;
  }
  if (races->count < kMostWatched) races->watched[races->count++] = {memory, valid, is_shared, NULL, NULL};
}

void forget_races(Races* races) {
  if (races == NULL) return;
  for (int i = 0; i < races->count; ++i) {
    Watched* watched = &races->watched[i];
    const size_t bytes = watched->memory.end - watched->memory.begin;
    if (watched->words != NULL) munmap(watched->words, bytes / 4 * sizeof(Cell));
    if (watched->bytes != NULL) munmap(watched->bytes, bytes * sizeof(Cell));
  }
  if (races->block_times != NULL) munmap(races->block_times, races->blocks * 8);
  free(races);
}

/* Return the state for a launch on this thread, or NULL if there is not enough memory. */
Races* watch_races(const Worker* worker, uint64_t blocks) {
  const jitload_cpu_launch* call = worker->launch->call;
  Races* races = (Races*)calloc(1, sizeof(Races));
  if (races == NULL) return NULL;
  races->stacks = memory_at(worker->stacks, worker->capacity * kStack);
  races->dynamic_shared = memory_at(__jitload_dynamic_shared, JITLOAD_MOST_SHARED);
  for (int i = 0; i < call->tensor_count; ++i) {
    watch_memory(races, {call->tensors[i].begin, call->tensors[i].end}, false);
  }
  if (!own_memory.is_complete) find_own_memory();
  for (int i = 0; i < own_memory.segment_count; ++i) watch_memory(races, own_memory.segments[i], false);
  watch_memory(races, own_memory.thread_local_data, true);
  races->blocks = blocks;
  void* times = mmap(NULL, blocks * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool is_whole = times != MAP_FAILED;
  races->block_times = is_whole ? (uint64_t*)times : NULL;
  for (int i = 0; is_whole && i < races->count; ++i) {
    Watched* watched = &races->watched[i];
    const size_t bytes = watched->memory.end - watched->memory.begin;
    watched->words = (Cell*)reserve_cells(bytes / 4);
    watched->bytes = (Cell*)reserve_cells(bytes);
    is_whole = watched->words != NULL && watched->bytes != NULL;
  }
  if (is_whole) return races;
  forget_races(races);
  return NULL;
}

/* ---- the order of accesses ---------------------------------------------------------------------------------------- */

/* Return whether atomics or operations of warps after an access may order it, as described for `is_ordered`. */
__attribute__((noinline)) bool is_ordered_in_part(const Races* races, const Access* access, uint32_t thread) {
  const uint64_t time = access->time();
  const uint32_t other = access->thread();
  if (access->block != races->block) {
    return races->block_times[access->block] > time && races->block_times[races->block] > time;
  }
  if (races->warp_times[other / kWarp] <= time && races->lane_times[other] <= time) return false;
  if (other / kWarp != thread / kWarp) {
    return races->warp_times[other / kWarp] > time && races->warp_times[thread / kWarp] > time;
  }
  return (races->lane_times[other] > time && races->lane_times[thread] > time) ||
         (races->atomic_times[other] > time && races->atomic_times[thread] > time);
}

/* Return whether something after an access may order it before what a thread of the current block does now. */
inline __attribute__((always_inline)) bool is_ordered(const Races* races, const Access* access, uint32_t thread, bool is_shared) {
  const uint64_t time = access->time();
  if (time == 0) return true;
  const bool is_own = access->block == races->block;
  if (is_own ? races->block_time > time || access->thread() == thread : is_shared) return true;
  return races->part_time > time && is_ordered_in_part(races, access, thread);
}

const char* kind_of(bool is_write, bool is_atomic) {
  return is_atomic ? "an atomic operation" : is_write ? "a write" : "a read";
}

__attribute__((noinline)) void report_race(Worker* worker, const Access* other, bool was_write, const Access* access,
                                           bool is_write, uintptr_t address, const Watched* watched) {
  const jitload_cpu_launch* call = worker->launch->call;
  const uintptr_t shared = (uintptr_t)__jitload_dynamic_shared;
  const jitload_cpu_region* tensor = watched->is_shared ? NULL : nearest_tensor(call, address);
  const uint32_t* block_dim = worker->block.block_dim;
  jitload_cpu_block block = worker->block;
  go_to_block(&block, other->block);
  char place[96];
  const uint32_t number = other->thread();
  if (watched->is_shared && address >= shared && address < shared + JITLOAD_MOST_SHARED) {
    snprintf(place, sizeof place, "byte %zu of dynamic shared memory", (size_t)(address - shared));
  } else if (watched->is_shared) {
    snprintf(place, sizeof place, "shared memory");
  } else if (tensor != NULL && contains({tensor->begin, tensor->end}, address)) {
    snprintf(place, sizeof place, "byte %zu of '%.48s'", (size_t)(address - tensor->begin), tensor->name);
  } else {
    snprintf(place, sizeof place, "a variable of the module");
  }
  Launch* launch = worker->launch;
  launch->other_address = code_base + other->code - 1;
  char whose[96] = "";
  if (other->block != worker->launch->races->block) {
    snprintf(whose, sizeof whose, " of block (%u, %u, %u)", block.block_index[0], block.block_index[1],
             block.block_index[2]);
  }
  snprintf(launch->other, sizeof launch->other, "; the other is %s by thread (%u, %u, %u)%s",
           kind_of(was_write, other->is_atomic()), number % block_dim[0], number / block_dim[0] % block_dim[1],
           number / block_dim[0] / block_dim[1], whose);
  char text[320];
  snprintf(text, sizeof text, "a race: %s of %u bytes at %s and another access are not ordered,",
           kind_of(is_write, access->is_atomic()), access->size(), place);
  report(worker, code_base + access->code - 1, text);
}

/* An access that is made now. */
struct Now {
  Worker* worker;
  const Races* races;
  const Watched* watched;
  uint32_t thread;
  bool is_write;
  Access access;
};

inline __attribute__((always_inline)) bool conflicts(const Now* now, const Access* other, bool has_read) {
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const bool is_harmless_read = has_read && !now->watched->is_shared;
  const bool is_atomic = now->access.is_atomic();
  if (other->is_atomic() ? is_atomic || is_harmless_read : is_harmless_read && is_atomic) return false;
  return !is_ordered(now->races, other, now->thread, now->watched->is_shared);
}

inline __attribute__((always_inline)) void compare(const Now* now, const Cell* cell, uintptr_t address) {
  if (__builtin_expect(conflicts(now, &cell->write, !now->is_write), 0)) {
    report_race(now->worker, &cell->write, true, &now->access, now->is_write, address, now->watched);
  }
  for (int i = 0; now->is_write && i < 2; ++i) {
    if (__builtin_expect(conflicts(now, &cell->reads[i], true), 0)) {
      report_race(now->worker, &cell->reads[i], false, &now->access, now->is_write, address, now->watched);
    }
  }
}

inline __attribute__((always_inline)) void record(const Now* now, Cell* cell) {
  if (now->is_write) {
    /* An atomic of the thread that has just written orders no other atomics after its write. */
    const Access* last = &cell->write;
    const bool is_last = last->time() >= now->races->block_time && last->thread() == now->thread;
    if (now->access.is_atomic() && is_last && !last->is_atomic() && last->block == now->races->block) return;
    const uint64_t split = cell->write.bits & kSplit;
    *cell = {now->access, {}};
    cell->write.bits |= split;
    return;
  }
  /* A read that is ordered before this one is ordered before what this one is. Of three others, the first is kept. */
  cell->reads[!is_ordered(now->races, &cell->reads[0], now->thread, now->watched->is_shared)] = now->access;
}

/* Watch an access of some of the bytes of a word, or of a word whose bytes have cells of their own. */
__attribute__((noinline)) void watch_bytes(const Now* now, uintptr_t word, uintptr_t begin, uintptr_t end) {
  const uintptr_t offset = word - now->watched->memory.begin;
  Cell* cell = &now->watched->words[offset / 4];
  Cell* bytes = &now->watched->bytes[offset];
  const bool is_whole = word >= begin && word + 4 <= end;
  compare(now, cell, word < begin ? begin : word);
  cell->write.bits |= kSplit;
  for (uintptr_t byte = word < begin ? begin : word; byte < word + 4 && byte < end; ++byte) {
    compare(now, &bytes[byte - word], byte);
    if (!is_whole) record(now, &bytes[byte - word]);
  }
  if (is_whole) record(now, cell);
}

inline __attribute__((always_inline)) void watch_words(const Now* now, uintptr_t begin, uintptr_t end) {
  for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
    Cell* cell = &now->watched->words[(word - now->watched->memory.begin) / 4];
    if (word < begin || word + 4 > end || (cell->write.bits & kSplit)) {
      watch_bytes(now, word, begin, end);
      continue;
    }
    compare(now, cell, word);
    record(now, cell);
  }
}

enum Kind { kRead, kWrite, kAtomic, kAtomicRead };

inline __attribute__((always_inline)) void watch_access(const void* memory, size_t size, Kind kind, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  Races* races = worker == NULL ? NULL : worker->races;
  if (races == NULL || size == 0) return;
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  if (contains(races->stacks, begin, size)) return;
  const uint32_t thread = worker->current->number;
  const Watched* watched = find_watched(races, begin, size);
  bool is_valid = watched != NULL && contains(watched->valid, begin, size);
  if (watched != NULL && watched->is_shared) {
    for (uintptr_t index : races->indices) {
      if (begin - index < kIndexSize) return;
    }
    is_valid = end <= races->dynamic_shared.begin || begin >= races->dynamic_shared.end;
  }
  if (__builtin_expect(!is_valid, 0)) {
    check(memory, size, kind == kWrite || kind == kAtomic, code);
  }
  if (watched != NULL) {
    const bool is_atomic = kind == kAtomic || kind == kAtomicRead;
    const int32_t place = (int32_t)((const char*)code - code_base);
    const Access access = make_access(races->time, thread, races->block, size, is_atomic, place);
    const Now now = {worker, races, watched, thread, kind == kWrite || kind == kAtomic, access};
    watch_words(&now, begin, end);
  }
  if (kind == kAtomic || kind == kAtomicRead) order_atomic(races, thread);
}

__attribute__((noinline)) void watch_rare_access(const void* memory, size_t size, Kind kind, const void* code) {
  watch_access(memory, size, kind, code);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ----------------------------------------------------------------------------- */

#define JITLOAD_HOOK_ extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_ACCESSES_(size)                                                                                    \
  JITLOAD_HOOK_ void __tsan_read##size(void* p) { watch_access(p, size, kRead, JITLOAD_HERE_); }                   \
  JITLOAD_HOOK_ void __tsan_write##size(void* p) { watch_access(p, size, kWrite, JITLOAD_HERE_); }                 \
  JITLOAD_HOOK_ void __tsan_unaligned_read##size(void* p) { watch_rare_access(p, size, kRead, JITLOAD_HERE_); }         \
  JITLOAD_HOOK_ void __tsan_unaligned_write##size(void* p) { watch_rare_access(p, size, kWrite, JITLOAD_HERE_); }       \
  JITLOAD_HOOK_ void __tsan_volatile_read##size(void* p) { watch_rare_access(p, size, kAtomicRead, JITLOAD_HERE_); }    \
  JITLOAD_HOOK_ void __tsan_volatile_write##size(void* p) { watch_rare_access(p, size, kAtomic, JITLOAD_HERE_); }       \
  JITLOAD_HOOK_ void __tsan_unaligned_volatile_read##size(void* p) { watch_rare_access(p, size, kAtomicRead, JITLOAD_HERE_); } \
  JITLOAD_HOOK_ void __tsan_unaligned_volatile_write##size(void* p) { watch_rare_access(p, size, kAtomic, JITLOAD_HERE_); }
JITLOAD_ACCESSES_(1)
JITLOAD_ACCESSES_(2)
JITLOAD_ACCESSES_(4)
JITLOAD_ACCESSES_(8)
JITLOAD_ACCESSES_(16)
JITLOAD_HOOK_ void __tsan_read_range(void* p, size_t size) { watch_rare_access(p, size, kRead, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_write_range(void* p, size_t size) { watch_rare_access(p, size, kWrite, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_vptr_update(void** p, void*) { watch_rare_access(p, 8, kWrite, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_vptr_read(void** p) { watch_rare_access(p, 8, kRead, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_func_entry(void*) {}
JITLOAD_HOOK_ void __tsan_func_exit() {}
JITLOAD_HOOK_ void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
JITLOAD_HOOK_ void __tsan_atomic_signal_fence(int) {}

#define JITLOAD_FETCH_(bits, type, name)                                                       \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_fetch_##name(type* p, type v, int) {                \
    watch_rare_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                     \
    return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST);                                      \
  }
#define JITLOAD_EXCHANGE_(bits, type, strength)                                                                      \
  JITLOAD_HOOK_ int __tsan_atomic##bits##_compare_exchange_##strength(type* p, type* expected, type v, int, int) {   \
    watch_rare_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                                           \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
  }
#define JITLOAD_ATOMICS_(bits, type)                                                                  \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_load(const type* p, int) {                                 \
    watch_rare_access(p, sizeof(type), kAtomicRead, JITLOAD_HERE_);                                        \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                   \
  JITLOAD_HOOK_ void __tsan_atomic##bits##_store(type* p, type v, int) {                              \
    watch_rare_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                            \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                   \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_exchange(type* p, type v, int) {                           \
    watch_rare_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                            \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                               \
  }                                                                                                   \
  JITLOAD_FETCH_(bits, type, add)                                                                     \
  JITLOAD_FETCH_(bits, type, sub)                                                                     \
  JITLOAD_FETCH_(bits, type, and)                                                                     \
  JITLOAD_FETCH_(bits, type, or)                                                                      \
  JITLOAD_FETCH_(bits, type, xor)                                                                     \
  JITLOAD_FETCH_(bits, type, nand)                                                                    \
  JITLOAD_EXCHANGE_(bits, type, strong)                                                               \
  JITLOAD_EXCHANGE_(bits, type, weak)
JITLOAD_ATOMICS_(8, uint8_t)
JITLOAD_ATOMICS_(16, uint16_t)
JITLOAD_ATOMICS_(32, uint32_t)
JITLOAD_ATOMICS_(64, uint64_t)
