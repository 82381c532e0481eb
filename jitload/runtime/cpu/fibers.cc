/* Runs a block whose threads may wait for each other: each is a fiber, and they take turns on one thread.
 *
 * A wait is a switch to the next fiber, so a block in which no thread can go on is noticed at once.
 */
#include <sys/mman.h>

#include "steps.h"
#include "worker.h"

namespace {

constexpr int kGuardInstall = 102;            /* MADV_GUARD_INSTALL: Linux 6.13 */
constexpr uint32_t kMostSplitGuards = 16384;  /* for helpers: so many guards take half of a process's mappings */
constexpr uint32_t kYields = 64;              /* how often each thread polls memory before others get the processor */
uint32_t split_guards;

/* What races.cc has to know: a block begins or its barrier opens, lanes of a warp meet, and another thread runs. */
void order_block(Worker* worker);
void order_lanes(Worker* worker, uint32_t first, uint32_t lanes);
void order_thread(Worker* worker, const Fiber* fiber);

void switch_to(Worker* worker, Fiber* fiber) {
  Fiber* previous = worker->current;
  worker->current = fiber;
  __builtin_prefetch(fiber->next->context.stack_pointer);
  jitload_cpu_switch(&previous->context, &fiber->context);
  if (kWatches && worker->order != NULL) order_thread(worker, previous);
}

/* Call a function that runs kernel code on another stack, until the code ends or is abandoned. */
void run_kernel(Worker* worker, char* stack_end, void (*start)());

uint32_t count_threads(const jitload_cpu_block& block) {
  return block.block_dim[0] * block.block_dim[1] * block.block_dim[2];
}

/* The threads of a block that wait for the same kind of thing. */
struct WaitGroup {
  uint32_t count;
  const Fiber* first;
};

void add_to(WaitGroup* group, const Fiber* fiber) {
  if (group->count++ == 0 || fiber->number < group->first->number) group->first = fiber;
}

/* Append "and 3 threads, (4, 0, 0) first, wait at" and the place. */
void append_waits(char* text, size_t size, const WaitGroup* group, const char* place) {
  const size_t used = strlen(text);
  if (group->count == 0) return;
  const uint32_t* index = group->first->index;
  const bool is_one = group->count == 1;
  snprintf(text + used, size - used, "%s %u thread%s, (%u, %u, %u) first, wait%s at %s",
           text[used - 1] == ':' ? "" : " and", group->count, is_one ? "" : "s", index[0], index[1], index[2],
           is_one ? "s" : "", place);
}

/* Fail because no thread can go on; say which threads wait, and for what. */
[[noreturn]] void report_deadlock(Worker* worker) {
  WaitGroup barrier = {}, warp = {};
  const Fiber* fiber = worker->current;
  do {
    add_to(fiber->wait_function == NULL ? &barrier : &warp, fiber);
    fiber = fiber->next;
  } while (fiber != worker->current);
  char text[640] = "a barrier can never complete:", place[128] = "";
  if (warp.count != 0) {
    snprintf(place, sizeof place, "%s for lanes of the mask that do not come", warp.first->wait_function);
  }
  append_waits(text, sizeof text, &barrier, "__syncthreads()");
  append_waits(text, sizeof text, &warp, place);
  fail(worker, NULL, "%s", text);
  leave(worker);
}

/* End the waits in __activemask(), once nothing else can happen; return whether there were any. */
bool answer_active(Worker* worker);

/* Record that a fiber was resumed and had nothing to do. If this happens more often than there are live fibers, without
 * an event in between, every fiber has had its turn and none can go on. */
__attribute__((noinline)) void count_idle(Worker* worker) {
  if (++worker->idle > worker->live && !answer_active(worker)) report_deadlock(worker);
}

/* Let other fibers run until `is_over` returns true. */
template <class Test>
inline void wait_until(Worker* worker, Test is_over) {
  while (true) {
    switch_to(worker, worker->current->next);
    if (__builtin_expect(is_over(), 1)) return;
    count_idle(worker);
  }
}

bool answer_active(Worker* worker) {
  bool has_answered = false;
  const uint32_t warps = (count_threads(worker->block) + kWarp - 1) / kWarp;
  for (uint32_t number = 0; number < warps; ++number) {
    Warp* warp = &worker->warps[number];
    Fiber* lanes = &worker->fibers[number * kWarp];
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      if (!(warp->live >> lane & 1) || lanes[lane].active_site == 0) continue;
      uint32_t mask = 0;
      const uint64_t site = lanes[lane].active_site;
      for (uint32_t other = lane; other < kWarp; ++other) {
        if ((warp->live >> other & 1) && lanes[other].active_site == site) mask |= 1u << other;
      }
      for (uint32_t other = lane; other < kWarp; ++other) {
        if (!(mask >> other & 1)) continue;
        lanes[other].active_site = 0;
        lanes[other].active_mask = mask;
      }
      has_answered = true;
    }
  }
  if (has_answered) worker->idle = 0;
  return has_answered;
}

/* Fail if fewer threads are at a barrier than were there before: the others left a loop, or ended in it. */
void check_same_threads(Worker* worker) {
  const uint64_t site = worker->barrier_site;
  BarrierCount* last = &worker->barrier_counts[site % kBarrierCounts];
  if (last->site == site && worker->arrived < last->threads) {
    fail(worker, NULL, "%u threads meet at the barrier at line %u, where %u met before: its loop has a different "
         "length in different threads, or some threads return from it,", worker->arrived, (uint32_t)site,
         last->threads);
    leave(worker);
  }
  *last = {site, worker->arrived};
}

void open_barrier(Worker* worker) {
  if (kWatches) check_same_threads(worker);
  worker->results[JITLOAD_CPU_COUNT] = (int)worker->true_predicates;
  worker->results[JITLOAD_CPU_AND] = worker->true_predicates == worker->arrived;
  worker->results[JITLOAD_CPU_OR] = worker->true_predicates != 0;
  worker->true_predicates = 0;
  worker->arrived = 0;
  worker->generation ^= 1;
  if (kWatches && worker->order != NULL) order_block(worker);
  step_block(worker);
  worker->idle = 0;
}

/* End the current fiber. */
[[noreturn]] void finish(Worker* worker) {
  Fiber* fiber = worker->current;
  Warp* warp = &worker->warps[fiber->number / kWarp];
  warp->live &= ~(1u << fiber->number % kWarp);
  worker->idle = 0;
  if (--worker->live == 0) leave(worker);
  fiber->previous->next = fiber->next;
  fiber->next->previous = fiber->previous;
  if (worker->arrived == worker->live) open_barrier(worker);
  switch_to(worker, fiber->next);
  __builtin_unreachable();
}

void run_threads(Worker* worker, Fiber* fiber, uint32_t count) {
  const jitload_cpu_launch* call = worker->launch->call;
  if (kWatches && worker->order != NULL) order_thread(worker, fiber);
  call->kernel->run_threads(call->params, &worker->block, fiber->index, count);
}

void start_fiber() {
  Worker* worker = jitload_cpu_current_worker;
  run_threads(worker, worker->current, 1);
  finish(worker);
}

/* Run all threads of some blocks one by one, because they never wait. */
void start_singly() {
  Worker* worker = jitload_cpu_current_worker;
  Fiber* fiber = worker->current;
  const uint32_t threads = count_threads(worker->block), at_once = kWatches ? 1 : threads;
  for (uint32_t blocks = worker->plain_count;; ++worker->block.block_index[0]) {
    for (uint32_t number = 0; number < threads; number += at_once) {
      fiber->number = number;
      set_thread_index(worker->block, number, fiber->index);
      run_threads(worker, fiber, at_once);
    }
    if (--blocks == 0) break;
  }
  worker->request = kHasEnded;
}

/* ---- a block --------------------------------------------------------------------------------------------------- */

void release(Worker* worker) {
  free(worker->fibers);
  free(worker->warps);
  free(worker->steps);
  if (worker->stacks != NULL) munmap(worker->mapped_stacks, (worker->capacity + 1) * kStack);
  __atomic_fetch_sub(&split_guards, worker->guards, __ATOMIC_RELAXED);
  worker->fibers = NULL;
  worker->warps = NULL;
  worker->steps = NULL;
  worker->stacks = NULL;
  worker->capacity = worker->guards = 0;
}

/* Protect the page between two stacks. Before Linux 6.13, each protected page splits a mapping, and a process may have
 * 65,530 mappings. Helper threads give up when the pages take half of these. Return whether the page is protected. */
bool guard(Worker* worker, char* page, bool is_helper) {
  if (madvise(page, page_bytes, kGuardInstall) == 0) return true;
  if (is_helper && __atomic_load_n(&split_guards, __ATOMIC_RELAXED) >= kMostSplitGuards) return false;
  if (mprotect(page, page_bytes, PROT_NONE) != 0) return false;
  __atomic_add_fetch(&split_guards, 1, __ATOMIC_RELAXED);
  ++worker->guards;
  return true;
}

/* Allocate stacks for a block of `count` threads; return whether there are enough. */
bool reserve(Worker* worker, uint32_t count, bool is_helper) {
  if (count <= worker->capacity) return true;
  release(worker);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* stacks = mmap(NULL, (count + 1) * kStack, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stacks == MAP_FAILED) return false;
  worker->mapped_stacks = (char*)stacks;
  worker->stacks = worker->mapped_stacks + (kStack - (uintptr_t)stacks % kStack) % kStack;
  worker->capacity = count;
  worker->fibers = (Fiber*)aligned_alloc(alignof(Fiber), (count + kWarp) * sizeof(Fiber));
  worker->warps = (Warp*)calloc(count / kWarp + 1, sizeof(Warp));
  bool is_whole = worker->fibers != NULL && worker->warps != NULL;
  for (uint32_t i = 0; is_whole && i < count; ++i) is_whole = guard(worker, worker->stacks + i * kStack, is_helper);
  if (is_whole) {
    memset(worker->fibers, 0, (count + kWarp) * sizeof(Fiber));
  } else {
    release(worker);
  }
  return is_whole;
}

/* Return the upper end of a stack. Its offset in a page varies: otherwise all stacks would compete for cache lines. */
char* stack_end(const Worker* worker, uint32_t number) {
  return worker->stacks + (number + 1) * kStack - number % 21 * 192;
}

void prepare_fibers(Worker* worker) {
  const uint32_t* block_dim = worker->block.block_dim;
  const uint32_t count = count_threads(worker->block);
  uint32_t number = 0;
  for (uint32_t z = 0; z < block_dim[2]; ++z) {
    for (uint32_t y = 0; y < block_dim[1]; ++y) {
      for (uint32_t x = 0; x < block_dim[0]; ++x, ++number) {
        Fiber* fiber = &worker->fibers[number];
        fiber->index[0] = x, fiber->index[1] = y, fiber->index[2] = z;
        fiber->number = number;
        fiber->wait_function = NULL, fiber->active_site = 0;
        fiber->next = &worker->fibers[number + 1 == count ? 0 : number + 1];
        fiber->previous = &worker->fibers[number == 0 ? count - 1 : number - 1];
        prepare(&fiber->context, stack_end(worker, number), start_fiber);
      }
    }
  }
  for (uint32_t warp = 0; warp * kWarp < count; ++warp) {
    const uint32_t lanes = count - warp * kWarp;
    worker->warps[warp].live = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    worker->warps[warp].used = 0;
    worker->warps[warp].newest = NULL;
  }
  worker->live = count;
  worker->arrived = 0;
  worker->idle = 0;
  worker->true_predicates = 0;
  if (kWatches) memset(worker->barrier_counts, 0, sizeof worker->barrier_counts);
  step_block(worker);
}

/* Run the current block thread by thread, and if its threads run one by one, the next ones up to `plain_count`. */
void run_block(Worker* worker) {
  const bool are_fibers = worker->mode == JITLOAD_CPU_FIBERS;
  if (are_fibers) prepare_fibers(worker);
  worker->current = are_fibers ? worker->fibers : &worker->only_fiber;
  worker->only_fiber.next = &worker->only_fiber; /* of a switch's prefetch */
  if (kWatches && worker->order != NULL) order_block(worker);
  if (are_fibers) {
    run_kernel(worker, stack_end(worker, 0), start_fiber);
  } else {
    run_kernel(worker, worker->plain_stack + kPlainStack, start_singly);
  }
}

}  // namespace

/* ---- called by kernels ----------------------------------------------------------------------------------------- */

extern "C" int jitload_cpu_barrier(Worker* worker, int kind, int predicate, uint64_t site) {
  if (kWatches && worker->arrived != 0 && worker->barrier_site != site) {
    const uint64_t other = worker->barrier_site;
    fail(worker, worker->current->index, "threads of one block meet at different barriers, at lines %u and %u (columns "
         "%u and %u),", (uint32_t)other, (uint32_t)site, (uint32_t)(other >> 32), (uint32_t)(site >> 32));
    leave(worker);
  }
  worker->barrier_site = site;
  worker->true_predicates += predicate != 0;
  worker->current->wait_function = NULL;
  if (++worker->arrived == worker->live) {
    open_barrier(worker);
  } else {
    const uint32_t generation = worker->generation;
    wait_until(worker, [=] { return worker->generation != generation; });
  }
  return worker->results[kind];
}

/* Return the open exchange of these lanes, or a new one. */
__attribute__((noinline)) static Exchange* find_exchange(Worker* worker, Warp* warp, uint32_t mask, const char* name) {
  const Fiber* fiber = worker->current;
  if (!(mask >> fiber->number % kWarp & 1)) {
    fail(worker, fiber->index, "%s with mask 0x%08x, which lacks lane %u that calls it,", name, mask,
         fiber->number % kWarp);
    leave(worker);
  }
  for (uint32_t used = warp->used; used != 0; used &= used - 1) {
    Exchange* exchange = &warp->exchanges[__builtin_ctz(used)];
    if (exchange->mask == mask && !exchange->is_complete) return exchange;
  }
  const uint32_t number = (uint32_t)__builtin_ctz(~warp->used);
  warp->used |= 1u << number;
  Exchange* exchange = &warp->exchanges[number];
  memset(exchange, 0, sizeof *exchange);
  exchange->mask = mask;
  return warp->newest = exchange;
}

extern "C" uint32_t jitload_cpu_exchange(Worker* worker, uint32_t mask, uint64_t value, const uint64_t** values,
                                         const char* name) {
  Fiber* fiber = worker->current;
  const uint32_t number = fiber->number % kWarp, lane = 1u << number;
  Warp* warp = &worker->warps[fiber->number / kWarp];
  Exchange* exchange = warp->newest;
  if (exchange == NULL || exchange->mask != mask || exchange->is_complete || !(mask & lane)) {
    exchange = find_exchange(worker, warp, mask, name);
  }
  exchange->arrived |= lane;
  exchange->values[number] = value;
  exchange->values[kWarp] |= (uint64_t)(value != 0) << number;
  const auto is_over = [=] { /* the exchange is also complete once all missing lanes have ended */
    if (!exchange->is_complete && (mask & warp->live & ~exchange->arrived) == 0) {
      exchange->is_complete = true;
      if (kWatches && worker->order != NULL) order_lanes(worker, fiber->number / kWarp * kWarp, exchange->arrived);
      step_lanes(worker, fiber->number / kWarp * kWarp, exchange->arrived);
      worker->idle = 0;
    }
    return exchange->is_complete;
  };
  fiber->wait_function = name;
  if (!is_over()) wait_until(worker, is_over);
  exchange->read |= lane;
  if (exchange->read == exchange->arrived) warp->used &= ~(1u << (exchange - warp->exchanges));
  *values = exchange->values;
  return exchange->arrived;
}

extern "C" uint32_t jitload_cpu_active(uint64_t site) {
  Worker* worker = jitload_cpu_current_worker;
  Fiber* fiber = worker->current;
  fiber->active_site = site;
  fiber->wait_function = "__activemask()";
  wait_until(worker, [=] { return fiber->active_site == 0; });
  return fiber->active_mask;
}

extern "C" void jitload_cpu_store(void* variable, uint32_t value) { memcpy(variable, &value, sizeof value); }

extern "C" int64_t jitload_cpu_clock(void) { return now_ns(); }

extern "C" void jitload_cpu_yield(void) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL || worker->current == NULL) return;
  worker->idle = 0;
  if (worker->yields-- == 0) {
    worker->yields = kYields * worker->live;
    sched_yield();
  }
  switch_to(worker, worker->current->next);
}

extern "C" void jitload_cpu_step(Worker* worker, const void* address, int is_write, const void* code) {
  if (worker == NULL || worker->current == NULL) return;
  if (contains(kernel_stacks(worker), (uintptr_t)address)) return;
  if (worker->steps == NULL) begin_steps(worker);
  const bool is_shared = contains(own_memory.thread_local_data, (uintptr_t)address);
  const uint32_t step = add_step(worker, code);
  worker->idle = 0;
  switch_to(worker, worker->current->next);
  check_step(worker, (uintptr_t)address, is_write, is_shared, step, code);
}

extern "C" void jitload_cpu_path(Worker* worker, const void* code) {
  if (worker == NULL || worker->current == NULL) return;
  if (worker->steps == NULL) begin_steps(worker);
  add_to_path(worker, code);
}

extern "C" void jitload_cpu_atomic(Worker* worker) {
  if (worker != NULL && worker->steps != NULL) step_lanes(worker, worker->current->number, 1);
}
