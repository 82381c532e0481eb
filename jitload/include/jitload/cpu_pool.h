/* Threads that help the one that launches a grid. They come by themselves while the grid is open, look out for the next
 * one for a short while, and sleep. No lock is taken on the way: many threads that wake at once would queue for it.
 */
#ifndef JITLOAD_CPU_POOL_H_
#define JITLOAD_CPU_POOL_H_

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cpu_worker.h"

namespace {

/* Run blocks of a launch on this thread, and keep what ends one of them from ending more. */
void work_on(Launch* launch, bool looks, void (*work)(Worker*, Launch*, bool));

/* Take blocks until there are none, or until something fails. */
void work_through(Worker* self, Launch* launch, bool looks);

/* End the launch where Python has a signal that raises. This takes the GIL. */
void look_for_signals(Launch* launch);

constexpr uint32_t kOpen = 1u << 31;    /* of the pool's door: helpers may enter */
constexpr uint32_t kAwaited = 1u << 30; /* the launching thread sleeps until the last has left */
constexpr int64_t kPatience = 50;       /* milliseconds between two looks for Ctrl-C */
constexpr int64_t kIdleTime = 10000;    /* milliseconds after which a thread without work ends */
constexpr int64_t kAlertTime = 50000;   /* nanoseconds for which one looks out before it sleeps */
constexpr int64_t kWorthAHelper = 3000; /* nanoseconds of work */
constexpr int64_t kWorthWaking = 40000; /* likewise, before a thread that sleeps is there */
constexpr int64_t kLeastChunk = 500;    /* nanoseconds: who asks more often waits for the others who do */
constexpr uint32_t kMostParts = 128;
constexpr size_t kOwnStack = 8 << 20;   /* whatever `ulimit -s` says */

struct Pool {
  pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* one grid at a time has the pool */
  Launch* launch = NULL;
  uint32_t round = 0; /* of the newest grid; who sleeps waits for it to change */
  uint32_t door = 0;  /* how many helpers are inside, and the bits above */
  uint32_t places = 0; /* how many helpers may be inside */
  uint32_t sleepers = 0;
  uint32_t threads = 0;
  Part parts[kMostParts];
  bool watches_forks = false;
};
Pool pool;
thread_local uint32_t helper_number; /* 0: a thread that launches */

/* Sleep while `word` holds `value`; tells whether the time passed. */
bool waits_in_vain(uint32_t* word, uint32_t value, int64_t milliseconds) {
  const struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000)};
  return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0) != 0 && errno == ETIMEDOUT;
}

void wake(uint32_t* word, int count) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0); }

int64_t now_ns() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Look at `word` for a short while; tells whether it changed. */
bool changes_soon(const uint32_t* word, uint32_t value) {
  const int64_t end = now_ns() + kAlertTime;
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

/* ---- those that help ------------------------------------------------------------------------------------------- */

bool enter() {
  uint32_t door = __atomic_load_n(&pool.door, __ATOMIC_RELAXED);
  while ((door & kOpen) && (door & ~kOpen) < __atomic_load_n(&pool.places, __ATOMIC_RELAXED)) {
    if (__atomic_compare_exchange_n(&pool.door, &door, door + 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return true;
  }
  return false;
}

/* Each that wakes wakes two more: to wake all would take the launching thread longer than a small grid does. */
void wake_two() {
  if (__atomic_load_n(&pool.sleepers, __ATOMIC_SEQ_CST) != 0) wake(&pool.round, 2);
}

/* Wait for a round that is not `seen`; tells whether there was none for long. */
bool waits_idly(uint32_t seen) {
  if (changes_soon(&pool.round, seen)) return false;
  __atomic_fetch_add(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  const bool is_late = waits_in_vain(&pool.round, seen, kIdleTime);
  __atomic_fetch_sub(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  return is_late && __atomic_load_n(&pool.round, __ATOMIC_SEQ_CST) == seen;
}

bool is_left(const Launch* launch) {
  for (uint32_t i = 0; i < launch->part_count; ++i) {
    if (__atomic_load_n(&launch->parts[i].next, __ATOMIC_RELAXED) < launch->parts[i].end) return true;
  }
  return false;
}

void* serve(void* number) {
  helper_number = (uint32_t)(uintptr_t)number;
  uint32_t seen = 0;
  while (true) {
    const uint32_t round = __atomic_load_n(&pool.round, __ATOMIC_SEQ_CST);
    if (round == seen) {
      if (waits_idly(seen)) break;
      continue;
    }
    seen = round;
    if (!enter()) continue;
    Launch* launch = pool.launch;
    if (is_left(launch)) {
      wake_two();
      work_on(launch, false, work_through);
    }
    if (__atomic_sub_fetch(&pool.door, 1, __ATOMIC_ACQ_REL) == kAwaited) wake(&pool.door, 1);
  }
  __atomic_fetch_sub(&pool.threads, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

/* ---- the one that launches ------------------------------------------------------------------------------------- */

uint32_t processors() {
  const char* asked = getenv("JITLOAD_CPU_THREADS");
  if (asked != NULL && atoi(asked) > 0) return (uint32_t)atoi(asked);
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (uint32_t)count : 1;
}

/* A child has the forking thread alone. */
void forget_pool() {
  pool = Pool();
  pool.watches_forks = true;
}

/* Start a thread with room for a kernel's arrays. Signals are for the process's other threads. */
bool start_thread(void* (*work)(void*), void* of) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGFPE); /* a kernel's own */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kOwnStack);
  pthread_t thread;
  errno = pthread_create(&thread, &attributes, work, of);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return errno == 0;
}

/* Start what threads there are to be; returns how many there are. */
uint32_t fill_pool() {
  if (!pool.watches_forks) {
    pthread_atfork(NULL, NULL, forget_pool);
    pool.watches_forks = true;
  }
  static const uint32_t wanted = processors() - 1;
  uint32_t threads = __atomic_load_n(&pool.threads, __ATOMIC_SEQ_CST);
  while (threads < wanted && start_thread(serve, (void*)(uintptr_t)(threads + 1))) {
    threads = __atomic_add_fetch(&pool.threads, 1, __ATOMIC_SEQ_CST);
  }
  return threads;
}

int64_t left_ns(const Launch* launch) {
  const uint64_t blocks = launch->blocks - launch->next;
  return blocks < (uint64_t)(INT64_MAX / launch->block_ns) ? (int64_t)blocks * launch->block_ns : INT64_MAX;
}

/* How many helpers save more time than their coming takes, once it is known how long a block is. */
uint32_t worthy_helpers(const Launch* launch) {
  const int64_t found = left_ns(launch) / kWorthAHelper;
  return launch->blocks - launch->next < 2 || found < 2 ? 0 : found < 1024 ? (uint32_t)found : 1024;
}

void deal_out(Launch* launch, Part* parts, uint32_t count) {
  const uint64_t blocks = launch->blocks - launch->next;
  launch->parts = parts;
  launch->part_count = count;
  for (uint32_t i = 0; i < count; ++i) {
    parts[i].next = i == 0 ? launch->next : parts[i - 1].end;
    parts[i].end = launch->next + (uint64_t)((unsigned __int128)blocks * (i + 1) / count);
  }
  const uint64_t fair = blocks / (8 * count) + 1, least = (uint64_t)(kLeastChunk / launch->block_ns);
  launch->chunk = fair > least ? fair : least;
}

/* Let helpers in. */
void open_pool(Launch* launch) {
  const uint32_t threads = fill_pool(), worthy = worthy_helpers(launch);
  const uint32_t helpers = worthy < threads ? worthy : threads;
  deal_out(launch, pool.parts, helpers < kMostParts ? helpers + 1 : kMostParts);
  pool.launch = launch;
  __atomic_store_n(&pool.places, helpers, __ATOMIC_RELAXED);
  __atomic_store_n(&pool.door, kOpen, __ATOMIC_RELEASE);
  __atomic_fetch_add(&pool.round, 1, __ATOMIC_SEQ_CST);
  if (left_ns(launch) > kWorthWaking) wake_two();
}

/* A grid that takes longer than its first blocks said is worth everybody's while. */
void call_all(const Launch* launch) {
  if (pool.launch != launch || __atomic_exchange_n(&pool.places, 1024, __ATOMIC_RELAXED) == 1024) return;
  wake_two();
}

/* Let no more in, and wait for those that still have a block. */
void close_pool(Launch* launch) {
  uint32_t door = __atomic_and_fetch(&pool.door, ~kOpen, __ATOMIC_ACQ_REL);
  while ((door & ~kAwaited) != 0) {
    if (!changes_soon(&pool.door, door)) {
      door = __atomic_or_fetch(&pool.door, kAwaited, __ATOMIC_ACQ_REL);
      if (door != kAwaited && waits_in_vain(&pool.door, door, kPatience)) look_for_signals(launch);
    }
    door = __atomic_load_n(&pool.door, __ATOMIC_ACQUIRE);
  }
  __atomic_store_n(&pool.door, 0, __ATOMIC_RELEASE);
}

}  // namespace

#endif /* JITLOAD_CPU_POOL_H_ */
