/* Runs grids of kernels that were compiled for the CPU: blocks are dealt to a pool of threads, the launching one among
 * them. A kernel that never waits runs its block as plain loops, one that may wait as fibers.
 */
#include "cpu.h"

#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <unistd.h>

#include "cpu_faults.h"
#include "cpu_worker.h"

namespace {

/* Add the line of `launch->where` to the message. */
void name_line(Launch* launch);

constexpr int64_t kPatience = 50;    /* milliseconds between two looks for Ctrl-C */
constexpr int64_t kIdleTime = 10000; /* milliseconds after which a thread of the pool without work ends */

void go_to_block(jitload_cpu_place* place, uint64_t number) {
  const uint64_t width = place->grid[0], height = place->grid[1];
  place->at[0] = (uint32_t)(number % width);
  place->at[1] = (uint32_t)(number / width % height);
  place->at[2] = (uint32_t)(number / width / height);
}

void go_on(jitload_cpu_place* place) {
  if (++place->at[0] < place->grid[0]) return;
  place->at[0] = 0;
  if (++place->at[1] < place->grid[1]) return;
  place->at[1] = 0;
  ++place->at[2];
}

void run_block(Worker* self) {
  const jitload_cpu_launch* call = self->launch->call;
  if (kWatches || call->can_wait) {
    run_fibers(self);
  } else {
    call->kernel->block(call->params, &self->place);
  }
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------------------------- */

int64_t now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

struct timespec in_a_while(clockid_t clock, int64_t milliseconds) {
  struct timespec time;
  clock_gettime(clock, &time);
  const int64_t nanoseconds = time.tv_nsec + milliseconds % 1000 * 1000000;
  time.tv_sec += (time_t)(milliseconds / 1000 + nanoseconds / 1000000000);
  time.tv_nsec = (long)(nanoseconds % 1000000000);
  return time;
}

/* On the launching thread: end the launch where Python has a signal that raises. This takes the GIL. */
void look_for_signals(Launch* launch) {
  if (launch->is_interrupted || TVMFFIEnvCheckSignals() == 0) return;
  launch->is_interrupted = 1;
  __atomic_store_n(&launch->has_failed, 1, __ATOMIC_RELEASE);
}

/* ---- the blocks of a launch ------------------------------------------------------------------------------------ */

/* When the launching thread looks at the clock next: after so many blocks as pass in a small part of the patience. */
struct Clock {
  int64_t next_look;
  int64_t last;
  uint32_t blocks;
  uint32_t left;
};

void look_at_clock(Clock* clock, Launch* launch) {
  const int64_t time = now();
  if (time - clock->last > 4) {
    clock->blocks = 1;
  } else if (clock->blocks < 64) {
    clock->blocks *= 2;
  }
  clock->left = clock->blocks;
  clock->last = time;
  if (time < clock->next_look) return;
  look_for_signals(launch);
  clock->next_look = now() + kPatience;
}

/* Deal out blocks until there are none, or until something fails. */
void work_through(Worker* self, Launch* launch, Clock* clock) {
  while (!__atomic_load_n(&launch->has_failed, __ATOMIC_RELAXED)) {
    const uint64_t first = __atomic_fetch_add(&launch->next, launch->chunk, __ATOMIC_RELAXED);
    if (first >= launch->blocks) return;
    const uint64_t end = first + launch->chunk < launch->blocks ? first + launch->chunk : launch->blocks;
    go_to_block(&self->place, first);
    for (uint64_t number = first; number < end; ++number, go_on(&self->place)) {
      run_block(self);
      if (clock != NULL && --clock->left == 0) look_at_clock(clock, launch);
      if (__atomic_load_n(&launch->has_failed, __ATOMIC_RELAXED)) return;
    }
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

void work_on(Launch* launch, bool is_launcher) {
  static thread_local Worker own;
  Worker* self = &own;
  jitload_cpu_here = self;
  if (!kWatches && jitload_cpu_own[1] == 0) dl_iterate_phdr(find_own_memory, NULL);
  self->launch = launch;
  self->place = launch->call->place;
  self->place.is_wide = is_wide();
  self->is_in_fibers = 0;
  self->where = NULL;
  const int64_t time = now();
  Clock clock = {time + kPatience, time, 1, 1};
  if (_setjmp(self->out) == 0) work_through(self, launch, is_launcher ? &clock : NULL);
  jitload_cpu_here = NULL;
}

/* ---- the pool -------------------------------------------------------------------------------------------------- */

struct Pool {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* one grid at a time has the pool */
  pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;
  pthread_cond_t is_done = PTHREAD_COND_INITIALIZER;
  Launch* launch = NULL;
  uint64_t round = 0;
  uint32_t threads = 1; /* the launching one among them */
  bool watches_forks = false;
};
Pool pool;

void* serve(void*) {
  uint64_t seen = 0;
  pthread_mutex_lock(&pool.lock);
  while (true) {
    while (pool.launch == NULL || pool.round == seen) {
      const struct timespec end = in_a_while(CLOCK_REALTIME, kIdleTime);
      if (pthread_cond_timedwait(&pool.has_work, &pool.lock, &end) == 0 || pool.launch != NULL) continue;
      --pool.threads;
      pthread_mutex_unlock(&pool.lock);
      return NULL;
    }
    seen = pool.round;
    Launch* launch = pool.launch;
    ++launch->running;
    pthread_mutex_unlock(&pool.lock);
    work_on(launch, false);
    pthread_mutex_lock(&pool.lock);
    if (--launch->running == 0) pthread_cond_broadcast(&pool.is_done);
  }
}

uint32_t processors() {
  const char* asked = getenv("JITLOAD_CPU_THREADS");
  if (asked != NULL && atoi(asked) > 0) return (uint32_t)atoi(asked);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

/* A child has the forking thread alone, and its locks may be held by one that it has not. */
void forget_pool() {
  pool = Pool();
  pool.watches_forks = true;
}

/* Start what threads there are to be. Signals are for the process's other threads. */
void fill_pool() {
  if (!pool.watches_forks) {
    pthread_atfork(NULL, NULL, forget_pool);
    pool.watches_forks = true;
  }
  static const uint32_t wanted = processors();
  if (pool.threads >= wanted) return;
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGFPE); /* a kernel's own */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  while (pool.threads < wanted && pthread_create(&thread, &attributes, serve, NULL) == 0) ++pool.threads;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Wait for the threads that still have a block. */
void wait_for_others(Launch* launch) {
  pthread_mutex_lock(&pool.lock);
  pool.launch = NULL;
  while (launch->running != 0) {
    const struct timespec end = in_a_while(CLOCK_REALTIME, kPatience);
    if (pthread_cond_timedwait(&pool.is_done, &pool.lock, &end) == 0) continue;
    pthread_mutex_unlock(&pool.lock);
    look_for_signals(launch);
    pthread_mutex_lock(&pool.lock);
  }
  pthread_mutex_unlock(&pool.lock);
}

/* Another thread's grid may have the pool, and that thread may wait for a GIL that this one holds: after a while this
 * grid runs without. */
void run_with_pool(Launch* launch) {
  const struct timespec end = in_a_while(CLOCK_REALTIME, kPatience);
  if (pthread_mutex_timedlock(&pool.turn, &end) != 0) {
    launch->chunk = 1;
    work_on(launch, true);
    return;
  }
  pthread_mutex_lock(&pool.lock);
  fill_pool();
  launch->chunk = launch->blocks / (8 * (uint64_t)pool.threads) + 1;
  pool.launch = launch;
  ++pool.round;
  pthread_cond_broadcast(&pool.has_work);
  pthread_mutex_unlock(&pool.lock);
  work_on(launch, true);
  wait_for_others(launch);
  pthread_mutex_unlock(&pool.turn);
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
  launch.next = 0;
  launch.has_failed = 0;
  launch.is_interrupted = 0;
  launch.running = 0;
  launch.where = NULL;
  launch.error[0] = 0;
  watch_faults();
  const uint64_t threads = launch.blocks * place->block[0] * place->block[1] * place->block[2];
  if (launch.blocks == 1 || threads < kWorthThePool) {
    work_on(&launch, true);
  } else {
    run_with_pool(&launch);
  }
  fflush(stdout); /* what kernels printed comes before what Python prints next */
  if (!launch.has_failed) return 0;
  if (launch.is_interrupted) return JITLOAD_CPU_INTERRUPTED;
  if (kWatches && launch.where != NULL) name_line(&launch);
  memcpy(message, launch.error, sizeof message);
  *error = message;
  return -1;
}
