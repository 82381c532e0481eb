/* A division by zero in a kernel: without a handler the processor's signal would end the process. */
#ifndef JITLOAD_CPU_FAULTS_H_
#define JITLOAD_CPU_FAULTS_H_

#include <signal.h>

#include "cpu_worker.h"

namespace {

struct sigaction previous_action;

void on_fault(int number, siginfo_t* info, void* context) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker != NULL && info->si_code > 0) {
    const uint32_t* thread = worker->is_in_fibers ? worker->current->index : NULL;
    fail(worker, thread, "integer division by zero, or of the smallest integer by -1");
    leave(worker);
  }
  if (previous_action.sa_flags & SA_SIGINFO) return previous_action.sa_sigaction(number, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(number);
  }
  sigaction(number, &previous_action, NULL); /* the signal comes again, for the previous action */
}

/* Install the handler, again if faulthandler or somebody else has replaced it. */
void install_fault_handler() {
  struct sigaction action;
  if (sigaction(SIGFPE, NULL, &action) != 0) return;
  if ((action.sa_flags & SA_SIGINFO) && action.sa_sigaction == on_fault) return;
  previous_action = action;
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGFPE, &ours, NULL);
}

}  // namespace

#endif /* JITLOAD_CPU_FAULTS_H_ */
