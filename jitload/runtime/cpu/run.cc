/* Runs grids of kernels that were compiled for the CPU. The launching thread and a pool of other threads share the
 * blocks. A kernel that never waits runs as a loop over the threads of a block. Threads of other kernels are fibers.
 */
#include <jitload/cpu.h>
#include <signal.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "fibers.cc" /* one unit, so that a user's kernels, which are linked with it, can have any names */
#include "pool.h"
#include "watch.h"

namespace {

/* Add the source line of an address to the message. */
void append_line(Launch* launch, const void* address);
bool watch_launch(Worker* worker);
void free_races(Races* races);

void go_to_block(jitload_cpu_block* block, uint64_t number) {
  const uint64_t width = block->grid_dim[0], height = block->grid_dim[1];
  block->block_index[0] = (uint32_t)(number % width);
  block->block_index[1] = (uint32_t)(number / width % height);
  block->block_index[2] = (uint32_t)(number / width / height);
}

void start_plain() {
  Worker* worker = jitload_cpu_current_worker;
  const jitload_cpu_launch* call = worker->launch->call;
  call->kernel->run_blocks(call->params, &worker->block, worker->plain_count);
  worker->request = kHasEnded;
}

/* Run at most `limit` blocks from the current one on; return how many were run. */
uint32_t run_some_blocks(Worker* worker, uint64_t limit) {
  const jitload_cpu_block* block = &worker->block;
  const uint32_t in_row = block->grid_dim[0] - block->block_index[0], count = limit < in_row ? (uint32_t)limit : in_row;
  const bool is_loop = worker->mode == JITLOAD_CPU_LOOP && block->block_index[0] + count - 1 <= JITLOAD_CPU_LAST_BLOCK;
  const uint32_t at_once = is_loop || (worker->mode != JITLOAD_CPU_FIBERS && !kWatches) ? count : 1;
  worker->plain_count = at_once;
  if (is_loop) {
    run_kernel(worker, worker->plain_stack + kPlainStack, start_plain);
  } else {
    run_block(worker);
  }
  return at_once;
}

/* Return the threadIdx of the kernel's thread that runs, or NULL if it is not known. */
const uint32_t* current_thread(const Worker* worker) {
  return worker->current != NULL ? worker->current->index : NULL;
}

/* ---- Ctrl-C, and the limit of JITLOAD_CPU_TIMEOUT --------------------------------------------------------------- */

void check_signals(Launch* launch) {
  if (launch->is_interrupted || TVMFFIEnvCheckSignals() == 0) return;
  launch->is_interrupted = 1;
  __atomic_store_n(&launch->has_failed, 1, __ATOMIC_RELEASE);
}

/* Return the limit in seconds: 0 if there is none, and -1 if the variable's value is not a time. */
double read_time_limit() {
  const char* variable = getenv("JITLOAD_CPU_TIMEOUT");
  if (variable == NULL || *variable == 0) return 0;
  char* end;
  const double seconds = strtod(variable, &end);
  return *end == 0 && seconds > 0 && seconds < 1e9 ? seconds : -1;
}

double time_limit() {
  static const double seconds = read_time_limit();
  return seconds;
}

/* Look at Python's signals and at the time, because the watcher asked for it. */
void check_limits(Worker* worker) {
  if (worker->is_launcher) check_signals(worker->launch);
  if (now_ns() < worker->launch->deadline) return;
  fail(worker, current_thread(worker), "not finished after %g s, the limit of JITLOAD_CPU_TIMEOUT,", time_limit());
}

/* ---- what the compiler checks ---------------------------------------------------------------------------------- */

struct Location {
  const char* file;
  uint32_t line;
  uint32_t column;
};

[[noreturn]] void undefined(const Location* location, const char* problem) {
  Worker* worker = jitload_cpu_current_worker;
  fail(worker, current_thread(worker), "%s at %s:%u", problem, location->file != NULL ? location->file : "?",
       location->line);
  leave(worker);
}

/* ---- signals: divisions by zero, stacks that are too small, and invalid addresses ------------------------------- */

constexpr size_t kSignalStack = 64 << 10;

/* Return whether an address is in the page below a stack of this worker. */
bool is_guard(const Worker* worker, const void* address) {
  const Memory stacks = kernel_stacks(worker);
  const size_t size = worker->mode == JITLOAD_CPU_FIBERS ? kStack : kPlainStack;
  return contains(stacks, (uintptr_t)address) && ((uintptr_t)address - stacks.begin) % size < page_bytes;
}

/* Say which thread accessed an invalid address. The process ends, because the kernel may have overwritten any memory. */
void print_fault(const Worker* worker) {
  char text[1024];
  snprintf(text, sizeof text, "jitload: %.256s(): an access to an invalid address", worker->launch->call->name);
  append_place(text, sizeof text, worker, current_thread(worker));
  const char advice[] = "; sanitize=\"address\" checks accesses to tensors\n";
  write(STDERR_FILENO, text, strlen(text));
  write(STDERR_FILENO, advice, sizeof advice - 1);
}

extern SignalHandler fault_handlers[3];

void on_fault(int number, siginfo_t* info, void* context) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker != NULL && worker->is_running && info->si_code > 0) {
    const uint32_t* thread = current_thread(worker);
    if (number == SIGFPE) {
      fail(worker, thread, "integer division by zero, or of the smallest integer by -1");
      leave(worker);
    }
    if (is_guard(worker, info->si_addr)) {
      const size_t size = worker->mode == JITLOAD_CPU_FIBERS ? kStack : kPlainStack;
      fail(worker, thread, "the local variables of a thread take more than %zu KiB,", size >> 10);
      leave(worker);
    }
    print_fault(worker);
  }
  for (const SignalHandler& handler : fault_handlers) {
    if (handler.number != number || call_previous(&handler, number, info, context)) continue;
    /* The instruction runs again, and raises the signal for the previous action. */
    sigaction(number, &handler.previous, NULL);
  }
}

SignalHandler fault_handlers[] = {
    {SIGFPE, SA_NODEFER, on_fault, {}, false}, /* raised by a division that overflows */
    {SIGSEGV, SA_ONSTACK | SA_NODEFER, on_fault, {}, false},
    /* Raised by an access to a page that a mapped file does not have, for example because the file was truncated. */
    {SIGBUS, SA_ONSTACK | SA_NODEFER, on_fault, {}, false},
};

/* Give this thread a stack for signal handlers if it has none, and return it. */
void* make_signal_stack() {
  stack_t stack = {};
  if (sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_DISABLE)) return NULL;
  stack.ss_flags = 0;
  stack.ss_size = kSignalStack;
  stack.ss_sp = malloc(kSignalStack);
  if (stack.ss_sp != NULL && sigaltstack(&stack, NULL) == 0) return stack.ss_sp;
  free(stack.ss_sp);
  return NULL;
}

/* Free the stack for signal handlers, unless other code has replaced it. */
void remove_signal_stack(void* memory) {
  stack_t stack = {};
  if (memory == NULL || sigaltstack(NULL, &stack) != 0 || stack.ss_sp != memory) return;
  stack.ss_flags = SS_DISABLE;
  if (sigaltstack(&stack, NULL) == 0) free(memory);
}

/* ---- running kernel code --------------------------------------------------------------------------------------- */

/* Return the rounding mode and whether denormals are zero. A signal handler starts with the defaults. */
unsigned float_modes() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#else
  return 0;
#endif
}

void set_float_modes(unsigned modes) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(modes);
#endif
}

void run_kernel(Worker* worker, char* stack_end, void (*start)()) {
  Launch* launch = worker->launch;
  const unsigned modes = float_modes();
  bool is_begun = false;
  while (!__atomic_load_n(&launch->has_failed, __ATOMIC_ACQUIRE)) {
    worker->is_running = 1;
    if (is_begun) {
      jitload_cpu_switch(&worker->scheduler, &worker->interrupted);
    } else {
      jitload_cpu_call(&worker->scheduler, stack_end, start);
    }
    worker->is_running = 0;
    if (worker->request == kHasEnded) break;
    check_limits(worker);
    is_begun = true;
  }
  worker->current = NULL;
  if (launch->has_failed) set_float_modes(modes);
}

/* ---- the blocks of a launch ------------------------------------------------------------------------------------ */

/* Run the next blocks up to number `end`, unless the launch fails. */
void run_blocks(Worker* worker, uint64_t first, uint64_t end) {
  while (first < end && !__atomic_load_n(&worker->launch->has_failed, __ATOMIC_RELAXED)) {
    go_to_block(&worker->block, first);
    first += run_some_blocks(worker, end - first);
    if (!worker->is_asked) continue;
    worker->is_asked = 0;
    check_limits(worker);
  }
}

void run_ranges(Worker* worker, Launch* launch) {
  const int64_t begin = now_ns();
  for (uint32_t i = 0; i < launch->range_count;) {
    Range* range = &launch->ranges[(helper_number + i) % launch->range_count];
    const uint64_t first = __atomic_fetch_add(&range->next, launch->chunk, __ATOMIC_RELAXED);
    const uint64_t end = first + launch->chunk < range->end ? first + launch->chunk : range->end;
    if (first >= end) ++i;
    run_blocks(worker, first, end);
    if (launch->has_failed) return;
    if (worker->is_launcher && now_ns() - begin > kLongGrid) admit_all_helpers(launch);
  }
}

/* Run the first blocks alone, twice as many each time, until their times show that helpers pay for the rest. */
void run_first_blocks(Worker* worker, Launch* launch) {
  int64_t last_time = now_ns();
  for (uint64_t count = 1; launch->next < launch->blocks; count *= 2) {
    const uint64_t first = launch->next;
    launch->next = first + count < launch->blocks ? first + count : launch->blocks;
    run_blocks(worker, first, launch->next);
    if (launch->has_failed) return;
    const int64_t time = now_ns();
    launch->block_ns = (time - last_time) / (int64_t)(launch->next - first) + 1;
    if (useful_helpers(launch) != 0) return;
    last_time = time;
  }
}

/* The worker of a thread, which frees its stacks when the thread ends. */
struct ThreadWorker {
  Worker worker = {};
  void* signal_stack = make_signal_stack();
  ThreadWorker() {
    find_own_memory();
    enlist(&worker);
  }
  ~ThreadWorker() {
    remove_signal_stack(signal_stack);
    delist(&worker);
    own_worker = NULL;
    release(&worker);
    if (worker.plain_stack != NULL) munmap(worker.plain_stack, kPlainStack);
  }
};

/* Allocate the stack of kernels that cannot wait; its lowest page is protected. */
bool has_plain_stack(Worker* worker) {
  if (worker->plain_stack != NULL) return true;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* stack = mmap(NULL, kPlainStack, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stack == MAP_FAILED) return false;
  madvise(stack, kPlainStack, MADV_NOHUGEPAGE);
  mprotect(stack, page_bytes, PROT_NONE);
  worker->plain_stack = (char*)stack;
  return true;
}

bool has_stacks(Worker* worker, bool is_helper) {
  if (worker->mode == JITLOAD_CPU_FIBERS) return reserve(worker, count_threads(worker->block), is_helper);
  return has_plain_stack(worker);
}

void work_on(Launch* launch, bool is_launcher, void (*work)(Worker*, Launch*)) {
  static thread_local ThreadWorker thread_worker;
  Worker* worker = &thread_worker.worker;
  jitload_cpu_current_worker = worker;
  worker->launch = launch;
  worker->is_launcher = is_launcher;
  worker->is_uninterruptible = 0;
  worker->block = launch->call->block;
  worker->mode = launch->call->mode;
  if (kWatches && !launch->call->is_unchecked && worker->mode == JITLOAD_CPU_LOOP) worker->mode = JITLOAD_CPU_SINGLY;
  worker->fault_address = NULL;
  worker->launches = worker->launches + 1;
  if (!__atomic_load_n(&watch.is_awake, __ATOMIC_RELAXED)) wake_watcher();
  if (!has_stacks(worker, !is_launcher)) {
    if (is_launcher) fail(worker, NULL, "no memory for the stacks of its threads");
  } else if (kWatches && !watch_launch(worker)) {
    if (is_launcher) fail(worker, NULL, "no memory for the checks of sanitize=\"race\"");
  } else {
    work(worker, launch);
  }
  worker->launches = worker->launches + 1;
  jitload_cpu_current_worker = NULL;
}

/* Run the remaining blocks with the pool. If another thread's grid keeps using the pool, run them without it after a
 * while: that other thread may be waiting for the GIL, which this one holds. */
void run_with_pool(Launch* launch) {
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_nsec += kSignalInterval * 1000000;
  if (deadline.tv_nsec >= 1000000000) deadline.tv_nsec -= 1000000000, ++deadline.tv_sec;
  if (pthread_mutex_timedlock(&pool.mutex, &deadline) != 0) {
    Range rest;
    divide_blocks(launch, &rest, 1);
    return work_on(launch, true, run_ranges);
  }
  open_pool(launch);
  work_on(launch, true, run_ranges);
  close_pool(launch);
  pthread_mutex_unlock(&pool.mutex);
}

/* Forget the other threads in a child process, which has only the one that forked. */
void reset_after_fork() {
  pool = Pool();
  restart_after_fork();
}

/* Runs when the library is loaded. */
__attribute__((constructor)) void handle_forks() { pthread_atfork(NULL, NULL, reset_after_fork); }

}  // namespace

extern "C" void jitload_cpu_stop(const uint32_t thread[3], const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fail(jitload_cpu_current_worker, thread, "%s", text);
  leave(jitload_cpu_current_worker);
}

/* Compiled code calls this before a division by zero; with sanitize="undefined" also before one that overflows. */
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_divrem_overflow_abort(const void* data) {
  const char* problem = kWatches ? "a division by zero, or one that overflows," : "an integer division by zero";
  undefined((const Location*)data, problem);
}

extern "C" int jitload_cpu_run(const jitload_cpu_launch* call, const char** error) {
  static __thread char message[sizeof(Launch::error)];
  const uint32_t* grid_dim = call->block.grid_dim;
  Launch launch;
  launch.call = call;
  launch.blocks = (uint64_t)grid_dim[0] * grid_dim[1] * grid_dim[2];
  launch.error[0] = 0;
  if (jitload_cpu_current_worker != NULL) {
    *error = "a kernel was called by a signal handler while this thread runs another kernel of its library";
    return -1;
  }
  if (time_limit() < 0) {
    *error = "JITLOAD_CPU_TIMEOUT must be a number of seconds above 0, such as 2.5";
    return -1;
  }
  if (time_limit() > 0) launch.deadline = now_ns() + (int64_t)(time_limit() * 1e9);
  if (install(&fault_handlers[0])) install(&fault_handlers[1]), install(&fault_handlers[2]);
  work_on(&launch, true, run_first_blocks);
  if (launch.next < launch.blocks && !launch.has_failed) run_with_pool(&launch);
  if (kWatches) free_races(launch.races);
  fflush(stdout); /* so that the kernels' output comes before what Python prints next */
  if (!launch.has_failed) return 0;
  if (launch.is_interrupted) return JITLOAD_CPU_INTERRUPTED;
  if (kWatches && launch.fault_address != NULL) append_line(&launch, launch.fault_address);
  if (kWatches && launch.other_address != NULL) {
    strncat(launch.error, launch.other, sizeof launch.error - strlen(launch.error) - 1);
    append_line(&launch, launch.other_address);
  }
  memcpy(message, launch.error, sizeof message);
  *error = message;
  return -1;
}

#ifdef JITLOAD_CPU_WATCHES
#include "sanitize.cc" /* for the same reason */
#endif
