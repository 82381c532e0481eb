/* The functions that kernels compiled with sanitize="race" call for each access to memory; see races.h. */

extern "C" __attribute__((visibility("hidden"))) void __tsan_init() { has_race_checks = true; }

namespace {

/* ---- the memory that is watched --------------------------------------------------------------------------------- */

constexpr size_t kMostKept = 1 << 22; /* words of global memory whose cells are kept for later launches */
constexpr size_t kMostSize = 16;      /* bytes of an access of one instruction */
constexpr size_t kWordBytes = 5 * (sizeof(Cell) + sizeof(Access)); /* of the cells of a word and of its bytes */

/* Allocate zeros; return NULL if there is not enough memory. */
void* allocate_zeros(size_t size) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

size_t count_words(Memory memory) { return (memory.end + 3) / 4 - memory.begin / 4; }

void free_cells(CellMemory* cells) {
  if (cells->memory != NULL) munmap(cells->memory, cells->word_count * kWordBytes);
  *cells = {};
}

/* Allocate cells of `count` words, without any access; return whether there is enough memory. */
bool allocate_cells(CellMemory* cells, size_t count) {
  free_cells(cells);
  cells->memory = (Cell*)allocate_zeros(count * kWordBytes);
  if (cells->memory != NULL) cells->word_count = count;
  return cells->memory != NULL;
}

/* Return a range whose first word has the cell with number `first`. */
Watched make_watched(Memory memory, const CellMemory* cells, size_t first, uint64_t fresh, bool is_shared) {
  const size_t count = cells->word_count, offset = first - memory.begin / 4;
  Access* second_reads = (Access*)(cells->memory + 5 * count);
  const Cells words = {cells->memory + offset, second_reads + offset};
  const Cells bytes = {cells->memory + count + 4 * offset, second_reads + count + 4 * offset};
  return {memory, memory.end - memory.begin - 4, words, bytes, fresh, is_shared};
}

/* Before an access by some code, its range is this one, which no access is in. */
const Watched no_memory = {{(uintptr_t)1 << 62, ((uintptr_t)1 << 62) + kMostSize}, kMostSize - 4, {}, {}, 0, false};

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

void free_watched(Races* races) {
  if (races->watched != NULL) munmap(races->watched, (size_t)races->capacity * sizeof(Watched));
  races->watched = NULL;
  races->capacity = 0;
}

/* Make room for `count` ranges; return whether there is enough memory. */
bool allocate_watched(Races* races, int count) {
  races->count = 0;
  if (count <= races->capacity) return true;
  free_watched(races);
  races->watched = (Watched*)allocate_zeros((size_t)count * sizeof(Watched));
  if (races->watched != NULL) races->capacity = count;
  return races->watched != NULL;
}

void free_races(Races* races) {
  if (races == NULL) return;
  free_cells(&races->cells);
  free_watched(races);
  munmap(races, sizeof *races);
}

Races* spare_races; /* for the next launch */

void forget_races(Races* races) {
  if (races == NULL) return;
  __atomic_sub_fetch(&race_launches, 1, __ATOMIC_RELAXED);
  const bool is_kept = races->cells.word_count <= kMostKept && races->next_step < kLastStep / 2;
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
  if (!allocate_watched(races, call->tensor_count + own_memory.segment_count)) return forget_races(races), (Races*)NULL;
  for (int i = 0; i < call->tensor_count; ++i) watch_memory(races, {call->tensors[i].begin, call->tensors[i].end});
  for (int i = 0; i < own_memory.segment_count; ++i) watch_memory(races, own_memory.segments[i]);
  size_t count = 0;
  for (int i = 0; i < races->count; ++i) count += count_words(races->watched[i].memory);
  if (count > races->cells.word_count) {
    if (!allocate_cells(&races->cells, count)) return forget_races(races), (Races*)NULL;
    madvise(races->cells.memory, count * sizeof(Cell), MADV_HUGEPAGE);
  }
  for (int i = 0; i < races->count; ++i) {
    const Memory memory = races->watched[i].memory;
    count -= count_words(memory);
    races->watched[i] = make_watched(memory, &races->cells, count, races->first_step * Access::kStep, false);
    for (int k = 0; k < call->tensor_count; ++k) {
      const jitload_cpu_region* tensor = &call->tensors[k];
      races->watched[i].has_gaps |= tensor->element_bytes != 0 && contains(memory, tensor->begin);
    }
  }
  return races;
}

/* Let a worker watch the blocks of its launch; return whether there is enough memory. */
bool watch_launch(Worker* worker) {
  Launch* launch = worker->launch;
  Order* order = worker->order;
  const jitload_cpu_block* block = &launch->call->block;
  if (own_code.end - own_code.begin > Access::kCode) {
    return fail(worker, NULL, "more than 16 MiB of code, which sanitize=\"race\" cannot watch,"), false;
  }
  if (!own_memory.is_complete) find_own_memory();
  if (launch->races == NULL && (launch->races = watch_races(launch)) == NULL) return false;
  const Memory memory = own_memory.thread_local_data;
  if (!allocate_cells(&order->cells, count_words(memory))) return false;
  order->races = launch->races;
  order->next_step = 0;
  const uintptr_t dynamic = (uintptr_t)__jitload_dynamic_shared;
  const Memory parts[] = {{memory.begin, dynamic}, {dynamic, dynamic + block->shared_bytes},
                          {dynamic + JITLOAD_MOST_SHARED, memory.end}};
  for (int i = 0; i < 3; ++i) {
    order->shared[i] = make_watched(parts[i], &order->cells, parts[i].begin / 4 - memory.begin / 4, 0, true);
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
  if (watched != NULL && !watched->has_gaps && watched->last_word + 4 >= kMostSize) *recent = watched;
  return watched;
}

/* ---- the order of accesses -------------------------------------------------------------------------------------- */

/* An access that is made now. */
struct Now {
  Worker* worker;
  const Order* order;
  const Watched* watched;
  Access access;
  bool is_write;
};

/* Return the number of the block that made an access. It must not be older than the launch. */
uint32_t block_of(const Now& now, Access access) {
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
  if (access.bits < now.watched->fresh || access.code() == 0) return true;
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
  const jitload_cpu_region* tensor = nearest_tensor(now.worker->launch->call, address);
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

const char* kind_of(bool is_write, bool is_atomic) {
  return is_atomic ? "an atomic operation" : is_write ? "a write" : "a read";
}

/* Return an address within the call instruction of an access. */
const void* code_address_of(Access access) {
  return (const void*)(own_code.begin + ((access.code() - own_code.begin) & Access::kCode) - 1);
}

[[noreturn]] void report_race(const Now& now, Access other, bool was_write, uintptr_t address, size_t size) {
  Worker* worker = now.worker;
  Launch* launch = worker->launch;
  const uint32_t* block_dim = worker->block.block_dim;
  const uint32_t number = other.thread();
  char place[96], text[320], whose[96] = "";
  describe_address(now, address, place, sizeof place);
  snprintf(text, sizeof text, "a race: %s of %zu bytes at %s and another access are not ordered,",
           kind_of(now.is_write, now.access.is_atomic()), size, place);
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
           kind_of(was_write, other.is_atomic()), number % block_dim[0], number / block_dim[0] % block_dim[1],
           number / block_dim[0] / block_dim[1], whose);
  leave(worker);
}

/* ---- the cells of a word ---------------------------------------------------------------------------------------- */

bool conflicts(const Now& now, Access other, bool has_read) {
  /* A loop around atomicCAS() begins with an ordinary read. In global memory, this is not reported. */
  const bool is_harmless_read = has_read && !now.watched->is_shared;
  const bool is_atomic = now.access.is_atomic();
  if (other.is_atomic() ? is_atomic || is_harmless_read : is_harmless_read && is_atomic) return false;
  return !is_ordered(now, other);
}

/* Load an access that another worker may replace. */
Access load(const Access* access) { return {__atomic_load_n(&access->bits, __ATOMIC_ACQUIRE)}; }

/* Report an access if it races with those of a cell. */
void compare(const Now& now, Cells cells, size_t number, uintptr_t address, size_t size) {
  const Cell* cell = &cells.cells[number];
  const Access* const lasts[] = {&cell->write, &cell->read, &cells.second_reads[number]};
  for (const Access* last : lasts) {
    const bool was_write = last == &cell->write;
    const Access other = load(last);
    if (conflicts(now, other, !now.is_write || !was_write)) report_race(now, other, was_write, address, size);
    if (!now.is_write) return;
  }
}

void record_write(const Now& now, Cells cells, size_t number) {
  const Access last = load(&cells.cells[number].write);
  const bool is_fresh = last.bits >= now.watched->fresh;
  /* An atomic of the thread that has just written orders no other atomics after its write. */
  if (is_fresh && now.access.is_atomic() && last.code() != 0 && !last.is_atomic() && is_of_block(now, last) &&
      last.thread() == now.access.thread() && last.step() >= now.order->block_step) {
    return;
  }
  cells.cells[number] = {{now.access.bits | (is_fresh ? last.bits & Access::kFlag : 0)}, {}};
  cells.second_reads[number] = {};
}

/* Store a read. Of a word that two blocks have read, a read of each is kept, so that any write is a race with one. The
 * same holds for two threads that have read a word of shared memory in one step. Then the first read has a flag. */
void record_read(const Now& now, Cells cells, size_t number) {
  Access* read = &cells.cells[number].read;
  const Access first = load(read);
  /* A read that is ordered before this one is ordered before what this one is. */
  if (is_ordered(now, first)) {
    *read = now.access;
    return;
  }
  Access second = load(&cells.second_reads[number]);
  const bool is_shared = now.watched->is_shared;
  if (is_shared || is_ordered(now, second) || block_of(now, first) == block_of(now, second)) {
    second = cells.second_reads[number] = now.access;
  }
  if (first.is_atomic() || second.is_atomic()) return;
  if (is_shared ? first.step() == second.step() : block_of(now, first) != block_of(now, second)) {
    read->bits = first.bits | Access::kFlag;
  }
}

void record(const Now& now, Cells cells, size_t number) {
  now.is_write ? record_write(now, cells, number) : record_read(now, cells, number);
}

/* Watch an access of some of the bytes of a word, or of a word whose bytes have cells of their own. */
void watch_bytes(const Now& now, uintptr_t word, uintptr_t begin, uintptr_t end) {
  const Watched* watched = now.watched;
  const bool is_whole = word >= begin && word + 4 <= end;
  Access* write = &watched->words.cells[word / 4].write;
  compare(now, watched->words, word / 4, word < begin ? begin : word, end - begin);
  write->bits = (write->bits < watched->fresh ? now.order->step : write->bits) | Access::kFlag;
  for (uintptr_t byte = word < begin ? begin : word; byte < word + 4 && byte < end; ++byte) {
    compare(now, watched->bytes, byte, byte, end - begin);
    if (!is_whole) record(now, watched->bytes, byte);
  }
  if (is_whole) record(now, watched->words, word / 4);
}

void watch_words(const Now& now, uintptr_t begin, uintptr_t end) {
  const Cells words = now.watched->words;
  for (uintptr_t word = begin & ~(uintptr_t)3; word < end; word += 4) {
    const Access write = words.cells[word / 4].write;
    if (word < begin || word + 4 > end || (write.has_flag() && write.bits >= now.watched->fresh)) {
      watch_bytes(now, word, begin, end);
    } else {
      compare(now, words, word / 4, word, end - begin);
      record(now, words, word / 4);
    }
  }
}

enum Kind { kRead, kWrite, kAtomic, kAtomicRead };

inline Access make_access(const Order* order, bool is_atomic, const void* code) {
  return {order->now | ((uintptr_t)code & Access::kCode) | (is_atomic ? Access::kAtomicBit : 0)};
}

__attribute__((noinline)) void watch_access(const void* memory, size_t size, Kind kind, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  Order* order = &jitload_cpu_race_order;
  const uintptr_t begin = (uintptr_t)memory;
  if (order->now == 0 || size == 0 || is_of_threads(worker, begin, size)) return;
  const bool is_atomic = kind == kAtomic || kind == kAtomicRead, is_write = kind == kWrite || kind == kAtomic;
  const Watched* watched = find_watched(order, begin, size, code);
  if (watched == NULL || watched->has_gaps) check(memory, size, is_write, code);
  if (watched != NULL) {
    watch_words({worker, order, watched, make_access(order, is_atomic, code), is_write}, begin, begin + size);
  }
  if (is_atomic) order_atomic(worker, worker->current->number);
}

/* Watch an ordinary read of what others have read; return whether a look at the first read was enough. */
inline bool is_simple_read(const Watched* watched, Cells cells, size_t number, Access access) {
  Access* read = &cells.cells[number].read;
  const bool is_same_step = (read->bits ^ access.bits) < Access::kStep;
  if (read->has_flag() && (!watched->is_shared || is_same_step)) return true;
  if (!is_same_step || read->is_atomic()) return false;
  if (watched->is_shared) read->bits |= Access::kFlag;
  cells.second_reads[number] = access;
  return true;
}

/* Watch an ordinary access; return whether a look at the last ones shows that it is no race. */
template <bool is_write>
inline __attribute__((always_inline)) bool is_simple(const Watched* watched, const Cells* cells, size_t number,
                                                     Access access) {
  Cell* cell = &cells->cells[number];
  const uint64_t write = cell->write.bits, read = cell->read.bits;
  const auto is_same = [=](uint64_t last) { return ((last ^ access.bits) & ~(Access::kCode | Access::kFlag)) == 0; };
  if (__builtin_expect(write >= watched->fresh, 0)) return is_same(write) && !(write & Access::kFlag);
  if (__builtin_expect(read < watched->fresh, 1)) {
    (is_write ? cell->write : cell->read) = access;
    return true;
  }
  if (!is_write) return is_same(read) || is_simple_read(watched, *cells, number, access);
  if (!is_same(read) || cells->second_reads[number].bits >= watched->fresh) return false;
  cell->write = access;
  return true;
}

/* Let the bytes of a word have cells, unless there are accesses of the whole word; return whether they have. */
inline __attribute__((always_inline)) bool has_bytes(const Order* order, const Watched* watched, uintptr_t address) {
  Cell* cell = &watched->words.cells[address / 4];
  const uint64_t write = cell->write.bits;
  if (cell->read.bits >= watched->fresh) return false;
  if (write >= watched->fresh) return (write & (Access::kCode | Access::kFlag)) == Access::kFlag;
  cell->write.bits = order->step | Access::kFlag;
  return true;
}

/* Watch an ordinary access, which usually is simple. */
template <bool is_write, size_t size>
inline __attribute__((always_inline)) void watch_aligned(const void* memory, const void* code) {
  constexpr size_t unit = size < 4 ? 1 : 4; /* the bytes of a cell */
  const uintptr_t begin = (uintptr_t)memory;
  if (__builtin_expect(race_launches != 0 && begin % (size < 4 ? size : 4) == 0, 1)) {
    char local;
    const Order* order = *order_of_stack(&local);
    const Watched* watched = order->recent[(uintptr_t)code % kRecent];
    const bool is_inside = begin - watched->memory.begin <= watched->last_word + 4 - size;
    if (__builtin_expect(is_inside && (size >= 4 || has_bytes(order, watched, begin)), 1)) {
      const Cells* cells = size < 4 ? &watched->bytes : &watched->words;
      const Access access = make_access(order, false, code);
      size_t done = 0;
      while (done < size && is_simple<is_write>(watched, cells, (begin + done) / unit, access)) done += unit;
      if (__builtin_expect(done == size, 1)) return;
    }
  }
  watch_access(memory, size, is_write ? kWrite : kRead, code);
}

}  // namespace

/* ---- what g++'s -fsanitize=thread calls ------------------------------------------------------------------------- */

#define JITLOAD_HOOK extern "C" __attribute__((visibility("hidden")))
#define JITLOAD_HERE_ __builtin_return_address(0)
#define JITLOAD_ACCESS(p, size, is_write) watch_aligned<is_write, size>(p, JITLOAD_HERE_)
#define JITLOAD_RARE_ACCESS(p, size, is_write) watch_access(p, size, is_write ? kWrite : kRead, JITLOAD_HERE_)
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                              \
  watch_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_);      \
  jitload_cpu_step(jitload_cpu_current_worker, p, is_write, JITLOAD_HERE_)
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write)                                \
  watch_access(p, size, is_write ? kAtomic : kAtomicRead, JITLOAD_HERE_);      \
  jitload_cpu_atomic(jitload_cpu_current_worker)
#include <jitload/accesses.h>
