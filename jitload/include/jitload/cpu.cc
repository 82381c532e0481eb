/* Runs grids of kernels that were compiled for the CPU: blocks are dealt to a pool of threads, the launching one among
 * them. A kernel that never waits runs its block as plain loops, one that may wait as fibers.
 */
#include "cpu.h"

#include <link.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "cpu_faults.h"
#include "cpu_pool.h"

namespace {

/* Add the line of `launch->where` to the message. */
void name_line(Launch* launch);

void go_to_block(jitload_cpu_place* place, uint64_t number) {
  const uint64_t width = place->grid[0], height = place->grid[1];
  place->at[0] = (uint32_t)(number % width);
  place->at[1] = (uint32_t)(number / width % height);
  place->at[2] = (uint32_t)(number / width / height);
}

/* Run up to `most` blocks from here on; returns how many. */
uint32_t run_blocks(Worker* self, uint64_t most) {
  const jitload_cpu_launch* call = self->launch->call;
  if (kWatches || call->can_wait) {
    run_fibers(self);
    return 1;
  }
  const uint32_t in_row = self->place.grid[0] - self->place.at[0];
  const uint32_t count = most < in_row ? (uint32_t)most : in_row;
  call->kernel->blocks(call->params, &self->place, count);
  return count;
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------------------------- */

int64_t now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

void look_for_signals(Launch* launch) {
  if (launch->is_interrupted || TVMFFIEnvCheckSignals() == 0) return;
  launch->is_interrupted = 1;
  __atomic_store_n(&launch->has_failed, 1, __ATOMIC_RELEASE);
}

/* ---- the blocks of a launch ------------------------------------------------------------------------------------ */

/* How many blocks a thread runs before it looks up: as many as pass in a small part of the patience. */
struct Clock {
  int64_t next_look;
  int64_t last;
  uint32_t blocks;
};

void look_up(Clock* clock, Launch* launch, bool looks) {
  const int64_t time = now();
  if (time - clock->last > 4) {
    clock->blocks = 1;
  } else if (clock->blocks < 64) {
    clock->blocks *= 2;
  }
  if (looks && time != clock->last) call_all(launch);
  clock->last = time;
  if (!looks || time < clock->next_look) return;
  look_for_signals(launch);
  clock->next_look = now() + kPatience;
}

void work_through(Worker* self, Launch* launch, bool looks) {
  const int64_t time = now();
  Clock clock = {time + kPatience, time, 1};
  for (uint32_t i = 0; i < launch->part_count;) {
    Part* part = &launch->parts[(helper_number + i) % launch->part_count];
    const uint64_t first = __atomic_fetch_add(&part->next, launch->chunk, __ATOMIC_RELAXED);
    const uint64_t end = first + launch->chunk < part->end ? first + launch->chunk : part->end;
    if (first >= end) ++i;
    for (uint64_t number = first; number < end; look_up(&clock, launch, looks)) {
      if (__atomic_load_n(&launch->has_failed, __ATOMIC_RELAXED)) return;
      go_to_block(&self->place, number);
      number += run_blocks(self, end - number < clock.blocks ? end - number : clock.blocks);
    }
  }
}

/* Run the first blocks, twice as many each time, until it shows that the others are worth helpers' while. */
void try_alone(Worker* self, Launch* launch, bool) {
  int64_t last = now_ns();
  for (uint64_t count = 1; launch->next < launch->blocks && !launch->has_failed; count *= 2) {
    const uint64_t end = launch->next + count < launch->blocks ? launch->next + count : launch->blocks;
    const uint64_t first = launch->next;
    while (launch->next < end) {
      go_to_block(&self->place, launch->next);
      launch->next += run_blocks(self, end - launch->next);
    }
    const int64_t time = now_ns();
    launch->block_ns = (time - last) / (int64_t)(end - first) + 1;
    if (worthy_helpers(launch) != 0) return;
    if (time - last > kPatience * 1000000) look_for_signals(launch);
    last = time;
  }
}

/* A kernel's plain loops are there a second time for these processors, see jitload_cpu.h. */
uint32_t is_wide() {
#if defined(__x86_64__)
  static const bool answer = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return answer;
#else
  return 0;
#endif
}

int find_own_memory(struct dl_phdr_info* info, size_t, void*) {
  const uintptr_t begin = (uintptr_t)info->dlpi_tls_data, here = (uintptr_t)&jitload_cpu_own;
  for (int i = 0; i < info->dlpi_phnum && begin != 0; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_TLS || here < begin || here >= begin + part->p_memsz) continue;
    jitload_cpu_own[0] = begin;
    jitload_cpu_own[1] = part->p_memsz;
    return 1;
  }
  return 0;
}

/* A thread's own, until it ends. */
struct Own {
  Worker worker;
  ~Own() { release(&worker); }
};

bool has_stacks(Worker* self, bool is_helper) {
  const uint32_t* block = self->place.block;
  return !(kWatches || self->launch->call->can_wait) || reserve(self, block[0] * block[1] * block[2], is_helper);
}

void work_on(Launch* launch, bool looks, void (*work)(Worker*, Launch*, bool)) {
  static thread_local Own own;
  Worker* self = &own.worker;
  jitload_cpu_here = self;
  if (!kWatches && jitload_cpu_own[1] == 0) dl_iterate_phdr(find_own_memory, NULL);
  self->launch = launch;
  self->place = launch->call->place;
  self->place.is_wide = is_wide();
  self->is_in_fibers = 0;
  self->where = NULL;
  if (!has_stacks(self, !looks)) {
    if (looks) fail(self, NULL, "no memory for the stacks of its threads");
  } else if (_setjmp(self->out) == 0) {
    work(self, launch, looks);
  }
  jitload_cpu_here = NULL;
}

/* ---- who works ------------------------------------------------------------------------------------------------- */

/* Another thread's grid may have the pool, and that thread may wait for a GIL that this one holds: after a while this
 * grid runs without. */
void run_with_pool(Launch* launch) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_nsec += kPatience * 1000000;
  if (end.tv_nsec >= 1000000000) end.tv_nsec -= 1000000000, ++end.tv_sec;
  if (pthread_mutex_timedlock(&pool.turn, &end) != 0) {
    Part rest;
    deal_out(launch, &rest, 1);
    return work_on(launch, true, work_through);
  }
  open_pool(launch);
  work_on(launch, true, work_through);
  close_pool(launch);
  pthread_mutex_unlock(&pool.turn);
}

void run(Launch* launch) {
  work_on(launch, true, try_alone);
  if (launch->next < launch->blocks && !launch->has_failed) run_with_pool(launch);
}

}  // namespace

extern "C" void jitload_cpu_stop(const uint32_t index[3], const char* format, ...) {
  char text[768];
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  fail(jitload_cpu_here, index, "%s", text);
  leave(jitload_cpu_here);
}

extern "C" int jitload_cpu_run(const jitload_cpu_launch* call, const char** error) {
  static __thread char message[sizeof(Launch::error)];
  const jitload_cpu_place* place = &call->place;
  Launch launch;
  launch.call = call;
  launch.blocks = (uint64_t)place->grid[0] * place->grid[1] * place->grid[2];
  launch.chunk = 1;
  launch.block_ns = 0;
  launch.next = 0;
  launch.has_failed = 0;
  launch.is_interrupted = 0;
  launch.where = NULL;
  launch.error[0] = 0;
  watch_faults();
  run(&launch);
  fflush(stdout); /* what kernels printed comes before what Python prints next */
  if (!launch.has_failed) return 0;
  if (launch.is_interrupted) return JITLOAD_CPU_INTERRUPTED;
  if (kWatches && launch.where != NULL) name_line(&launch);
  memcpy(message, launch.error, sizeof message);
  *error = message;
  return -1;
}
