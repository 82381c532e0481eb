/* A thread that interrupts kernels that run for long, so that Ctrl-C and the failure of another block end them.
 *
 * Kernels run on stacks of their own. The watcher sends a signal to a thread that runs a kernel. The signal's handler
 * switches to the thread's own stack, where Python's signal handlers run. Then the kernel continues, or is abandoned. A
 * kernel is only interrupted in its own code, because it may hold a lock in libc.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "pool.h"

namespace {

constexpr int64_t kWatchInterval = 100; /* milliseconds */
constexpr int64_t kRetryInterval = 1;   /* milliseconds, while a kernel is where it must not be interrupted */
constexpr int kMostRetries = 100;

struct Watch {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* held to use the list of workers, of which each thread has one */
  Worker* first = NULL;
  uint32_t is_awake = 0;
};
Watch watch;
thread_local Worker* own_worker;

/* ---- handlers of signals ----------------------------------------------------------------------------------------- */

/* A handler and the action that it replaced. */
struct SignalHandler {
  int number;
  int flags;
  void (*function)(int, siginfo_t*, void*);
  struct sigaction previous;
  bool has_previous;
};

/* Install a handler unless it is installed; return whether it was missing. The handlers of several libraries replace
 * each other. Each keeps only the first action that it replaced, so that it never calls itself through another handler. */
bool install(SignalHandler* handler) {
  struct sigaction action, ours;
  if (sigaction(handler->number, NULL, &action) != 0) return false;
  if ((action.sa_flags & SA_SIGINFO) && action.sa_sigaction == handler->function) return false;
  if (!__atomic_exchange_n(&handler->has_previous, true, __ATOMIC_SEQ_CST)) handler->previous = action;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = handler->function;
  ours.sa_flags = SA_SIGINFO | handler->flags;
  return sigaction(handler->number, &ours, NULL) == 0;
}

/* Call the handler that `handler` replaced; return whether there was one. */
bool call_previous(const SignalHandler* handler, int number, siginfo_t* info, void* context) {
  const struct sigaction* previous = &handler->previous;
  if (previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) return false;
  if (previous->sa_flags & SA_SIGINFO) {
    previous->sa_sigaction(number, info, context);
  } else {
    previous->sa_handler(number);
  }
  return true;
}

/* ---- the interruption ------------------------------------------------------------------------------------------ */

uintptr_t code_address(const void* context) {
#if defined(__x86_64__)
  return (uintptr_t)((const ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#else
  return (uintptr_t)((const ucontext_t*)context)->uc_mcontext.pc;
#endif
}

extern SignalHandler watch_handler;

/* Let a signal come again before its handler ends, which may never be. */
void allow(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* The signal is blocked until the kernel is known to be in its own code. Another signal would find this code, which is
 * that of the library, while the kernel may hold a lock in libc. */
void on_watch_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL) {
    call_previous(&watch_handler, number, info, context);
  } else if (worker->is_running && !worker->is_uninterruptible && contains(own_memory.code, code_address(context)) &&
             contains(kernel_stacks(worker), (uintptr_t)&error)) {
    worker->is_asked = 0;
    const Request request = worker->request;
    worker->request = kIsInterrupted;
    allow(number);
    jitload_cpu_switch(&worker->interrupted, &worker->scheduler);
    worker->request = request;
  }
  errno = error;
}

SignalHandler watch_handler = {kWatchSignal, SA_RESTART, on_watch_signal, {}, false};

/* ---- the watcher ----------------------------------------------------------------------------------------------- */

/* Ask all threads that run kernels to look at Python's signals and at the time; return whether there are any. A thread
 * does so between two blocks, or when the signal comes. With `is_retry`, send it to those that have not done so yet. */
bool interrupt_workers(bool is_retry) {
  bool is_asked = false;
  pthread_mutex_lock(&watch.mutex);
  for (Worker* worker = watch.first; worker != NULL; worker = worker->next) {
    if (!is_retry) worker->is_asked = worker->launches % 2;
    if (!worker->is_asked || !worker->is_running) continue;
    install(&watch_handler);
    syscall(SYS_tgkill, getpid(), worker->thread_id, kWatchSignal);
    is_asked = true;
  }
  pthread_mutex_unlock(&watch.mutex);
  return is_asked;
}

/* Return how many launches have begun and have ended; the upper 16 bits are how many threads work on one now. */
uint64_t count_launches() {
  uint64_t launches = 0;
  pthread_mutex_lock(&watch.mutex);
  for (Worker* worker = watch.first; worker != NULL; worker = worker->next) {
    const uint32_t count = worker->launches;
    launches += count + ((uint64_t)(count % 2) << 48);
  }
  pthread_mutex_unlock(&watch.mutex);
  return launches;
}

void* watch_main(void*) {
  uint64_t launches = count_launches();
  int64_t idle_time = 0;
  while (true) {
    usleep(kWatchInterval * 1000);
    bool is_asked = interrupt_workers(false);
    for (int retries = 0; is_asked && retries < kMostRetries; ++retries) {
      usleep(kRetryInterval * 1000);
      is_asked = interrupt_workers(true);
    }
    const uint64_t launches_now = count_launches();
    idle_time = launches_now != launches || launches_now >> 48 != 0 ? 0 : idle_time + kWatchInterval;
    launches = launches_now;
    if (idle_time < kIdleTime) continue;
    __atomic_store_n(&watch.is_awake, 0, __ATOMIC_SEQ_CST);
    /* A launch that does not see this store yet has counted itself, which count_launches() sees after this pause. So
     * launches need no fence. */
    usleep(1000);
    uint32_t expected = 0;
    if (count_launches() == launches ||
        !__atomic_compare_exchange_n(&watch.is_awake, &expected, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      return NULL;
    }
    idle_time = 0;
  }
}

/* Start the watcher unless it runs. The worker must have counted its launch. */
void wake_watcher() {
  uint32_t expected = 0;
  if (__atomic_compare_exchange_n(&watch.is_awake, &expected, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
      !start_thread(watch_main, NULL)) {
    __atomic_store_n(&watch.is_awake, 0, __ATOMIC_SEQ_CST);
  }
}

/* Add this thread's worker to the list of the watcher. */
void enlist(Worker* worker) {
  own_worker = worker;
  worker->thread_id = (int)syscall(SYS_gettid);
  pthread_mutex_lock(&watch.mutex);
  worker->next = watch.first;
  watch.first = worker;
  pthread_mutex_unlock(&watch.mutex);
}

void delist(Worker* worker) {
  pthread_mutex_lock(&watch.mutex);
  Worker** link = &watch.first;
  while (*link != NULL && *link != worker) link = &(*link)->next;
  if (*link != NULL) *link = worker->next;
  pthread_mutex_unlock(&watch.mutex);
}

/* Start again in a forked process, which has no watcher and only the thread that forked. */
void restart_after_fork() {
  watch = Watch();
  if (own_worker != NULL) enlist(own_worker);
}

}  // namespace
