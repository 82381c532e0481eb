/* A launch on the CPU, and the state of a thread that works on it. */
#pragma once

#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jitload/cpu.h>

/* ---- the switch between fibers, which costs little more than a call --------------------------------------------- */

namespace {

struct Memory {
  uintptr_t begin, end;
};

inline bool contains(Memory memory, uintptr_t begin, size_t size = 1) {
  return begin >= memory.begin && begin < memory.end && size <= memory.end - begin; /* a sum could wrap around */
}

struct Context {
  void* stack_pointer;
};

/* Save the registers that the ABI preserves over a call, exchange the stack pointer, and restore them. */
extern "C" void jitload_cpu_switch(Context* from, const Context* to);

/* Call a function on another stack, and save a context to which the function may switch instead of returning. When the
 * function returns, that context is resumed. Processors predict calls and returns, but not switches. */
extern "C" void jitload_cpu_call(Context* from, char* stack_end, void (*function)());

#if defined(__x86_64__)
#define JITLOAD_SAVE_ \
  "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n  movq %rsp, (%rdi)\n"
#define JITLOAD_RESTORE_ "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
#define JITLOAD_SWITCH_ "  movq (%rsi), %rsp\n"
#define JITLOAD_CALL_ "  movq %rdi, %rbx\n  movq %rsi, %rsp\n  call *%rdx\n  movq (%rbx), %rsp\n"

void prepare(Context* context, char* stack_end, void (*entry)()) {
  void** top = (void**)((uintptr_t)stack_end & ~(uintptr_t)15);
  *--top = NULL; /* the return address of `entry`, which never returns */
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = NULL;
  context->stack_pointer = top;
}
#elif defined(__aarch64__)
#define JITLOAD_SAVE_ \
  "  sub sp, sp, #160\n" \
  "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n" \
  "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n" \
  "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n" \
  "  mov x9, sp\n  str x9, [x0]\n"
#define JITLOAD_RESTORE_ \
  "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n" \
  "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n" \
  "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n" \
  "  add sp, sp, #160\n  ret\n"
#define JITLOAD_SWITCH_ "  ldr x9, [x1]\n  mov sp, x9\n"
#define JITLOAD_CALL_ "  mov x19, x0\n  mov sp, x1\n  blr x2\n  ldr x9, [x19]\n  mov sp, x9\n"

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

#define JITLOAD_FUNCTION_(name, work)                                           \
  ".globl " name "\n.hidden " name "\n.type " name ", %function\n" name ":\n" \
  JITLOAD_SAVE_ work JITLOAD_RESTORE_ ".size " name ", . - " name "\n"
__asm__(".pushsection .text\n"
        JITLOAD_FUNCTION_("jitload_cpu_switch", JITLOAD_SWITCH_)
        JITLOAD_FUNCTION_("jitload_cpu_call", JITLOAD_CALL_)
        ".popsection\n");

/* ---- threads and warps ----------------------------------------------------------------------------------------- */

constexpr size_t kStack = 128 * 1024; /* bytes of a fiber's stack; only pages that are touched take memory */
constexpr size_t kPlainStack = 8 << 20; /* likewise, of the one stack for all threads of a kernel that cannot wait */
constexpr uint32_t kWarp = 32;

/* The bytes of a page, of which the lowest below a stack is protected: on AArch64, up to 64 KiB. */
const size_t page_bytes = (size_t)getpagesize();

struct alignas(64) Fiber { /* a switch reads one cache line */
  Context context;
  Fiber* next; /* the live fibers form a ring */
  Fiber* previous;
  const char* wait_function; /* the function of the last wait, for messages; NULL for a barrier */
  uint64_t active_site;      /* where the __activemask() is that the thread waits in */
  uint32_t active_mask;      /* the result of this __activemask() */
  uint32_t index[3];
  uint32_t number;
};

/* One exchange among lanes of a warp. It lasts until every lane that arrived has read the values. Each exchange has a
 * lane that waits in it, so a warp never has more of them than lanes. */
struct Exchange {
  uint32_t mask;
  uint32_t arrived;
  uint32_t read;
  bool is_complete;
  uint64_t values[kWarp + 1]; /* the last one has a bit for each value that is not zero */
};

struct Warp {
  uint32_t live;
  uint32_t used; /* a bit for each exchange that is in use */
  Exchange* newest;
  Exchange exchanges[kWarp];
};

/* How many threads met at a barrier when it last opened. */
struct BarrierCount {
  uint64_t site;
  uint32_t threads;
};
constexpr uint32_t kBarrierCounts = 61;

struct Launch;
struct Races;
struct Order;
struct Steps;
typedef struct jitload_cpu_worker Worker;

/* Why a kernel switches to the scheduler. */
enum Request {
  kHasEnded,      /* the kernel's code has ended, or was abandoned */
  kIsInterrupted, /* the watcher asks to look at Python's signals and at the time */
};

}  // namespace

/* What a thread that runs blocks keeps from block to block. */
struct jitload_cpu_worker {
  Fiber* current; /* NULL outside of kernels and in plain loops. The members that every wait needs come first. */
  Warp* warps;
  uint32_t live;
  uint32_t arrived;
  uint32_t true_predicates; /* how many of the threads that arrived have a true predicate */
  uint32_t generation; /* 0 or 1; changes each time the block's barrier opens */
  uint32_t idle; /* fibers resumed without anything to do since the last event */
  int results[3];
  uint32_t yields; /* turns of threads that poll memory, until other processes may run */
  uint64_t barrier_site; /* where the barrier is at which threads wait: its line, and its column in the upper half */
  Fiber* fibers;
  char* stacks; /* each is aligned to its size */
  char* mapped_stacks;
  uint32_t capacity;
  uint32_t guards; /* guard pages that split a mapping */
  char* plain_stack; /* the stack of kernels that cannot wait */
  uint32_t plain_count; /* how many blocks run next on this stack */
  Fiber only_fiber;     /* on this stack, for kernels whose threads run one by one */
  Context scheduler;    /* the code that runs kernels, on the thread's own stack */
  Context interrupted;  /* the kernel, if the watcher interrupted it */
  Launch* launch;
  struct Order* order; /* with sanitize="race" */
  struct Steps* steps; /* of kernels with volatile variables */
  jitload_cpu_block block;
  BarrierCount barrier_counts[kBarrierCounts]; /* a hash table by site, used with sanitize= and debug= */
  int mode; /* how the launch's kernel runs, as in jitload_cpu_launch */
  int is_launcher;
  const void* fault_address;
  /* What the watcher and the handler of its signals use, see watch.h. */
  volatile int is_running; /* this thread runs kernel code, on a stack of this worker */
  volatile int is_uninterruptible; /* this thread holds a lock, or writes the message of an error */
  volatile int is_asked; /* the watcher asks this thread to look at Python's signals and at the time */
  volatile uint32_t launches; /* the number of launches that have begun, and of those that have ended */
  int thread_id;
  Worker* next;
  enum Request request; /* why the kernel switched to the scheduler */
};

extern "C" {
__thread jitload_cpu_worker* jitload_cpu_current_worker;
__thread uintptr_t jitload_cpu_thread_memory[2];
#ifdef JITLOAD_CPU_WATCHES
/* The threadIdx, blockIdx, blockDim and gridDim of kernels with sanitize="race". */
JITLOAD_CPU_HIDDEN __thread uint32_t jitload_cpu_thread_index[3], jitload_cpu_block_index[3], jitload_cpu_block_dim[3],
    jitload_cpu_grid_dim[3];
#endif
}

namespace {

#ifdef JITLOAD_CPU_WATCHES
constexpr bool kWatches = true; /* with sanitize= or debug=: each thread runs by itself, and its accesses are checked */
#else
constexpr bool kWatches = false;
#endif

/* A range of blocks. Each thread begins with a range of its own, the same one at the next launch, whose data may still
 * be in its cache. A thread that has finished its range takes blocks of the others. */
struct alignas(64) Range {
  uint64_t next;
  uint64_t end;
};

struct Launch {
  const jitload_cpu_launch* call;
  uint64_t blocks;
  const void* fault_address = NULL; /* the address of the code that failed, if its line can be found */
  const void* other_address = NULL; /* likewise of the other access of a race, which `other` describes */
  char other[192];
  struct Races* races = NULL; /* with sanitize="race" */
  uint64_t chunk = 1;
  uint64_t next = 0;    /* the next block, while one thread works alone */
  int64_t block_ns = 0; /* the time of a block, measured while one thread works alone */
  struct Range* ranges; /* the remaining blocks */
  uint32_t range_count;
  int64_t deadline = INT64_MAX; /* in nanoseconds; see JITLOAD_CPU_TIMEOUT */
  int has_failed = 0;
  int is_interrupted = 0;
  char error[1024];
};

/* Set `index` to the index of a thread of a block, whose threads are numbered from 0 on. */
void set_thread_index(const jitload_cpu_block& block, uint32_t number, uint32_t index[3]) {
  index[0] = number % block.block_dim[0];
  index[1] = number / block.block_dim[0] % block.block_dim[1];
  index[2] = number / block.block_dim[0] / block.block_dim[1];
}

/* Append the index of the current block, and of a thread unless it is NULL. */
void append_place(char* text, size_t size, const Worker* worker, const uint32_t* thread) {
  const uint32_t* block = worker->block.block_index;
  size_t used = strlen(text);
  used += (size_t)snprintf(text + used, size - used, " in block (%u, %u, %u)", block[0], block[1], block[2]);
  if (thread == NULL || used >= size) return;
  snprintf(text + used, size - used, ", thread (%u, %u, %u)", thread[0], thread[1], thread[2]);
}

/* End the launch with an error in the current block; return whether this is its first error. `thread` may be NULL. */
bool fail(Worker* worker, const uint32_t* thread, const char* format, ...) {
  Launch* launch = worker->launch;
  int expected = 0;
  worker->is_uninterruptible = 1;
  if (!__atomic_compare_exchange_n(&launch->has_failed, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return false;
  }
  launch->fault_address = worker->fault_address;
  const int used = snprintf(launch->error, sizeof launch->error, "%.256s(): ", launch->call->name);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(launch->error + used, sizeof launch->error - (size_t)used, format, arguments);
  va_end(arguments);
  append_place(launch->error, sizeof launch->error, worker, thread);
  return true;
}

/* Abandon the current block. */
[[noreturn]] void leave(Worker* worker) {
  Context unused;
  worker->request = kHasEnded;
  jitload_cpu_switch(&unused, &worker->scheduler);
  __builtin_unreachable();
}

/* The memory of this library and of this thread. Only the checks of sanitize= need the thread's stack. */
struct OwnMemory {
  Memory library;
  Memory code;
  Memory thread_local_data;
  Memory stack;
};
thread_local OwnMemory own_memory;

void find_own_memory() {
  const auto visit = [](struct dl_phdr_info* info, size_t, void*) -> int {
    own_memory.library = {UINTPTR_MAX, 0};
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info->dlpi_phdr[i];
      const uintptr_t begin = info->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
      if (segment.p_type == PT_TLS) {
        const uintptr_t data = (uintptr_t)info->dlpi_tls_data;
        own_memory.thread_local_data = {data, data + segment.p_memsz};
        if (!kWatches) jitload_cpu_thread_memory[0] = data, jitload_cpu_thread_memory[1] = segment.p_memsz;
      }
      if (segment.p_type != PT_LOAD) continue;
      if (contains({begin, end}, (uintptr_t)&leave)) own_memory.code = {begin, end};
      if (begin < own_memory.library.begin) own_memory.library.begin = begin;
      if (end > own_memory.library.end) own_memory.library.end = end;
    }
    return own_memory.code.begin != 0;
  };
  dl_iterate_phdr(visit, NULL);
  pthread_attr_t attributes;
  if (kWatches && pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* low;
    size_t size;
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    own_memory.stack = {(uintptr_t)low, (uintptr_t)low + size};
  }
}

/* Return the memory of the stacks on which the threads of a kernel run. */
Memory kernel_stacks(const Worker* worker) {
  const bool are_fibers = worker->mode == JITLOAD_CPU_FIBERS;
  const uintptr_t begin = (uintptr_t)(are_fibers ? worker->stacks : worker->plain_stack);
  return {begin, begin + (are_fibers ? worker->capacity * kStack : kPlainStack)};
}

int64_t now_ns() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

}  // namespace
