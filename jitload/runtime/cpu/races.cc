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
bool make_shadow(Watched* watched) {
  Shadow* shadow = (Shadow*)allocate_zeros(shadow_size(watched->memory));
  if (shadow == NULL) return false;
  madvise(shadow, shadow_size(watched->memory), MADV_HUGEPAGE);
  watched->shadow = shadow - watched->memory.begin / 4;
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
  munmap(races, sizeof *races);
}

/* Return the state for a launch, or NULL if there is not enough memory. */
Races* make_races(const jitload_cpu_launch* call) {
  Races* races = call->tensor_count <= kMostTensors ? (Races*)allocate_zeros(sizeof(Races)) : NULL;
  if (races == NULL) return NULL;
  __atomic_add_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  races->next_epoch = kEpochsAtOnce; /* so that the first one is not 0 */
  for (int i = 0; i < call->tensor_count; ++i) add_memory(races, {call->tensors[i].begin, call->tensors[i].end});
  for (int i = 0; i < own_memory.segment_count; ++i) add_memory(races, own_memory.segments[i]);
  for (int i = 0; i < races->count; ++i) {
    if (!make_shadow(&races->watched[i])) return free_races(races), (Races*)NULL;
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
  free_shadow(&order->shared);
  *order = Order();
  order->races = launch->races;
  order->shared.memory = own_memory.thread_local_data;
  order->unused_shared = {dynamic + block->shared_bytes, dynamic + JITLOAD_MOST_SHARED};
  memcpy(jitload_cpu_block_dim, block->block_dim, sizeof jitload_cpu_block_dim);
  memcpy(jitload_cpu_grid_dim, block->grid_dim, sizeof jitload_cpu_grid_dim);
  jitload_cpu_shared_bytes = block->shared_bytes;
  return make_shadow(&order->shared);
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

bool is_shared(const Current& now) { return now.watched == &now.order->shared; }

/* Return whether something after an access may order it before what is done now. */
bool is_ordered(const Current& now, Access access) {
  const Order* order = now.order;
  const uint32_t thread = now.access.thread, other = access.thread, epoch = access.epoch;
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
  const uint32_t* dim = worker->block.block_dim;
  const uint32_t number = other.thread;
  const uint32_t index[3] = {number % dim[0], number / dim[0] % dim[1], number / dim[0] / dim[1]};
  char place[256];
  describe_address(launch->call, address, place, sizeof place);
  worker->fault_address = code_address_of(now.access);
  if (!fail(worker, worker->current->index, "a race: %s of %zu bytes %s, and another access are not ordered,",
            kind_of(now.access), now.size, place)) {
    leave(worker);
  }
  launch->other_address = code_address_of(other);
  snprintf(launch->other, sizeof launch->other, "; the other is %s", kind_of(other));
  go_to_block(&worker->block, now.order->races->epoch_blocks[other.epoch]);
  append_place(launch->other, sizeof launch->other, worker, index);
  leave(worker);
}

/* ---- the accesses to a word ------------------------------------------------------------------------------------- */

/* Report a race with an access that the shadow of a word keeps. Otherwise keep this access, too. If there is no room, it
 * takes the place of another one, but a read not that of a write. What is older than the epoch `oldest` is ordered. */
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
    const uint64_t common = last.bytes & access.bytes;
    const bool has_write = access.is_write || last.is_write, has_read = !access.is_write || !last.is_write;
    if (common == 0 || (!has_write && last.thread != access.thread)) continue;
    const bool is_like = last.is_atomic == access.is_atomic, is_more = last.is_write >= access.is_write;
    if (last.epoch == access.epoch && last.thread == access.thread && is_like && is_more && last.bytes == access.bytes) return;
    const bool is_before = (access.is_atomic && last.is_atomic) || is_ordered(now, last);
    /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
    const bool may_be_loop = has_read && !is_like && !is_shared(now);
    if (!is_before && has_write && !may_be_loop) report_race(now, last, word + (uint32_t)__builtin_ctzll(common));
    /* Is every race with the last access from now on also a race with this one? */
    const bool is_less = last.is_atomic >= access.is_atomic && access.is_write >= last.is_write;
    if (is_before && is_less && (last.bytes & ~access.bytes) == 0) target = kept;
  }
  if (target == NULL && (access.is_write || !last_resort->is_write)) target = last_resort;
  if (target != NULL) target->bits = access.bits;
}

inline __attribute__((always_inline)) void watch_word(const Current& now, uintptr_t word) {
  Access* const shadow = now.watched->shadow[word / 4];
  const Access access = now.access;
  const uint32_t oldest = is_shared(now) ? now.order->block_epoch : 1;
  if (shadow->epoch < oldest) return (void)(shadow->bits = access.bits);
  Access* const last_resort = &shadow[now.order->block % 4];
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
