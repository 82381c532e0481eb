/* Runs grids of kernels that were compiled for the CPU: blocks are dealt to a pool of threads, the launching one among
 * them. A kernel that never waits runs its block as plain loops, one that may wait as fibers.
 */
#include "cpu.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "cpu_worker.h"

namespace {

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
