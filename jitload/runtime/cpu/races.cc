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

/* Return the range that contains an access, or NULL. */
inline const Watched* find_watched(Races* races, uintptr_t begin, size_t size) {
  if (__builtin_expect(contains(races->watched[races->last].memory, begin, size), 1)) {
    return &races->watched[races->last];
  }
  for (int i = 0; i < races->count; ++i) {
    if (contains(races->watched[i].memory, begin, size)) return &races->watched[races->last = i];
  }
  return NULL;
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
Races* watch_races(const jitload_cpu_launch* call, uint64_t blocks) {
  Races* races = (Races*)calloc(1, sizeof(Races));
  if (races == NULL) return NULL;
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

/* Return whether something after an access may order it before what a thread of the current block does now. */
inline bool is_ordered(const Races* races, const Access* access, uint32_t thread, bool is_shared) {
  const uint64_t time = access->time;
  const uint32_t other = (uint32_t)access->thread;
  if (time == 0) return true;
  if (access->block != races->block) {
    return is_shared || (races->block_times[access->block] > time && races->block_times[races->block] > time);
  }
  if (other == thread || races->block_time > time) return true;
  if (races->warp_times[other / kWarp] <= time && races->lane_times[other] <= time) return false;
  if (other / kWarp != thread / kWarp) {
    return races->warp_times[other / kWarp] > time && races->warp_times[thread / kWarp] > time;
  }
  return (races->lane_times[other] > time && races->lane_times[thread] > time) ||
         (races->atomic_times[other] > time && races->atomic_times[thread] > time);
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
  const uint32_t number = (uint32_t)other->thread;
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
           kind_of(was_write, other->is_atomic), number % block_dim[0], number / block_dim[0] % block_dim[1],
           number / block_dim[0] / block_dim[1], whose);
  char text[320];
  snprintf(text, sizeof text, "a race: %s of %u bytes at %s and another access are not ordered,",
           kind_of(is_write, access->is_atomic), (unsigned)access->size, place);
  report(worker, code_base + access->code - 1, text);
}

struct Now {
  Worker* worker;
  const Watched* watched;
  Access access;
};

inline void compare(const Now* now, const Cell* cell, bool is_write, uintptr_t address) {
  const Races* races = now->worker->launch->races;
  const uint32_t thread = (uint32_t)now->access.thread;
  const bool is_shared = now->watched->is_shared;
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const auto conflicts = [=](const Access* other, bool has_read) {
    if (other->is_atomic ? now->access.is_atomic || (has_read && !is_shared) : has_read && !is_shared && now->access.is_atomic) {
      return false;
    }
    return !is_ordered(races, other, thread, is_shared);
  };
  if (__builtin_expect(conflicts(&cell->write, !is_write), 0)) {
    report_race(now->worker, &cell->write, true, &now->access, is_write, address, now->watched);
  }
  for (int i = 0; is_write && i < 2; ++i) {
    if (__builtin_expect(conflicts(&cell->reads[i], true), 0)) {
      report_race(now->worker, &cell->reads[i], false, &now->access, is_write, address, now->watched);
    }
  }
}

inline void record(const Now* now, Cell* cell, bool is_write) {
  const Races* races = now->worker->launch->races;
  if (is_write) {
    const bool is_split = cell->write.is_split;
    *cell = {now->access, {}};
    cell->write.is_split = is_split;
    return;
  }
  /* A read that is ordered before this one is ordered before what this one is. Of three others, the first is kept. */
  const bool is_first = is_ordered(races, &cell->reads[0], (uint32_t)now->access.thread, now->watched->is_shared);
  cell->reads[!is_first] = now->access;
}

void watch_words(const Now* now, uintptr_t begin, uintptr_t end, bool is_write) {
  const uintptr_t base = now->watched->memory.begin;
  for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
    Cell* cell = &now->watched->words[(word - base) / 4];
    Cell* bytes = &now->watched->bytes[word - base];
    compare(now, cell, is_write, word < begin ? begin : word);
    const bool is_whole = word >= begin && word + 4 <= end;
    if (is_whole) {
      for (int i = 0; cell->write.is_split && i < 4; ++i) compare(now, &bytes[i], is_write, word + (uintptr_t)i);
      record(now, cell, is_write);
      continue;
    }
    cell->write.is_split = 1;
    for (uintptr_t byte = word < begin ? begin : word; byte < word + 4 && byte < end; ++byte) {
      compare(now, &bytes[byte - word], is_write, byte);
      record(now, &bytes[byte - word], is_write);
    }
  }
}

enum Kind { kRead, kWrite, kAtomic, kAtomicRead };

inline void watch_access(const void* memory, size_t size, Kind kind, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL || !worker->is_in_fibers || worker->launch->races == NULL || size == 0) return;
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  if (contains(memory_at(worker->stacks, worker->capacity * kStack), begin, size)) return;
  Races* races = worker->launch->races;
  const uint32_t thread = worker->current->number;
  const Watched* watched = find_watched(races, begin, size);
  const bool is_dynamic = begin + size > (uintptr_t)__jitload_dynamic_shared &&
                          begin < (uintptr_t)__jitload_dynamic_shared + JITLOAD_MOST_SHARED;
  if (watched == NULL || (watched->is_shared ? is_dynamic : !contains(watched->valid, begin, size))) {
    check(memory, size, kind == kWrite || kind == kAtomic, code);
  }
  if (watched != NULL) {
    Now now = {worker, watched, {}};
    now.access.time = races->time;
    now.access.thread = thread;
    now.access.is_atomic = kind == kAtomic || kind == kAtomicRead;
    now.access.size = size < 63 ? size : 63;
    now.access.block = races->block;
    now.access.code = (int32_t)((const char*)code - code_base);
    watch_words(&now, begin, end, kind == kWrite || kind == kAtomic);
  }
  if (kind == kAtomic || kind == kAtomicRead) order_atomic(races, thread);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ----------------------------------------------------------------------------- */

#define JITLOAD_HOOK_ extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_ACCESSES_(size)                                                                                    \
  JITLOAD_HOOK_ void __tsan_read##size(void* p) { watch_access(p, size, kRead, JITLOAD_HERE_); }                   \
  JITLOAD_HOOK_ void __tsan_write##size(void* p) { watch_access(p, size, kWrite, JITLOAD_HERE_); }                 \
  JITLOAD_HOOK_ void __tsan_unaligned_read##size(void* p) { watch_access(p, size, kRead, JITLOAD_HERE_); }         \
  JITLOAD_HOOK_ void __tsan_unaligned_write##size(void* p) { watch_access(p, size, kWrite, JITLOAD_HERE_); }       \
  JITLOAD_HOOK_ void __tsan_volatile_read##size(void* p) { watch_access(p, size, kAtomicRead, JITLOAD_HERE_); }    \
  JITLOAD_HOOK_ void __tsan_volatile_write##size(void* p) { watch_access(p, size, kAtomic, JITLOAD_HERE_); }       \
  JITLOAD_HOOK_ void __tsan_unaligned_volatile_read##size(void* p) { watch_access(p, size, kAtomicRead, JITLOAD_HERE_); } \
  JITLOAD_HOOK_ void __tsan_unaligned_volatile_write##size(void* p) { watch_access(p, size, kAtomic, JITLOAD_HERE_); }
JITLOAD_ACCESSES_(1)
JITLOAD_ACCESSES_(2)
JITLOAD_ACCESSES_(4)
JITLOAD_ACCESSES_(8)
JITLOAD_ACCESSES_(16)
JITLOAD_HOOK_ void __tsan_read_range(void* p, size_t size) { watch_access(p, size, kRead, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_write_range(void* p, size_t size) { watch_access(p, size, kWrite, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_vptr_update(void** p, void*) { watch_access(p, 8, kWrite, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_vptr_read(void** p) { watch_access(p, 8, kRead, JITLOAD_HERE_); }
JITLOAD_HOOK_ void __tsan_func_entry(void*) {}
JITLOAD_HOOK_ void __tsan_func_exit() {}
JITLOAD_HOOK_ void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
JITLOAD_HOOK_ void __tsan_atomic_signal_fence(int) {}

#define JITLOAD_FETCH_(bits, type, name)                                                       \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_fetch_##name(type* p, type v, int) {                \
    watch_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                     \
    return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST);                                      \
  }
#define JITLOAD_EXCHANGE_(bits, type, strength)                                                                      \
  JITLOAD_HOOK_ int __tsan_atomic##bits##_compare_exchange_##strength(type* p, type* expected, type v, int, int) {   \
    watch_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                                           \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
  }
#define JITLOAD_ATOMICS_(bits, type)                                                                  \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_load(const type* p, int) {                                 \
    watch_access(p, sizeof(type), kAtomicRead, JITLOAD_HERE_);                                        \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                   \
  JITLOAD_HOOK_ void __tsan_atomic##bits##_store(type* p, type v, int) {                              \
    watch_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                            \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                         \
  }                                                                                                   \
  JITLOAD_HOOK_ type __tsan_atomic##bits##_exchange(type* p, type v, int) {                           \
    watch_access(p, sizeof(type), kAtomic, JITLOAD_HERE_);                                            \
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
