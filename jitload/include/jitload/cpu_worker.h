/* What the parts that run kernels on the CPU know of a launch, and of a thread that works on it. */
#ifndef JITLOAD_CPU_WORKER_H_
#define JITLOAD_CPU_WORKER_H_

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <time.h>

#include "cpu.h"
#include "cpu_switch.h"

namespace {

constexpr size_t kStack = 128 * 1024; /* of a fiber; touched pages alone take memory */
constexpr uint32_t kWarp = 32;
constexpr int kSpinTime = 20; /* seconds */

struct alignas(64) Fiber { /* what a switch reads lies in one line of the cache */
  Context context;
  Fiber* next; /* living fibers in a ring */
  Fiber* previous;
  const char* waits_for;   /* for a message */
  const void* active_site; /* of the __activemask() that it waits in */
  uint32_t active_mask;    /* what that says */
  uint32_t index[3];
  uint32_t number;
};

/* One meeting of some lanes of a warp. It lasts until all that came have read, so each has a lane that waits in it
 * and a warp never has more of them than lanes. */
struct Meeting {
  uint32_t mask;
  uint32_t came;
  uint32_t read;
  bool is_complete;
  uint64_t values[kWarp + 1]; /* the last has a bit for each that is not zero */
};

struct Warp {
  uint32_t living;
  uint32_t used; /* meetings, by bit */
  Meeting* newest;
  Meeting meetings[kWarp];
};

struct Launch;

}  // namespace

/* What a thread of the pool keeps from block to block. */
struct jitload_cpu_worker {
  Fiber* current; /* first comes what each wait needs */
  Warp* warps;
  uint32_t living;
  uint32_t arrived;
  uint32_t trues; /* of those that arrived */
  uint32_t generation;
  uint32_t idle; /* how many fibers were resumed and had nothing to do since something moved */
  int results[3];
  uint64_t moves; /* barriers and exchanges that ended, and threads that did */
  const void* barrier; /* where the threads wait that came to a barrier */
  Fiber* fibers;
  char* stacks;
  uint32_t capacity;
  uint32_t guards; /* pages between stacks that split a mapping */
  Context scheduler;
  const Launch* launch;
  jitload_cpu_place place;
  uint64_t seen_moves; /* at the last look again */
  uint64_t spins;      /* looks since */
  time_t spins_since;
  jmp_buf out; /* to where a thread that must end jumps */
  int is_in_fibers;
  const void* where;
};

extern "C" {
__thread jitload_cpu_worker* jitload_cpu_here;
__thread uintptr_t jitload_cpu_own[2];
}

namespace {

typedef jitload_cpu_worker Worker;

#ifdef JITLOAD_CPU_WATCHES
constexpr bool kWatches = true; /* with sanitize= or debug=: a fiber for every thread, and more is looked at */
#else
constexpr bool kWatches = false;
#endif

/* The blocks that one thread begins with, the same at the next launch: what they touch may still be in its cache. Who has
 * done its own helps the others with theirs. */
struct alignas(64) Part {
  uint64_t next;
  uint64_t end;
};

struct Launch {
  const jitload_cpu_launch* call;
  const void* where; /* the code that failed, where its line is to be found */
  uint64_t blocks;
  uint64_t chunk;
  uint64_t next;    /* while one thread works alone */
  int64_t block_ns; /* what a block took then */
  struct Part* parts; /* of the rest */
  uint32_t part_count;
  int has_failed;
  int is_interrupted;
  char error[1024];
};

/* End the launch with an error in the block at hand; the first of several counts. `thread` may be NULL. */
void fail(Worker* self, const uint32_t* thread, const char* format, ...) {
  Launch* launch = const_cast<Launch*>(self->launch);
  int expected = 0;
  if (!__atomic_compare_exchange_n(&launch->has_failed, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  launch->where = self->where;
  const uint32_t* at = self->place.at;
  int used = snprintf(launch->error, sizeof launch->error, "%s(): ", launch->call->name);
  va_list rest;
  va_start(rest, format);
  used += vsnprintf(launch->error + used, sizeof launch->error - (size_t)used, format, rest);
  va_end(rest);
  if (used < 0 || (size_t)used >= sizeof launch->error) return;
  used += snprintf(launch->error + used, sizeof launch->error - (size_t)used, " in block (%u, %u, %u)", at[0], at[1], at[2]);
  if (thread == NULL || (size_t)used >= sizeof launch->error) return;
  snprintf(launch->error + used, sizeof launch->error - (size_t)used, ", thread (%u, %u, %u)", thread[0], thread[1], thread[2]);
}

/* Give up the block at hand. */
[[noreturn]] void leave(Worker* self) {
  if (self->is_in_fibers) {
    Context unused;
    jitload_cpu_switch(&unused, &self->scheduler);
    __builtin_unreachable();
  }
  _longjmp(self->out, 1);
}

void switch_to(Worker* self, Fiber* to) {
  Fiber* from = self->current;
  self->current = to;
  __builtin_prefetch(to->next->context.stack_pointer);
  jitload_cpu_switch(&from->context, &to->context);
}

}  // namespace

#endif /* JITLOAD_CPU_WORKER_H_ */
