/* The functions that kernels compiled with sanitize="race" call for each access to memory; see races.h. */

extern "C" __attribute__((visibility("hidden"))) void __tsan_init() { has_race_checks = true; }

namespace {

/* ---- the memory that is watched --------------------------------------------------------------------------------- */

/* Allocate zeros; return NULL if there is not enough memory. */
void* allocate_zeros(size_t size) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

size_t shadow_size(Memory memory) { return ((memory.end + 3) / 4 - memory.begin / 4) * sizeof(Shadow); }

void free_shadow(Watched* watched) {
  if (watched->shadow != NULL) munmap(watched->shadow + watched->memory.begin / 4, shadow_size(watched->memory));
  watched->shadow = NULL;
}

/* Allocate the shadow of a range; return whether there is enough memory. */
bool make_shadow(Watched* watched, Memory memory, bool is_shared) {
  Shadow* shadow = (Shadow*)allocate_zeros(shadow_size(memory));
  if (shadow == NULL) return false;
  if (!is_shared) madvise(shadow, shadow_size(memory), MADV_HUGEPAGE);
  *watched = {memory, shadow - memory.begin / 4, is_shared};
  return true;
}

/* Add a range. Ranges that overlap, such as those of two tensors of one memory, become one. */
void add_memory(Races* races, Memory memory) {
  if (memory.begin >= memory.end) return;
  for (int i = 0; i < races->count; ++i) {
    const Memory other = races->watched[i].memory;
    if (memory.end <= other.begin || memory.begin >= other.end) continue;
    if (other.begin < memory.begin) memory.begin = other.begin;
    if (other.end > memory.end) memory.end = other.end;
    races->watched[i] = races->watched[--races->count];
    i = -1;
  }
  races->watched[races->count++].memory = memory;
}

void free_races(Races* races) {
  if (races == NULL) return;
  __atomic_sub_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < races->count; ++i) free_shadow(&races->watched[i]);
  free(races->watched);
  munmap(races, sizeof *races);
}

/* Return the state for a launch, or NULL if there is not enough memory. */
Races* make_races(const jitload_cpu_launch* call) {
  Races* races = (Races*)allocate_zeros(sizeof(Races));
  if (races == NULL) return NULL;
  __atomic_add_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  races->next_epoch = kEpochsAtOnce; /* so that the first one is not 0 */
  races->watched = (Watched*)calloc((size_t)(call->tensor_count + own_memory.segment_count), sizeof(Watched));
  if (races->watched == NULL) return free_races(races), (Races*)NULL;
  for (int i = 0; i < call->tensor_count; ++i) add_memory(races, {call->tensors[i].begin, call->tensors[i].end});
  for (int i = 0; i < own_memory.segment_count; ++i) add_memory(races, own_memory.segments[i]);
  for (int i = 0; i < races->count; ++i) {
    Watched* watched = &races->watched[i];
    watched->shadow = NULL;
    if (!make_shadow(watched, watched->memory, false)) return free_races(races), (Races*)NULL;
  }
  return races;
}

/* Let a worker watch the blocks of its launch; return whether there is enough memory. */
bool watch_launch(Worker* worker) {
  Launch* launch = worker->launch;
  Order* order = worker->order;
  const jitload_cpu_block* block = &launch->call->block;
  if (own_code.end - own_code.begin > kLastCode) {
    return fail(worker, NULL, "more than 4 MiB of code, which sanitize=\"race\" cannot watch,"), false;
  }
  if (!own_memory.is_complete) find_own_memory();
  if (launch->races == NULL && (launch->races = make_races(launch->call)) == NULL) return false;
  const uintptr_t dynamic = (uintptr_t)__jitload_dynamic_shared;
  order->unused_shared = {dynamic + block->shared_bytes, dynamic + JITLOAD_MOST_SHARED};
  free_shadow(&order->shared);
  if (!make_shadow(&order->shared, own_memory.thread_local_data, true)) return false;
  order->races = launch->races;
  order->next_epoch = 0;
  memset(order->lane_epochs, 0, sizeof order->lane_epochs);
  memset(order->atomic_epochs, 0, sizeof order->atomic_epochs);
  memset(order->warp_epochs, 0, sizeof order->warp_epochs);
  memcpy(jitload_cpu_block_dim, block->block_dim, sizeof jitload_cpu_block_dim);
  memcpy(jitload_cpu_grid_dim, block->grid_dim, sizeof jitload_cpu_grid_dim);
  jitload_cpu_shared_bytes = block->shared_bytes;
  return true;
}

/* Return the range that contains an access, or NULL. */
inline const Watched* find_watched(const Order* order, uintptr_t begin, size_t size) {
  if (contains(order->shared.memory, begin, size)) {
    return begin + size > order->unused_shared.begin && begin < order->unused_shared.end ? NULL : &order->shared;
  }
  const Races* races = order->races;
  for (int i = 0; i < races->count; ++i) {
    if (contains(races->watched[i].memory, begin, size)) return &races->watched[i];
  }
  return NULL;
}

/* ---- the order of accesses -------------------------------------------------------------------------------------- */

/* The access that is made now: its part in a word, and the range that the word is in. */
struct Current {
  const Order* order;
  const Watched* watched;
  Access access;
  size_t size;
};

/* Return the number of the block that made an access. */
uint32_t block_of(const Current& now, Access access) {
  return now.watched->is_shared ? now.order->block : now.order->races->epoch_blocks[access.epoch];
}

/* Return whether something after an access may order it before what is done now. */
bool is_ordered(const Current& now, Access access) {
  const Order* order = now.order;
  const uint32_t thread = now.access.thread, other = access.thread, epoch = access.epoch;
  const uint32_t block = block_of(now, access);
  if (block != order->block) {
    /* The other block, which may still run, takes notice of its atomics before others can see their effects. */
    const uint32_t* last = &order->races->atomic_epochs[block % kEpochs];
    return order->has_atomics && __atomic_load_n(last, __ATOMIC_ACQUIRE) > epoch;
  }
  const auto are_after = [=](const uint32_t* epochs, uint32_t a, uint32_t b) {
    return epochs[a] > epoch && epochs[b] > epoch;
  };
  if (epoch < order->block_epoch || other == thread) return true;
  if (other / kWarp != thread / kWarp) return are_after(order->warp_epochs, other / kWarp, thread / kWarp);
  return are_after(order->lane_epochs, other, thread) || are_after(order->atomic_epochs, other, thread);
}

/* Write where an access is, such as "byte 4 of 'x'". */
void describe_address(const Current& now, uintptr_t address, char* text, size_t size) {
  const jitload_cpu_region* tensor = nearest_tensor(jitload_cpu_current_worker->launch->call, address);
  const uintptr_t dynamic = (uintptr_t)__jitload_dynamic_shared;
  if (contains({dynamic, dynamic + JITLOAD_MOST_SHARED}, address)) {
    snprintf(text, size, "byte %zu of dynamic shared memory", (size_t)(address - dynamic));
  } else if (now.watched->is_shared) {
    snprintf(text, size, "shared memory");
  } else if (tensor != NULL && contains({tensor->begin, tensor->end}, address)) {
    snprintf(text, size, "byte %zu of '%.48s'", (size_t)(address - tensor->begin), tensor->name);
  } else {
    snprintf(text, size, "a variable of the module");
  }
}

const char* kind_of(Access access) {
  return access.is_atomic ? "an atomic operation" : access.is_write ? "a write" : "a read";
}

/* Return an address within the call instruction of an access. */
const void* code_address_of(Access access) {
  return (const void*)(own_code.begin + ((access.code - own_code.begin) & kLastCode) - 1);
}

[[noreturn]] void report_race(const Current& now, Access other, uintptr_t address) {
  Worker* worker = jitload_cpu_current_worker;
  Launch* launch = worker->launch;
  const uint32_t* block_dim = worker->block.block_dim;
  const uint32_t number = other.thread;
  char where[96], text[320], whose[96] = "";
  describe_address(now, address, where, sizeof where);
  snprintf(text, sizeof text, "a race: %s of %zu bytes at %s and another access are not ordered,",
           kind_of(now.access), now.size, where);
  worker->fault_address = code_address_of(now.access);
  if (!fail(worker, worker->current->index, "%s", text)) leave(worker);
  launch->other_address = code_address_of(other);
  if (block_of(now, other) != now.order->block) {
    jitload_cpu_block block = worker->block;
    go_to_block(&block, block_of(now, other));
    const uint32_t* index = block.block_index;
    snprintf(whose, sizeof whose, " of block (%u, %u, %u)", index[0], index[1], index[2]);
  }
  snprintf(launch->other, sizeof launch->other, "; the other is %s by thread (%u, %u, %u)%s",
           kind_of(other), number % block_dim[0], number / block_dim[0] % block_dim[1],
           number / block_dim[0] / block_dim[1], whose);
  leave(worker);
}

/* ---- the accesses to a word ------------------------------------------------------------------------------------- */

/* Report the last access to some of the same bytes if it races with the one that is made now. Return whether every race
 * with the last one is from now on also a race with this one. */
__attribute__((noinline)) bool replaces(const Current& now, Access last, uintptr_t word) {
  const Access access = now.access;
  const bool is_before = (access.is_atomic && last.is_atomic) || is_ordered(now, last);
  const bool has_write = access.is_write || last.is_write, has_read = !access.is_write || !last.is_write;
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const bool may_be_loop = has_read && access.is_atomic != last.is_atomic && !now.watched->is_shared;
  if (!is_before && has_write && !may_be_loop) {
    report_race(now, last, word + (uint32_t)__builtin_ctzll(last.bytes & access.bytes));
  }
  return is_before && last.is_atomic >= access.is_atomic && access.is_write >= last.is_write &&
         (last.bytes & ~access.bytes) == 0;
}

/* Compare an access with those that the shadow of its word keeps, and keep it, too. If there is no room, it takes the
 * place of another one, but a read not that of a write. What is older than the epoch `oldest` is ordered. */
__attribute__((noinline)) void compare_with_shadow(const Current& now, uintptr_t word, uint32_t oldest, Access* last_resort) {
  Access* const shadow = now.watched->shadow[word / 4];
  const Access access = now.access;
  Access* target = NULL;
  for (Access* kept = shadow; kept < shadow + 4; ++kept) {
    const Access last = {__atomic_load_n(&kept->bits, __ATOMIC_ACQUIRE)}; /* another worker may replace it */
    if (last.epoch < oldest) {
      if (target == NULL) target = kept;
      break;
    }
    const bool are_reads = !access.is_write && !last.is_write;
    if ((last.bytes & access.bytes) == 0 || (are_reads && last.thread != access.thread)) continue;
    const bool is_repeated = last.epoch == access.epoch && last.thread == access.thread &&
                             last.is_atomic == access.is_atomic && last.bytes == access.bytes;
    if (is_repeated && last.is_write >= access.is_write) return;
    if (replaces(now, last, word)) target = kept;
  }
  if (target == NULL && (access.is_write || !last_resort->is_write)) target = last_resort;
  if (target != NULL) target->bits = access.bits;
}

inline __attribute__((always_inline)) void watch_word(const Current& now, uintptr_t word) {
  Access* const shadow = now.watched->shadow[word / 4];
  const Access access = now.access;
  const uint32_t oldest = now.watched->is_shared ? now.order->block_epoch : 1;
  if (shadow->epoch < oldest) return (void)(shadow->bits = access.bits);
  Access* const last_resort = &shadow[(now.watched->is_shared ? access.thread : now.order->block) % 4];
  const Access all = {shadow[0].bits | shadow[1].bits | shadow[2].bits | shadow[3].bits | access.bits};
  /* Many threads read a word. Then there is a read of this epoch, and in global memory usually one of another block. */
  const bool is_full = shadow[3].epoch >= oldest && last_resort->epoch == access.epoch;
  if (!is_full || all.is_write || all.is_atomic) compare_with_shadow(now, word, oldest, last_resort);
}

__attribute__((noinline)) void check_unwatched(const void* memory, size_t size, bool is_write, const void* code) {
  if (!is_of_threads(jitload_cpu_current_worker, (uintptr_t)memory, size)) check(memory, size, is_write, code);
}

inline __attribute__((always_inline)) void watch_access(const Order* order, const void* memory, size_t size,
                                                        bool is_write, bool is_atomic, const void* code) {
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  if (order->epoch == 0 || size == 0) return;
  const Watched* watched = find_watched(order, begin, size);
  if (__builtin_expect(watched == NULL, 0)) return check_unwatched(memory, size, is_write, code);
  const uint64_t bits = order->bits | (uint64_t)is_write << 4 | (uint64_t)is_atomic << 5 | ((uintptr_t)code & kLastCode) << 6;
  for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
    uint64_t bytes = 15;
    if (word < begin) bytes = 15 << (begin - word) & 15;
    if (word + 4 > end) bytes &= 15 >> (word + 4 - end);
    watch_word({order, watched, {bits | bytes}, size}, word);
  }
  if (is_atomic) order_atomic(jitload_cpu_current_worker, order->thread);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ------------------------------------------------------------------------- */

#define JITLOAD_HOOK extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_FRAME_ __builtin_frame_address(0)
#define JITLOAD_ACCESS(p, size, is_write) \
  if (race_launches != 0) watch_access(*order_of_stack(JITLOAD_FRAME_), p, size, is_write, false, JITLOAD_HERE_)
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                               \
  watch_access(&jitload_cpu_race_order, p, size, is_write, true, JITLOAD_HERE_); \
  jitload_cpu_step(jitload_cpu_current_worker, p, is_write, JITLOAD_HERE_)
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write)                                 \
  watch_access(&jitload_cpu_race_order, p, size, is_write, true, JITLOAD_HERE_); \
  jitload_cpu_atomic(jitload_cpu_current_worker)
#include <jitload/accesses.h>
