/* A kernel's division by zero: the processor would end the process for it. */
#ifndef JITLOAD_CPU_FAULTS_H_
#define JITLOAD_CPU_FAULTS_H_

#include <signal.h>

#include "cpu_worker.h"

namespace {

struct sigaction action_before;

void on_fault(int number, siginfo_t* info, void* context) {
  Worker* self = jitload_cpu_here;
  if (self != NULL && info->si_code > 0) {
    const uint32_t* thread = self->is_in_fibers ? self->current->index : NULL;
    fail(self, thread, "integer division by zero, or of the smallest integer by -1");
    leave(self);
  }
  if (action_before.sa_flags & SA_SIGINFO) return action_before.sa_sigaction(number, info, context);
  if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN) return action_before.sa_handler(number);
  sigaction(number, &action_before, NULL); /* comes again, for what was there before */
}

/* faulthandler and others may have put their own handler in place since. */
void watch_faults() {
  struct sigaction now;
  if (sigaction(SIGFPE, NULL, &now) != 0 || ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)) return;
  action_before = now;
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGFPE, &ours, NULL);
}

}  // namespace

#endif /* JITLOAD_CPU_FAULTS_H_ */
