/* The functions that kernels compiled with sanitize="race" call for each access to memory; see races.h. */

extern "C" __attribute__((visibility("hidden"))) void __tsan_init() { has_race_checks = true; }

namespace {

/* ---- the memory that is watched --------------------------------------------------------------------------------- */

constexpr size_t kMostWords = 1 << 22; /* of global memory whose accesses are kept for later launches */
constexpr size_t kMostSize = 16;       /* bytes of an access of one instruction */

/* Allocate zeros; return NULL if there is not enough memory. */
void* allocate_zeros(size_t size) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

size_t count_words(Memory memory) { return (memory.end + 3) / 4 - memory.begin / 4; }

void free_accesses(Accesses* accesses) {
  if (accesses->memory != NULL) munmap(accesses->memory, accesses->word_count * sizeof *accesses->memory);
  *accesses = {};
}

/* Make room for the accesses to `count` words; return whether there is enough memory. */
bool allocate_accesses(Accesses* accesses, size_t count) {
  free_accesses(accesses);
  accesses->memory = (Access (*)[kKept])allocate_zeros(count * sizeof *accesses->memory);
  if (accesses->memory != NULL) accesses->word_count = count;
  return accesses->memory != NULL;
}

/* Return a range whose first word has the accesses with number `first`. */
Watched make_watched(Memory memory, const Accesses* accesses, size_t first, uint64_t fresh, bool is_shared) {
  const size_t offset = first - memory.begin / 4;
  return {memory, memory.end - memory.begin - 4, accesses->memory + offset, fresh, is_shared};
}

/* Before an access by some code, its range is this one, which no access is in. */
const Watched no_memory = {{(uintptr_t)1 << 62, ((uintptr_t)1 << 62) + kMostSize}, kMostSize - 4, NULL, 0, false};

/* Watch a range. Ranges that overlap, such as those of two tensors of one memory, become one. */
void watch_memory(Races* races, Memory memory) {
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
  free_accesses(&races->accesses);
  free(races->watched);
  munmap(races, sizeof *races);
}

Races* spare_races; /* for the next launch */

void forget_races(Races* races) {
  if (races == NULL) return;
  __atomic_sub_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  const bool is_kept = races->accesses.word_count <= kMostWords && races->next_step < kLastStep / 2;
  free_races(is_kept ? __atomic_exchange_n(&spare_races, races, __ATOMIC_ACQ_REL) : races);
}

/* Return the state for a launch, or NULL if there is not enough memory. */
Races* watch_races(const Launch* launch) {
  const jitload_cpu_launch* call = launch->call;
  Races* races = __atomic_exchange_n(&spare_races, (Races*)NULL, __ATOMIC_ACQ_REL);
  if (races == NULL) races = (Races*)allocate_zeros(sizeof(Races));
  if (races == NULL) return NULL;
  __atomic_add_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  races->next_step += kStepsAtOnce; /* so that the first one is not 0 */
  races->first_step = races->next_step;
  races->count = 0;
  const size_t most = (size_t)(call->tensor_count + own_memory.segment_count);
  Watched* watched = (Watched*)realloc(races->watched, most * sizeof(Watched));
  if (watched == NULL) return forget_races(races), (Races*)NULL;
  races->watched = watched;
  for (int i = 0; i < call->tensor_count; ++i) watch_memory(races, {call->tensors[i].begin, call->tensors[i].end});
  for (int i = 0; i < own_memory.segment_count; ++i) watch_memory(races, own_memory.segments[i]);
  size_t count = 0;
  for (int i = 0; i < races->count; ++i) count += count_words(watched[i].memory);
  if (count > races->accesses.word_count) {
    if (!allocate_accesses(&races->accesses, count)) return forget_races(races), (Races*)NULL;
    madvise(races->accesses.memory, count * sizeof *races->accesses.memory, MADV_HUGEPAGE);
  }
  for (int i = 0; i < races->count; ++i) {
    count -= count_words(watched[i].memory);
    watched[i] = make_watched(watched[i].memory, &races->accesses, count, races->first_step * Access::kStep, false);
  }
  return races;
}

/* Let a worker watch the blocks of its launch; return whether there is enough memory. */
bool watch_launch(Worker* worker) {
  Launch* launch = worker->launch;
  Order* order = worker->order;
  const jitload_cpu_block* block = &launch->call->block;
  if (own_code.end - own_code.begin > Access::kLastCode) {
    return fail(worker, NULL, "more than 4 MiB of code, which sanitize=\"race\" cannot watch,"), false;
  }
  if (!own_memory.is_complete) find_own_memory();
  if (launch->races == NULL && (launch->races = watch_races(launch)) == NULL) return false;
  const Memory memory = own_memory.thread_local_data;
  if (!allocate_accesses(&order->accesses, count_words(memory))) return false;
  order->races = launch->races;
  order->next_step = 0;
  const uintptr_t dynamic = (uintptr_t)__jitload_dynamic_shared;
  const Memory parts[] = {{memory.begin, dynamic}, {dynamic, dynamic + block->shared_bytes},
                          {dynamic + JITLOAD_MOST_SHARED, memory.end}};
  for (int i = 0; i < 3; ++i) {
    order->shared[i] = make_watched(parts[i], &order->accesses, parts[i].begin / 4 - memory.begin / 4, 0, true);
  }
  for (const Watched*& recent : order->recent) recent = &no_memory;
  memcpy(jitload_cpu_block_dim, block->block_dim, sizeof jitload_cpu_block_dim);
  memcpy(jitload_cpu_grid_dim, block->grid_dim, sizeof jitload_cpu_grid_dim);
  jitload_cpu_shared_bytes = block->shared_bytes;
  return true;
}

/* Return the range that contains an access, or NULL. */
const Watched* find_watched(Order* order, uintptr_t begin, size_t size, const void* code) {
  const Watched** recent = &order->recent[(uintptr_t)code % kRecent];
  if (contains((*recent)->memory, begin, size)) return *recent;
  const Watched* watched = NULL;
  for (int i = 0; watched == NULL && i < 3 + order->races->count; ++i) {
    const Watched* next = i < 3 ? &order->shared[i] : &order->races->watched[i - 3];
    if (contains(next->memory, begin, size)) watched = next;
  }
  if (watched != NULL && watched->last_word + 4 >= kMostSize) *recent = watched;
  return watched;
}

/* ---- the order of accesses -------------------------------------------------------------------------------------- */

/* An access that is made now, and the memory that it is in. */
struct Now {
  const Order* order;
  const Watched* watched;
  Access access;
};

/* Return the number of the block that made an access. It must not be older than the launch. */
inline uint32_t block_of(const Now& now, Access access) {
  const Races* races = now.order->races;
  return now.watched->is_shared ? now.order->block : races->step_blocks[access.step() - races->first_step];
}

bool is_of_block(const Now& now, Access access) { return block_of(now, access) == now.order->block; }

/* Return whether atomics or operations of warps may have ordered an access of the current block before what a thread
 * does now. */
bool is_ordered_in_part(const Order* order, Access access, uint32_t thread) {
  const uint64_t step = access.step();
  const uint32_t other = access.thread();
  if (other / kWarp != thread / kWarp) {
    return order->warp_steps[other / kWarp] > step && order->warp_steps[thread / kWarp] > step;
  }
  return (order->lane_steps[other] > step && order->lane_steps[thread] > step) ||
         (order->atomic_steps[other] > step && order->atomic_steps[thread] > step);
}

/* Return whether something after an access may order it before what is done now. */
bool is_ordered(const Now& now, Access access) {
  const Order* order = now.order;
  const uint32_t thread = now.access.thread();
  if (!is_of_block(now, access)) {
    /* The other block, which may still run, takes notice of its atomics before others can see their effects. */
    const uint32_t* last = &order->races->atomic_steps[block_of(now, access) % kLastStep];
    return order->has_atomics && __atomic_load_n(last, __ATOMIC_ACQUIRE) > access.step();
  }
  if (access.step() < order->block_step || access.thread() == thread) return true;
  return order->part_step > access.step() && is_ordered_in_part(order, access, thread);
}

/* Write where an access is, such as "byte 4 of 'x'". */
void describe_address(const Now& now, uintptr_t address, char* text, size_t size) {
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
  return access.is_atomic() ? "an atomic operation" : access.is_write() ? "a write" : "a read";
}

/* Return an address within the call instruction of an access. */
const void* code_address_of(Access access) {
  return (const void*)(own_code.begin + ((access.code() - own_code.begin) & Access::kLastCode) - 1);
}

[[noreturn]] void report_race(const Now& now, Access other, uintptr_t address, size_t size) {
  Worker* worker = jitload_cpu_current_worker;
  Launch* launch = worker->launch;
  const uint32_t* block_dim = worker->block.block_dim;
  const uint32_t number = other.thread();
  char place[96], text[320], whose[96] = "";
  describe_address(now, address, place, sizeof place);
  snprintf(text, sizeof text, "a race: %s of %zu bytes at %s and another access are not ordered,",
           kind_of(now.access), size, place);
  worker->fault_address = code_address_of(now.access);
  if (!fail(worker, worker->current->index, "%s", text)) leave(worker);
  launch->other_address = code_address_of(other);
  if (!is_of_block(now, other)) {
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
__attribute__((noinline)) bool replaces(const Now& now, Access last, uintptr_t word, size_t size) {
  const Access access = now.access;
  const bool is_ordinary = !access.is_atomic() && !last.is_atomic(), are_atomics = access.is_atomic() && last.is_atomic();
  const bool is_before = are_atomics || is_ordered(now, last);
  const bool has_write = access.is_write() || last.is_write(), has_read = !access.is_write() || !last.is_write();
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const bool can_race = has_write && (is_ordinary || !has_read || now.watched->is_shared);
  if (can_race && !is_before) report_race(now, last, word + (uint32_t)__builtin_ctzll(last.bytes() & access.bytes()), size);
  return is_before && last.is_atomic() >= access.is_atomic() && access.is_write() >= last.is_write() &&
         (last.bytes() & ~access.bytes()) == 0;
}

/* Compare an access with what is kept of its word, and keep it, too. Only reads by different threads may be more than can
 * be kept: then there is one of the current step, and in global memory usually one of another block. */
inline __attribute__((always_inline)) void watch_word(const Now& now, uintptr_t word, size_t size) {
  constexpr uint64_t kNotRead = Access::kWrite | Access::kAtomic;
  const uint64_t bits = now.access.bits, fresh = now.watched->fresh;
  Access* const kept = now.watched->kept[word / 4];
  if (__builtin_expect(kept->bits < fresh, 1)) return (void)(kept->bits = bits);
  Access* last_resort = &kept[(now.watched->is_shared ? now.access.thread() : now.order->block) % kKept];
  const bool is_of_step = (last_resort->bits ^ bits) < Access::kStep;
  const uint64_t all = kept[0].bits | kept[1].bits | kept[2].bits | kept[3].bits | bits;
  if (is_of_step && (all & kNotRead) == 0 && kept[kKept - 1].bits >= fresh) return;
  Access* target = NULL;
  for (uint32_t i = 0; i < kKept; ++i) {
    const Access last = {__atomic_load_n(&kept[i].bits, __ATOMIC_ACQUIRE)}; /* another worker may replace it */
    const uint64_t changed = last.bits ^ bits;
    if (last.bits < fresh) {
      if (target == NULL) target = &kept[i];
      break;
    }
    if (((last.bits | bits) & kNotRead) == 0 && (changed / Access::kThread & 1023) != 0) continue;
    if ((last.bits & bits & Access::kBytes) == 0) continue;
    const bool is_same = changed < Access::kThread && (changed & (Access::kAtomic | Access::kBytes)) == 0;
    if (is_same && last.bits % Access::kCode >= bits % Access::kCode) return;
    if (is_same || replaces(now, last, word, size)) target = &kept[i];
  }
  if (target == NULL && (now.access.is_write() || !(last_resort->is_write() || is_of_step))) target = last_resort;
  if (target != NULL) target->bits = bits;
}

enum Kind : uint64_t { kRead = 0, kWrite = Access::kWrite, kAtomicRead = Access::kAtomic, kAtomic = kAtomicRead | kWrite };

inline Access make_access(const Order* order, Kind kind, const void* code, uint64_t bytes) {
  return {order->now | ((uintptr_t)code & Access::kLastCode) * Access::kCode | kind | bytes};
}

__attribute__((noinline)) void watch_access(const void* memory, size_t size, Kind kind, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  Order* order = &jitload_cpu_race_order;
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  if (order->now == 0 || size == 0 || is_of_threads(worker, begin, size)) return;
  const Watched* watched = find_watched(order, begin, size, code);
  if (watched == NULL) check(memory, size, kind & Access::kWrite, code);
  for (uintptr_t word = begin & ~(uintptr_t)3; watched != NULL && word < end; word += 4) {
    uint64_t bytes = Access::kBytes;
    if (word < begin) bytes &= bytes << (begin - word);
    if (word + 4 > end) bytes &= Access::kBytes >> (word + 4 - end);
    watch_word({order, watched, make_access(order, kind, code, bytes)}, word, size);
  }
  if (kind & Access::kAtomic) order_atomic(worker, worker->current->number);
}

/* Watch an ordinary access, which is aligned and usually in the same memory as the last one by the same code. */
template <Kind kind, size_t size>
inline __attribute__((always_inline)) void watch_aligned(const void* memory, const void* code) {
  const uintptr_t begin = (uintptr_t)memory;
  if (__builtin_expect(race_launches != 0 && begin % (size < 4 ? size : 4) == 0, 1)) {
    char local;
    const Order* order = *order_of_stack(&local);
    const Watched* watched = order->recent[(uintptr_t)code % kRecent];
    if (__builtin_expect(begin - watched->memory.begin <= watched->last_word + 4 - size, 1)) {
      const uint64_t bytes = size < 4 ? (((uint64_t)1 << size) - 1) << begin % 4 : Access::kBytes;
      const Now now = {order, watched, make_access(order, kind, code, bytes)};
      for (uintptr_t word = begin & ~(uintptr_t)3; word < begin + size; word += 4) watch_word(now, word, size);
      return;
    }
  }
  watch_access(memory, size, kind, code);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ------------------------------------------------------------------------- */

#define JITLOAD_HOOK extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_ACCESS(p, size, is_write) watch_aligned<is_write ? kWrite : kRead, size>(p, JITLOAD_HERE_)
#define JITLOAD_RARE_ACCESS(p, size, is_write) watch_access(p, size, is_write ? kWrite : kRead, JITLOAD_HERE_)
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                              \
  watch_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_);      \
  jitload_cpu_step(jitload_cpu_current_worker, p, is_write, JITLOAD_HERE_)
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write)                                \
  watch_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_);      \
  jitload_cpu_atomic(jitload_cpu_current_worker)
#include <jitload/accesses.h>
