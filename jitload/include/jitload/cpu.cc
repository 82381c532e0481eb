/* Runs grids of kernels that were compiled for the CPU.
 *
 * Blocks are dealt to a pool of threads, the launching one among them. A kernel that never waits runs its block as
 * plain loops. One that may wait (a barrier, a warp operation) gets a fiber for each CUDA thread, and the fibers of a
 * block take turns on one thread: a wait is a switch to the next fiber, so a block whose threads all wait for
 * something that cannot come is seen at once.
 */
#include "cpu.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr size_t kStack = 128 * 1024; /* of a fiber; touched pages alone take memory */
constexpr uint32_t kWarp = 32;
constexpr uint64_t kWorthThePool = 8192; /* threads of a grid from which waking others pays */

/* ---- switching fibers ------------------------------------------------------------------------------------------ */

struct Context {
  void* stack_pointer;
};

#if defined(__x86_64__)
/* Saves what the ABI says a call keeps, swaps stacks, restores. */
extern "C" void jitload_cpu_switch(Context* from, const Context* to);
__asm__(
    ".pushsection .text\n"
    ".globl jitload_cpu_switch\n"
    ".hidden jitload_cpu_switch\n"
    ".type jitload_cpu_switch, @function\n"
    "jitload_cpu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq (%rsi), %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size jitload_cpu_switch, .-jitload_cpu_switch\n"
    ".popsection\n");

void prepare(Context* context, char* stack_end, void (*entry)()) {
  void** top = (void**)((uintptr_t)stack_end & ~(uintptr_t)15);
  *--top = NULL; /* where entry would return to: it never does */
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = NULL;
  context->stack_pointer = top;
}
#elif defined(__aarch64__)
extern "C" void jitload_cpu_switch(Context* from, const Context* to);
__asm__(
    ".pushsection .text\n"
    ".globl jitload_cpu_switch\n"
    ".hidden jitload_cpu_switch\n"
    ".type jitload_cpu_switch, %function\n"
    "jitload_cpu_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n"
    "  ldr x9, [x1]\n  mov sp, x9\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size jitload_cpu_switch, .-jitload_cpu_switch\n"
    ".popsection\n");

void prepare(Context* context, char* stack_end, void (*entry)()) {
  void** top = (void**)((uintptr_t)stack_end & ~(uintptr_t)15);
  top -= 20;
  memset(top, 0, 160);
  top[11] = (void*)entry; /* x30: where the switch returns to */
  context->stack_pointer = top;
}
#else
#error "the CPU target runs on x86-64 and aarch64"
#endif

/* ---- a block of fibers ----------------------------------------------------------------------------------------- */

struct Fiber {
  Context context;
  Fiber* next; /* living fibers in a ring */
  Fiber* previous;
  const void* waits_at; /* the site of the barrier it waits at, for a message */
  const char* waits_for;
  const void* active_site;
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
  uint64_t values[kWarp];
};

struct Warp {
  uint32_t living;
  Meeting meetings[kWarp];
  uint32_t used; /* by bit */
};

struct Launch;

/* What a thread of the pool keeps from block to block. */
struct Worker {
  Fiber* fibers;
  Warp* warps;
  char* stacks;
  uint32_t capacity;
  Fiber* current;
  Context scheduler;
  const Launch* launch;
  jitload_cpu_place place;
  uint32_t living;
  uint32_t arrived;
  uint32_t generation;
  uint32_t idle; /* how many fibers in a row were resumed and had nothing to do */
  int sums[3];
  int results[3];
  jmp_buf out; /* to where a thread that must end jumps */
  int is_in_fibers;
  const uint32_t* plain_index;
};

struct Launch {
  const jitload_cpu_kernel* kernel;
  const char* name;
  void* const* params;
  jitload_cpu_place place;
  uint64_t blocks;
  uint64_t chunk;
  uint64_t next;
  int can_wait;
  int has_failed;
  uint32_t running;
  char error[1024];
};

__thread Worker* worker;

void fail(Worker* self, const uint32_t* thread, const char* format, ...) {
  Launch* launch = const_cast<Launch*>(self->launch);
  int expected = 0;
  if (!__atomic_compare_exchange_n(&launch->has_failed, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  const uint32_t* at = self->place.at;
  int used = snprintf(launch->error, sizeof launch->error, "%s(): ", launch->name);
  va_list rest;
  va_start(rest, format);
  used += vsnprintf(launch->error + used, sizeof launch->error - (size_t)used, format, rest);
  va_end(rest);
  if (used < 0 || (size_t)used >= sizeof launch->error) return;
  used += snprintf(launch->error + used, sizeof launch->error - (size_t)used, " in block (%u, %u, %u)", at[0], at[1], at[2]);
  if (thread == NULL || (size_t)used >= sizeof launch->error) return;
  snprintf(launch->error + used, sizeof launch->error - (size_t)used, ", thread (%u, %u, %u)", thread[0], thread[1], thread[2]);
}

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
  jitload_cpu_switch(&from->context, &to->context);
}

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

/* Let the others run until `is_over` says that the wait is. */
template <class Test>
inline void wait_until(Worker* self, Test is_over) {
  while (true) {
    switch_to(self, self->current->next);
    if (is_over()) {
      self->idle = 0;
      return;
    }
    if (++self->idle > self->living && !settle_active(self)) report_deadlock(self);
  }
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
        lanes[other].waits_at = (const void*)(uintptr_t)mask;
      }
      found = true;
    }
  }
  if (found) self->idle = 0;
  return found;
}

void open_barrier(Worker* self) {
  self->results[JITLOAD_CPU_COUNT] = self->sums[JITLOAD_CPU_COUNT];
  self->results[JITLOAD_CPU_AND] = self->sums[JITLOAD_CPU_AND] == 0;
  self->results[JITLOAD_CPU_OR] = self->sums[JITLOAD_CPU_COUNT] != 0;
  self->sums[0] = self->sums[1] = self->sums[2] = 0;
  self->arrived = 0;
  ++self->generation;
  self->idle = 0;
}

/* A fiber has run to its end. */
[[noreturn]] void finish(Worker* self) {
  Fiber* fiber = self->current;
  Warp* warp = &self->warps[fiber->number / kWarp];
  warp->living &= ~(1u << fiber->number % kWarp);
  self->idle = 0;
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
  Worker* self = worker;
  const Fiber* fiber = self->current;
  self->launch->kernel->thread(self->launch->params, &self->place, fiber->index);
  finish(worker);
}

/* ---- a block --------------------------------------------------------------------------------------------------- */

bool reserve(Worker* self, uint32_t count) {
  if (count <= self->capacity) return true;
  free(self->fibers);
  free(self->warps);
  if (self->stacks != NULL) munmap(self->stacks, self->capacity * kStack);
  self->capacity = 0;
  self->fibers = (Fiber*)calloc(count + kWarp, sizeof(Fiber));
  self->warps = (Warp*)calloc(count / kWarp + 1, sizeof(Warp));
  void* stacks = mmap(NULL, count * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  self->stacks = stacks == MAP_FAILED ? NULL : (char*)stacks;
  if (self->fibers == NULL || self->warps == NULL || self->stacks == NULL) return false;
  for (uint32_t i = 0; i < count; ++i) mprotect(self->stacks + i * kStack, 4096, PROT_NONE);
  self->capacity = count;
  return true;
}

void run_fibers(Worker* self) {
  const uint32_t* extent = self->place.block;
  const uint32_t count = extent[0] * extent[1] * extent[2];
  if (!reserve(self, count)) {
    fail(self, NULL, "no memory for the stacks of %u threads", count);
    return;
  }
  uint32_t number = 0;
  for (uint32_t z = 0; z < extent[2]; ++z) {
    for (uint32_t y = 0; y < extent[1]; ++y) {
      for (uint32_t x = 0; x < extent[0]; ++x, ++number) {
        Fiber* fiber = &self->fibers[number];
        fiber->index[0] = x, fiber->index[1] = y, fiber->index[2] = z;
        fiber->number = number;
        fiber->waits_at = NULL, fiber->waits_for = NULL, fiber->active_site = NULL;
        fiber->next = &self->fibers[number + 1 == count ? 0 : number + 1];
        fiber->previous = &self->fibers[number == 0 ? count - 1 : number - 1];
        prepare(&fiber->context, self->stacks + (number + 1) * kStack, start_fiber);
      }
    }
  }
  for (uint32_t warp = 0; warp * kWarp < count; ++warp) {
    const uint32_t lanes = count - warp * kWarp;
    self->warps[warp].living = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    self->warps[warp].used = 0;
  }
  self->living = count;
  self->arrived = 0;
  self->idle = 0;
  self->sums[0] = self->sums[1] = self->sums[2] = 0;
  self->current = self->fibers;
  self->is_in_fibers = 1;
  jitload_cpu_switch(&self->scheduler, &self->fibers[0].context);
  self->is_in_fibers = 0;
}

void run_block(Worker* self, uint64_t number) {
  const Launch* launch = self->launch;
  const uint64_t width = launch->place.grid[0], height = launch->place.grid[1];
  self->place.at[0] = (uint32_t)(number % width);
  self->place.at[1] = (uint32_t)(number / width % height);
  self->place.at[2] = (uint32_t)(number / width / height);
  if (launch->can_wait) {
    run_fibers(self);
  } else {
    launch->kernel->block(launch->params, &self->place);
  }
}

/* ---- the pool -------------------------------------------------------------------------------------------------- */

struct Pool {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* one grid at a time has the pool */
  pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;
  pthread_cond_t is_done = PTHREAD_COND_INITIALIZER;
  Launch* launch = NULL;
  uint64_t round = 0;
  uint32_t threads = 0;
  pid_t owner = 0;
};
Pool pool;

void work_on(Launch* launch) {
  static thread_local Worker own;
  Worker* self = &own;
  Worker* outer = worker;
  worker = self;
  self->launch = launch;
  self->place = launch->place;
  self->is_in_fibers = 0;
  if (_setjmp(self->out) == 0) {
    while (!__atomic_load_n(&launch->has_failed, __ATOMIC_RELAXED)) {
      const uint64_t first = __atomic_fetch_add(&launch->next, launch->chunk, __ATOMIC_RELAXED);
      if (first >= launch->blocks) break;
      const uint64_t end = first + launch->chunk < launch->blocks ? first + launch->chunk : launch->blocks;
      for (uint64_t number = first; number < end; ++number) {
        run_block(self, number);
        if (__atomic_load_n(&launch->has_failed, __ATOMIC_RELAXED)) break;
      }
    }
  }
  worker = outer;
}

void* serve(void*) {
  uint64_t seen = 0;
  pthread_mutex_lock(&pool.lock);
  while (true) {
    while (pool.launch == NULL || pool.round == seen) pthread_cond_wait(&pool.has_work, &pool.lock);
    seen = pool.round;
    Launch* launch = pool.launch;
    ++launch->running;
    pthread_mutex_unlock(&pool.lock);
    work_on(launch);
    pthread_mutex_lock(&pool.lock);
    if (--launch->running == 0) pthread_cond_broadcast(&pool.is_done);
  }
  return NULL;
}

uint32_t processors() {
  const char* asked = getenv("JITLOAD_CPU_THREADS");
  if (asked != NULL && atoi(asked) > 0) return (uint32_t)atoi(asked);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

/* Start what threads there are to be; those of a parent process did not come along. */
void fill_pool() {
  if (pool.owner == getpid()) return;
  pool.owner = getpid();
  pool.threads = 1;
  const uint32_t wanted = processors();
  while (pool.threads < wanted) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const int code = pthread_create(&thread, &attributes, serve, NULL);
    pthread_attr_destroy(&attributes);
    if (code != 0) break;
    ++pool.threads;
  }
}

void run_with_pool(Launch* launch) {
  pthread_mutex_lock(&pool.turn);
  pthread_mutex_lock(&pool.lock);
  fill_pool();
  launch->chunk = launch->blocks / (8 * (uint64_t)pool.threads) + 1;
  pool.launch = launch;
  ++pool.round;
  pthread_cond_broadcast(&pool.has_work);
  pthread_mutex_unlock(&pool.lock);
  work_on(launch);
  pthread_mutex_lock(&pool.lock);
  pool.launch = NULL;
  while (launch->running != 0) pthread_cond_wait(&pool.is_done, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
  pthread_mutex_unlock(&pool.turn);
}

}  // namespace

/* ---- what kernels call ----------------------------------------------------------------------------------------- */

extern "C" int jitload_cpu_barrier(int kind, int predicate, const void* site) {
  Worker* self = worker;
  const uint32_t generation = self->generation;
  self->sums[JITLOAD_CPU_COUNT] += predicate != 0;
  self->sums[JITLOAD_CPU_AND] += predicate == 0;
  if (++self->arrived == self->living) {
    open_barrier(self);
  } else {
    self->current->waits_at = site;
    self->current->waits_for = NULL;
    wait_until(self, [=] { return self->generation != generation; });
  }
  return self->results[kind];
}

extern "C" uint32_t jitload_cpu_exchange(uint32_t mask, uint64_t value, const uint64_t** out, const char* what) {
  Worker* self = worker;
  Fiber* fiber = self->current;
  Warp* warp = &self->warps[fiber->number / kWarp];
  const uint32_t lane = 1u << fiber->number % kWarp;
  if (!(mask & lane)) {
    fail(self, fiber->index, "%s with mask 0x%08x, which lacks lane %u that calls it,", what, mask, fiber->number % kWarp);
    leave(self);
  }
  Meeting* meeting = NULL;
  for (uint32_t left = warp->used; left != 0 && meeting == NULL; left &= left - 1) {
    Meeting* open = &warp->meetings[__builtin_ctz(left)];
    if (open->mask == mask && !open->is_complete) meeting = open;
  }
  if (meeting == NULL) {
    const uint32_t number = (uint32_t)__builtin_ctz(~warp->used);
    warp->used |= 1u << number;
    meeting = &warp->meetings[number];
    memset(meeting, 0, sizeof *meeting);
    meeting->mask = mask;
  }
  meeting->came |= lane;
  meeting->values[fiber->number % kWarp] = value;
  const auto is_over = [=] {
    meeting->is_complete |= (meeting->mask & warp->living & ~meeting->came) == 0;
    return meeting->is_complete;
  };
  if (!is_over()) {
    fiber->waits_for = what;
    wait_until(self, is_over);
  }
  self->idle = 0;
  meeting->read |= lane;
  if (meeting->read == meeting->came) warp->used &= ~(1u << (meeting - warp->meetings));
  *out = meeting->values;
  return meeting->came;
}

extern "C" uint32_t jitload_cpu_active(const void* site) {
  Worker* self = worker;
  Fiber* fiber = self->current;
  fiber->active_site = site;
  fiber->waits_for = "__activemask()";
  wait_until(self, [=] { return fiber->active_site == NULL; });
  return (uint32_t)(uintptr_t)fiber->waits_at;
}

extern "C" void jitload_cpu_yield(void) {
  Worker* self = worker;
  if (self == NULL || !self->is_in_fibers) return;
  self->idle = 0;
  switch_to(self, self->current->next);
}

extern "C" void jitload_cpu_stop(const uint32_t index[3], const char* format, ...) {
  char text[768];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  fail(worker, index, "%s", text);
  leave(worker);
}

extern "C" int jitload_cpu_run(const jitload_cpu_kernel* kernel, const char* name, int can_wait,
                               const jitload_cpu_place* place, void* const* params, const char** error) {
  static __thread char message[sizeof(Launch::error)];
  Launch launch;
  launch.kernel = kernel;
  launch.name = name;
  launch.params = params;
  launch.place = *place;
  launch.blocks = (uint64_t)place->grid[0] * place->grid[1] * place->grid[2];
  launch.chunk = launch.blocks;
  launch.next = 0;
  launch.can_wait = can_wait;
  launch.has_failed = 0;
  launch.running = 0;
  launch.error[0] = 0;
  const uint64_t threads = launch.blocks * place->block[0] * place->block[1] * place->block[2];
  if (launch.blocks == 1 || threads < kWorthThePool) {
    launch.chunk = 1;
    work_on(&launch);
  } else {
    run_with_pool(&launch);
  }
  if (!launch.has_failed) return 0;
  memcpy(message, launch.error, sizeof message);
  *error = message;
  return -1;
}
