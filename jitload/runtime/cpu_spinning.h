/* Finds blocks whose threads wait without end.
 *
 * The threads of a block run on one thread of the operating system, in a fixed order. If their stacks, where a waiting
 * thread's registers are saved, the barriers and warps, and the memory of the kernel are the same as at an earlier time,
 * everything since then will happen again, unless another block changes that memory. So a search looks for a state that
 * repeats, however long the threads take. The launch fails once every thread of the pool that runs one of its blocks has
 * seen its state repeat.
 */
#ifndef JITLOAD_CPU_SPINNING_H_
#define JITLOAD_CPU_SPINNING_H_

#include "cpu_pool.h"

/* The variables of this library that do not belong to kernels. */
extern "C" __attribute__((visibility("hidden"))) char __start_jitload_state[], __stop_jitload_state[];

#ifndef JITLOAD_CPU_SEARCH_INTERVAL /* tests set a shorter one */
#define JITLOAD_CPU_SEARCH_INTERVAL 500000000
#endif

namespace {

/* Nanoseconds between two searches, in which the host may change memory that threads wait for. */
constexpr int64_t kSearchInterval = JITLOAD_CPU_SEARCH_INTERVAL;
constexpr int64_t kLeastRest = 20;             /* the least rest after a search, in durations of the search */
constexpr uint32_t kMostLooks = 1024;          /* looks at the state in a search */
constexpr uint64_t kMostBytes = 256 << 20;     /* bytes of stacks that a search reads */
constexpr uint32_t kRepeats = 2;               /* how often memory is found unchanged before a block counts as stuck */
constexpr uint32_t kRepeatsIfUnknown = 40;     /* likewise, if others may change it or some of it is unknown */

/* Return whether another thread of the program runs a kernel of this library. */
bool has_concurrent_launch(const Launch* launch);

struct Hash {
  uint64_t lanes[4] = {1, 2, 3, 4};

  void add(uint64_t lane, uint64_t word) {
    const uint64_t mixed = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15u;
    lanes[lane] = mixed ^ mixed >> 29;
  }
  void add(const char* begin, const char* end) {
    uint64_t words[4];
    for (; end - begin >= (ptrdiff_t)sizeof words; begin += sizeof words) {
      memcpy(words, begin, sizeof words);
      for (int lane = 0; lane < 4; ++lane) add(lane, words[lane]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, begin, begin < end ? (size_t)(end - begin) : 0);
    for (int lane = 0; lane < 4; ++lane) add(lane, words[lane]);
  }
  /* Add memory except for a hole in it. */
  void add_around(const char* begin, const char* end, const void* hole, const void* hole_end) {
    if ((const char*)hole < begin || (const char*)hole_end > end) return add(begin, end);
    add(begin, (const char*)hole);
    add((const char*)hole_end, end);
  }
  uint64_t value() const { return lanes[0] ^ lanes[1] * 3 ^ lanes[2] * 5 ^ lanes[3] * 7; }
};

/* Add to the hash what barriers and the exchanges of warps have collected. */
void hash_waits(const Worker* worker, Hash* hash, uint64_t* bytes) {
  const uint32_t* block_dim = worker->block.block_dim;
  hash->add(0, worker->arrived | (uint64_t)worker->true_predicates << 32);
  hash->add(1, worker->generation);
  for (uint32_t number = 0; number * kWarp < block_dim[0] * block_dim[1] * block_dim[2]; ++number) {
    const Warp* warp = &worker->warps[number];
    hash->add((const char*)warp->tiles, (const char*)(warp->tiles + 5));
    hash->add(2, warp->used);
    for (uint32_t used = warp->used; used != 0; used &= used - 1) {
      const Exchange* exchange = &warp->exchanges[__builtin_ctz(used)];
      hash->add((const char*)exchange, (const char*)(exchange + 1));
      *bytes += sizeof *exchange;
    }
  }
}

uint64_t hash_threads(const Worker* worker, uint64_t* bytes) {
  Hash hash;
  const Fiber* fiber = worker->current;
  do {
    const char* begin = (const char*)fiber->context.stack_pointer;
    const char* end = stack_end(worker, fiber->number);
    hash.add(0, fiber->number);
    hash.add(1, fiber->active_site);
    hash.add(2, fiber->active_mask);
    hash.add(begin, end);
    *bytes += (uint64_t)(end - begin);
    fiber = fiber->next;
  } while (fiber != worker->current);
  hash_waits(worker, &hash, bytes);
  return hash.value();
}

/* Hash the tensors, the variables of the library and shared memory. */
uint64_t hash_memory(const Worker* worker) {
  Hash hash;
  const jitload_cpu_launch* call = worker->launch->call;
  for (int i = 0; i < call->tensor_count; ++i) {
    hash.add((const char*)call->tensors[i].begin, (const char*)call->tensors[i].end);
  }
  visit_own_segments([&](const ElfW(Phdr)& segment, Memory memory) {
    const char *begin = (const char*)memory.begin, *end = (const char*)memory.end;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W)) {
      hash.add_around(begin, end, __start_jitload_state, __stop_jitload_state);
    } else if (segment.p_type == PT_TLS) {
      hash.add_around(begin, end, worker, worker + 1);
    }
  });
  return hash.value();
}

/* Record that nothing has happened in this worker since `progress`; return whether that holds for all workers. */
bool all_wait(Worker* worker, Launch* launch, uint32_t progress) {
  uint64_t waiting = __atomic_load_n(&launch->waiting, __ATOMIC_SEQ_CST);
  if (!worker->spinning.is_counted) {
    uint64_t counted;
    do {
      counted = waiting >> 32 == progress ? waiting + 1 : ((uint64_t)progress << 32) + 1;
    } while (!__atomic_compare_exchange_n(&launch->waiting, &waiting, counted, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    worker->spinning.is_counted = true;
    waiting = counted;
  }
  return (uint32_t)waiting == __atomic_load_n(&launch->workers, __ATOMIC_SEQ_CST) &&
         progress == __atomic_load_n(&launch->progress, __ATOMIC_SEQ_CST);
}

/* Forget the state that was found, because threads have made progress. */
void restart_search(Worker* worker, int64_t next_search) {
  Spinning* spinning = &worker->spinning;
  if (spinning->has_memory) note_progress(worker->launch);
  *spinning = Spinning();
  spinning->clock_readings = worker->clock_readings;
  spinning->next_search = next_search;
}

/* Compare the memory with that of the last time when the threads were in the same state. */
void compare_memory(Worker* worker) {
  Spinning* spinning = &worker->spinning;
  const uint64_t memory = hash_memory(worker);
  const bool is_unchanged = spinning->has_memory && spinning->memory == memory;
  spinning->has_memory = true;
  spinning->memory = memory;
  const uint32_t progress = is_unchanged ? __atomic_load_n(&worker->launch->progress, __ATOMIC_SEQ_CST)
                                         : note_progress(worker->launch);
  if (!is_unchanged || progress != spinning->progress) {
    spinning->progress = progress;
    spinning->repeats = 0;
    spinning->is_counted = false;
  } else if (++spinning->repeats >= kRepeats) {
    const bool is_unknown = worker->launch->call->has_addresses || has_concurrent_launch(worker->launch);
    if (is_unknown && spinning->repeats < kRepeatsIfUnknown) return;
    if (all_wait(worker, worker->launch, progress)) fail_waiting(worker, true);
  }
}

void begin_search(Worker* worker, int64_t now) {
  Spinning* spinning = &worker->spinning;
  spinning->is_searching = true;
  spinning->turns = spinning->passes = spinning->looks = 0;
  spinning->bytes = 0;
  spinning->limit = 1;
  spinning->search_began = now;
  if (!spinning->has_memory) spinning->observer = worker->current;
}

void end_search(Worker* worker, bool is_back) {
  const int64_t now = now_ns(), rest = kLeastRest * (now - worker->spinning.search_began);
  const int64_t next_search = now + (rest > kSearchInterval ? rest : kSearchInterval);
  if (!is_back) restart_search(worker, next_search);
  worker->spinning.is_searching = false;
  worker->spinning.turns = kTurnsBetweenLooks * worker->live;
  worker->spinning.next_search = next_search;
}

/* Compare the state of the threads with the remembered one, which is replaced after 1, 2, 4, … comparisons. */
void continue_search(Worker* worker) {
  Spinning* spinning = &worker->spinning;
  if (++spinning->passes > kMostLooks * worker->live) return end_search(worker, false);
  if (worker->current != spinning->observer) return;
  const uint64_t state = hash_threads(worker, &spinning->bytes);
  if (state == spinning->state) {
    compare_memory(worker);
    end_search(worker, true);
  } else if (++spinning->looks == kMostLooks || spinning->bytes > kMostBytes) {
    end_search(worker, false);
  } else if (!spinning->has_memory && spinning->looks == spinning->limit) {
    spinning->state = state;
    spinning->limit *= 2;
  }
}

/* Called repeatedly on the thread's own stack while the threads of the block read memory or meet at barriers. */
void look_at_spinning(Worker* worker) {
  Spinning* spinning = &worker->spinning;
  const bool has_read_clock = spinning->clock_readings != worker->clock_readings;
  spinning->turns = 0;
  if (spinning->is_searching && !has_read_clock) return continue_search(worker);
  const int64_t now = now_ns();
  if (has_read_clock || spinning->next_search == 0) restart_search(worker, now + kSearchInterval);
  spinning->turns = kTurnsBetweenLooks * worker->live;
  if (now >= spinning->next_search) begin_search(worker, now);
}

}  // namespace

#endif /* JITLOAD_CPU_SPINNING_H_ */
