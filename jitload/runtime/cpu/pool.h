/* The threads that help a thread that launches a grid. They join the grid while it is open, then watch for the next one
 * for a short while, and then sleep. They take no lock, because many threads that wake at once would queue for it.
 */
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker.h"

namespace {

/* Run `work` on this thread. An error in a block ends the work, and nothing else. */
void work_on(Launch* launch, bool is_launcher, void (*work)(Worker*, Launch*));

/* Run blocks until none are left or one fails. */
void run_ranges(Worker* worker, Launch* launch);

/* End the launch if a Python signal handler raises. This takes the GIL. */
void check_signals(Launch* launch);

constexpr uint32_t kOpen = 1u << 31;       /* flag of Pool::state: helpers may enter */
constexpr uint32_t kIsAwaited = 1u << 30;  /* flag: the launching thread sleeps until the last helper has left */
constexpr int64_t kSignalInterval = 50;    /* milliseconds between two checks for Ctrl-C */
constexpr int64_t kIdleTime = 10000;       /* milliseconds after which a thread without work ends */
constexpr int64_t kSpinBeforeSleep = 50000; /* nanoseconds */
constexpr int64_t kWorthHelper = 3000;     /* nanoseconds of work that justify a helper */
constexpr int64_t kWorthWaking = 40000;    /* likewise, for a helper that sleeps */
constexpr int64_t kLeastChunk = 500;       /* nanoseconds of work to take at once; less leads to contention */
constexpr int64_t kLongGrid = 4000000;     /* nanoseconds after which a grid may have all helpers */
constexpr uint32_t kMostRanges = 128;
constexpr size_t kThreadStack = 8 << 20;   /* bytes, whatever `ulimit -s` says; may include thread-local memory */
constexpr int kWatchSignal = SIGURG;       /* see watch.h */

struct Pool {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* held by the grid that uses the pool */
  Launch* launch = NULL;
  uint32_t grid_number = 0; /* the newest grid's number; sleeping helpers wait for it to change */
  uint32_t state = 0;       /* how many helpers are inside, and the flags above */
  uint32_t most_helpers = 0;
  uint32_t sleepers = 0;
  uint32_t threads = 0;
  Range ranges[kMostRanges];
};
Pool pool;
thread_local uint32_t helper_number; /* 0 in a thread that launches */

/* Sleep while `word` has this value; return whether the time ran out. */
bool sleep_timed_out(uint32_t* word, uint32_t value, int64_t milliseconds) {
  const struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000)};
  return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0) != 0 && errno == ETIMEDOUT;
}

void wake(uint32_t* word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

/* Spin for a short while; return whether `word` changed. */
bool changes_soon(const uint32_t* word, uint32_t value) {
  const int64_t end = now_ns() + kSpinBeforeSleep;
  do {
    for (int i = 0; i < 32; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#else
      __asm__ volatile("yield");
#endif
    }
  } while (now_ns() < end);
  return false;
}

/* ---- helpers --------------------------------------------------------------------------------------------------- */

bool enter() {
  uint32_t state = __atomic_load_n(&pool.state, __ATOMIC_RELAXED);
  while ((state & kOpen) && (state & ~kOpen) < __atomic_load_n(&pool.most_helpers, __ATOMIC_RELAXED)) {
    if (__atomic_compare_exchange_n(&pool.state, &state, state + 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
      return true;
    }
  }
  return false;
}

/* Wake two helpers, each of which wakes two more. Waking all of them would take the launching thread longer than a
 * small grid does. */
void wake_two() {
  if (__atomic_load_n(&pool.sleepers, __ATOMIC_SEQ_CST) != 0) wake(&pool.grid_number, 2);
}

/* Wait for a grid other than number `seen`; return whether the wait timed out. */
bool is_idle(uint32_t seen) {
  if (changes_soon(&pool.grid_number, seen)) return false;
  __atomic_fetch_add(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  const bool has_timed_out = sleep_timed_out(&pool.grid_number, seen, kIdleTime);
  __atomic_fetch_sub(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  return has_timed_out && __atomic_load_n(&pool.grid_number, __ATOMIC_SEQ_CST) == seen;
}

bool has_blocks_left(const Launch* launch) {
  for (uint32_t i = 0; i < launch->range_count; ++i) {
    if (__atomic_load_n(&launch->ranges[i].next, __ATOMIC_RELAXED) < launch->ranges[i].end) return true;
  }
  return false;
}

void* helper_main(void* number) {
  helper_number = (uint32_t)(uintptr_t)number;
  uint32_t seen = 0;
  while (true) {
    const uint32_t grid_number = __atomic_load_n(&pool.grid_number, __ATOMIC_SEQ_CST);
    if (grid_number == seen) {
      if (is_idle(seen)) break;
      continue;
    }
    seen = grid_number;
    if (!enter()) continue;
    Launch* launch = pool.launch;
    if (has_blocks_left(launch)) {
      wake_two();
      work_on(launch, false, run_ranges);
    }
    if (__atomic_sub_fetch(&pool.state, 1, __ATOMIC_ACQ_REL) == kIsAwaited) wake(&pool.state, 1);
  }
  __atomic_fetch_sub(&pool.threads, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

/* ---- the launching thread -------------------------------------------------------------------------------------- */

uint32_t count_processors() {
  const char* variable = getenv("JITLOAD_CPU_THREADS");
  if (variable != NULL && atoi(variable) > 0) return (uint32_t)atoi(variable);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

/* Start a thread. It blocks most signals, because Python's signals are for the other threads of the process. */
bool start_thread(void* (*main)(void*), void* argument) {
  sigset_t blocked, previous;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGFPE); /* a kernel's division by zero */
  sigdelset(&blocked, SIGSEGV); /* a kernel's use of too much stack */
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, kWatchSignal);
  pthread_sigmask(SIG_SETMASK, &blocked, &previous);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kThreadStack);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, main, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &previous, NULL);
  return error == 0;
}

/* Start the helpers that are missing; return how many there are. */
uint32_t fill_pool() {
  static const uint32_t helpers = count_processors() - 1;
  uint32_t threads = __atomic_load_n(&pool.threads, __ATOMIC_SEQ_CST);
  while (threads < helpers && start_thread(helper_main, (void*)(uintptr_t)(threads + 1))) {
    threads = __atomic_add_fetch(&pool.threads, 1, __ATOMIC_SEQ_CST);
  }
  return threads;
}

int64_t remaining_ns(const Launch* launch) {
  const uint64_t blocks = launch->blocks - launch->next;
  return blocks < (uint64_t)(INT64_MAX / launch->block_ns) ? (int64_t)blocks * launch->block_ns : INT64_MAX;
}

/* Return how many helpers save more time than it takes them to join. */
uint32_t useful_helpers(const Launch* launch) {
  const int64_t count = remaining_ns(launch) / kWorthHelper;
  return launch->blocks - launch->next < 2 || count < 2 ? 0 : count < 1024 ? (uint32_t)count : 1024;
}

void divide_blocks(Launch* launch, Range* ranges, uint32_t count) {
  const uint64_t blocks = launch->blocks - launch->next;
  launch->ranges = ranges;
  launch->range_count = count;
  for (uint32_t i = 0; i < count; ++i) {
    ranges[i].next = i == 0 ? launch->next : ranges[i - 1].end;
    ranges[i].end = launch->next + (uint64_t)((unsigned __int128)blocks * (i + 1) / count);
  }
  const uint64_t fair = blocks / (8 * count) + 1, least = (uint64_t)(kLeastChunk / launch->block_ns);
  launch->chunk = fair > least ? fair : least;
}

/* Let helpers join the launch. */
void open_pool(Launch* launch) {
  const uint32_t threads = fill_pool(), useful = useful_helpers(launch);
  const uint32_t helpers = useful < threads ? useful : threads;
  divide_blocks(launch, pool.ranges, helpers < kMostRanges ? helpers + 1 : kMostRanges);
  pool.launch = launch;
  __atomic_store_n(&pool.most_helpers, helpers, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.state, kOpen, __ATOMIC_RELEASE);
  __atomic_fetch_add(&pool.grid_number, 1, __ATOMIC_SEQ_CST);
  if (remaining_ns(launch) > kWorthWaking) wake_two();
}

/* Let all helpers join a grid that takes longer than its first blocks suggested. */
void admit_all_helpers(const Launch* launch) {
  if (pool.launch != launch || __atomic_exchange_n(&pool.most_helpers, 1024, __ATOMIC_RELAXED) == 1024) return;
  wake_two();
}

/* Let no more helpers in, and wait for those that still run a block. */
void close_pool(Launch* launch) {
  uint32_t state = __atomic_and_fetch(&pool.state, ~kOpen, __ATOMIC_ACQ_REL);
  while ((state & ~kIsAwaited) != 0) {
    if (!changes_soon(&pool.state, state)) {
      state = __atomic_or_fetch(&pool.state, kIsAwaited, __ATOMIC_ACQ_REL);
      if (state != kIsAwaited && sleep_timed_out(&pool.state, state, kSignalInterval)) check_signals(launch);
    }
    state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  }
  __atomic_store_n(&pool.state, 0, __ATOMIC_RELEASE);
}

}  // namespace
