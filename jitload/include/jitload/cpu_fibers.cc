/* A block whose threads may wait for each other: each is a fiber, and they take turns on one thread.
 *
 * A wait is a switch to the next fiber, so a block whose threads all wait for something that cannot come is seen at
 * once.
 */
#include <sys/mman.h>

#include "cpu_worker.h"

namespace {

constexpr int kGuardInstall = 102;            /* MADV_GUARD_INSTALL: Linux 6.13 */
constexpr uint32_t kMostSplitGuards = 16384;  /* half of the mappings that a process may have; each makes two */
uint32_t split_guards;

const char* plural(uint32_t count) { return count == 1 ? "" : "s"; }

/* Nobody in the block can go on: say who waits for what. */
[[noreturn]] void report_deadlock(Worker* self) {
  uint32_t at_barrier = 0, at_warp = 0;
  const Fiber* first_barrier = NULL;
  const Fiber* first_warp = NULL;
  const Fiber* fiber = self->current;
  do {
    if (fiber->waits_for == NULL) {
      ++at_barrier;
      if (first_barrier == NULL || fiber->number < first_barrier->number) first_barrier = fiber;
    } else {
      ++at_warp;
      if (first_warp == NULL || fiber->number < first_warp->number) first_warp = fiber;
    }
    fiber = fiber->next;
  } while (fiber != self->current);
  char text[512];
  int used = snprintf(text, sizeof text, "a barrier can never complete:");
  if (at_barrier) {
    used += snprintf(text + used, sizeof text - (size_t)used, " %u thread%s, (%u, %u, %u) first, wait%s at __syncthreads()",
                     at_barrier, plural(at_barrier), first_barrier->index[0], first_barrier->index[1],
                     first_barrier->index[2], at_barrier == 1 ? "s" : "");
  }
  if (at_warp) {
    used += snprintf(text + used, sizeof text - (size_t)used,
                     "%s %u thread%s, (%u, %u, %u) first, wait%s at %s for lanes of the mask that do not come",
                     at_barrier ? " and" : "", at_warp, plural(at_warp), first_warp->index[0], first_warp->index[1],
                     first_warp->index[2], at_warp == 1 ? "s" : "", first_warp->waits_for);
  }
  fail(self, NULL, "%s", text);
  leave(self);
}

/* Nothing else moves: threads that asked which lanes are with them now get their answer. */
bool settle_active(Worker* self);

/* A fiber was resumed and has nothing to do. Who is resumed to go on was let go by something that moved, and once more
 * fibers than there are had nothing to do since then, each of them has been asked. */
__attribute__((noinline)) void count_idle(Worker* self) {
  if (++self->idle > self->living && !settle_active(self)) report_deadlock(self);
}

/* Let the others run until `is_over` says that the wait is. */
template <class Test>
inline void wait_until(Worker* self, Test is_over) {
  while (true) {
    switch_to(self, self->current->next);
    if (__builtin_expect(is_over(), 1)) return;
    count_idle(self);
  }
}

void note_move(Worker* self) {
  ++self->moves;
  self->idle = 0;
}

bool settle_active(Worker* self) {
  bool found = false;
  const uint32_t warps = (self->place.block[0] * self->place.block[1] * self->place.block[2] + kWarp - 1) / kWarp;
  for (uint32_t number = 0; number < warps; ++number) {
    Warp* warp = &self->warps[number];
    Fiber* lanes = &self->fibers[number * kWarp];
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      if (!(warp->living >> lane & 1) || lanes[lane].active_site == NULL) continue;
      uint32_t mask = 0;
      const void* site = lanes[lane].active_site;
      for (uint32_t other = lane; other < kWarp; ++other) {
        if ((warp->living >> other & 1) && lanes[other].active_site == site) mask |= 1u << other;
      }
      for (uint32_t other = lane; other < kWarp; ++other) {
        if (!(mask >> other & 1)) continue;
        lanes[other].active_site = NULL;
        lanes[other].active_mask = mask;
      }
      found = true;
    }
  }
  if (found) self->idle = 0;
  return found;
}

void open_barrier(Worker* self) {
  self->results[JITLOAD_CPU_COUNT] = (int)self->trues;
  self->results[JITLOAD_CPU_AND] = self->trues == self->arrived;
  self->results[JITLOAD_CPU_OR] = self->trues != 0;
  self->trues = 0;
  self->arrived = 0;
  ++self->generation;
  note_move(self);
}

/* A fiber has run to its end. */
[[noreturn]] void finish(Worker* self) {
  Fiber* fiber = self->current;
  Warp* warp = &self->warps[fiber->number / kWarp];
  warp->living &= ~(1u << fiber->number % kWarp);
  note_move(self);
  if (--self->living == 0) {
    Context unused;
    jitload_cpu_switch(&unused, &self->scheduler);
    __builtin_unreachable();
  }
  fiber->previous->next = fiber->next;
  fiber->next->previous = fiber->previous;
  if (self->arrived == self->living) open_barrier(self);
  switch_to(self, fiber->next);
  __builtin_unreachable();
}

void start_fiber() {
  Worker* self = jitload_cpu_here;
  const Fiber* fiber = self->current;
  self->launch->call->kernel->thread(self->launch->call->params, &self->place, fiber->index);
  finish(jitload_cpu_here);
}

/* ---- a block --------------------------------------------------------------------------------------------------- */

void release(Worker* self) {
  free(self->fibers);
  free(self->warps);
  if (self->stacks != NULL) munmap(self->stacks, self->capacity * kStack);
  __atomic_fetch_sub(&split_guards, self->guards, __ATOMIC_RELAXED);
  self->fibers = NULL;
  self->warps = NULL;
  self->stacks = NULL;
  self->capacity = self->guards = 0;
}

/* Keep one stack from running into the next. Before Linux 6.13 the page splits its mapping, of which a process has 65,530
 * at most: helpers that would take more than their share take no block. */
bool guard(Worker* self, char* page, bool is_helper) {
  if (madvise(page, 4096, kGuardInstall) == 0) return true;
  if (is_helper && __atomic_load_n(&split_guards, __ATOMIC_RELAXED) >= kMostSplitGuards) return false;
  if (mprotect(page, 4096, PROT_NONE) != 0) return false;
  __atomic_add_fetch(&split_guards, 1, __ATOMIC_RELAXED);
  ++self->guards;
  return true;
}

bool reserve(Worker* self, uint32_t count, bool is_helper) {
  if (count <= self->capacity) return true;
  release(self);
  void* stacks = mmap(NULL, count * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return false;
  self->stacks = (char*)stacks;
  self->capacity = count;
  self->fibers = (Fiber*)aligned_alloc(alignof(Fiber), (count + kWarp) * sizeof(Fiber));
  self->warps = (Warp*)calloc(count / kWarp + 1, sizeof(Warp));
  bool is_whole = self->fibers != NULL && self->warps != NULL;
  for (uint32_t i = 0; is_whole && i < count; ++i) is_whole = guard(self, self->stacks + i * kStack, is_helper);
  if (is_whole) {
    memset(self->fibers, 0, (count + kWarp) * sizeof(Fiber));
  } else {
    release(self);
  }
  return is_whole;
}

/* Stacks that began at the same place of a page would share a few lines of the cache. */
char* stack_end(Worker* self, uint32_t number) { return self->stacks + (number + 1) * kStack - number % 21 * 192; }

void run_fibers(Worker* self) {
  const uint32_t* extent = self->place.block;
  const uint32_t count = extent[0] * extent[1] * extent[2];
  uint32_t number = 0;
  for (uint32_t z = 0; z < extent[2]; ++z) {
    for (uint32_t y = 0; y < extent[1]; ++y) {
      for (uint32_t x = 0; x < extent[0]; ++x, ++number) {
        Fiber* fiber = &self->fibers[number];
        fiber->index[0] = x, fiber->index[1] = y, fiber->index[2] = z;
        fiber->number = number;
        fiber->waits_for = NULL, fiber->active_site = NULL;
        fiber->next = &self->fibers[number + 1 == count ? 0 : number + 1];
        fiber->previous = &self->fibers[number == 0 ? count - 1 : number - 1];
        prepare(&fiber->context, stack_end(self, number), start_fiber);
      }
    }
  }
  for (uint32_t warp = 0; warp * kWarp < count; ++warp) {
    const uint32_t lanes = count - warp * kWarp;
    self->warps[warp].living = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    self->warps[warp].used = 0;
    self->warps[warp].newest = NULL;
  }
  self->living = count;
  self->arrived = 0;
  self->idle = 0;
  self->trues = 0;
  self->current = self->fibers;
  self->is_in_fibers = 1;
  jitload_cpu_switch(&self->scheduler, &self->fibers[0].context);
  self->is_in_fibers = 0;
}

}  // namespace

/* ---- what kernels call ----------------------------------------------------------------------------------------- */

extern "C" int jitload_cpu_barrier(Worker* self, int kind, int predicate, const void* site) {
  if (kWatches && self->arrived != 0 && self->barrier != site) {
    fail(self, self->current->index, "threads of one block meet at different barriers, at lines %d and %d,",
         (int)(uintptr_t)self->barrier, (int)(uintptr_t)site);
    leave(self);
  }
  self->barrier = site;
  self->trues += predicate != 0;
  if (++self->arrived == self->living) {
    open_barrier(self);
  } else {
    const uint32_t generation = self->generation;
    self->current->waits_for = NULL;
    wait_until(self, [=] { return self->generation != generation; });
  }
  return self->results[kind];
}

/* The meeting of these lanes that is still open, or a new one. */
__attribute__((noinline)) static Meeting* find_meeting(Worker* self, Warp* warp, uint32_t mask, const char* what) {
  const Fiber* fiber = self->current;
  if (!(mask >> fiber->number % kWarp & 1)) {
    fail(self, fiber->index, "%s with mask 0x%08x, which lacks lane %u that calls it,", what, mask, fiber->number % kWarp);
    leave(self);
  }
  for (uint32_t left = warp->used; left != 0; left &= left - 1) {
    Meeting* open = &warp->meetings[__builtin_ctz(left)];
    if (open->mask == mask && !open->is_complete) return open;
  }
  const uint32_t number = (uint32_t)__builtin_ctz(~warp->used);
  warp->used |= 1u << number;
  Meeting* meeting = &warp->meetings[number];
  memset(meeting, 0, sizeof *meeting);
  meeting->mask = mask;
  return warp->newest = meeting;
}

extern "C" uint32_t jitload_cpu_exchange(Worker* self, uint32_t mask, uint64_t value, const uint64_t** out,
                                         const char* what) {
  Fiber* fiber = self->current;
  const uint32_t number = fiber->number % kWarp, lane = 1u << number;
  Warp* warp = &self->warps[fiber->number / kWarp];
  Meeting* meeting = warp->newest;
  if (meeting == NULL || meeting->mask != mask || meeting->is_complete || !(mask & lane)) {
    meeting = find_meeting(self, warp, mask, what);
  }
  meeting->came |= lane;
  meeting->values[number] = value;
  meeting->values[kWarp] |= (uint64_t)(value != 0) << number;
  const auto is_over = [=] { /* lanes that are awaited may have ended */
    if (!meeting->is_complete && (mask & warp->living & ~meeting->came) == 0) {
      meeting->is_complete = true;
      note_move(self);
    }
    return meeting->is_complete;
  };
  if (!is_over()) {
    fiber->waits_for = what;
    wait_until(self, is_over);
  }
  meeting->read |= lane;
  if (meeting->read == meeting->came) warp->used &= ~(1u << (meeting - warp->meetings));
  *out = meeting->values;
  return meeting->came;
}

extern "C" uint32_t jitload_cpu_active(const void* site) {
  Worker* self = jitload_cpu_here;
  Fiber* fiber = self->current;
  fiber->active_site = site;
  fiber->waits_for = "__activemask()";
  wait_until(self, [=] { return fiber->active_site == NULL; });
  return fiber->active_mask;
}

/* A block whose threads do nothing but look again waits for another block. One that is not running yet comes when a
 * thread of the pool is free; one that waits for this block never does. */
static void look_again(Worker* self) {
  if (__atomic_load_n(&self->launch->has_failed, __ATOMIC_RELAXED)) leave(self);
  sched_yield();
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  if (self->spins_since == 0) self->spins_since = time.tv_sec;
  if (time.tv_sec - self->spins_since < kSpinTime) return;
  fail(self, self->current->index,
       "threads look at memory again and again, for %d seconds, and nothing they wait for happens (a block that waits "
       "for a later one is GPU only)", kSpinTime);
  leave(self);
}

extern "C" void jitload_cpu_yield(void) {
  Worker* self = jitload_cpu_here;
  if (self == NULL || !self->is_in_fibers) return;
  if (self->moves != self->seen_moves) {
    self->seen_moves = self->moves;
    self->spins = 0;
    self->spins_since = 0;
  }
  if (++self->spins % (64 * self->living) == 0) look_again(self);
  self->idle = 0;
  switch_to(self, self->current->next);
}
