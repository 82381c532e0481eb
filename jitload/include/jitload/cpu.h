/* The interface between kernels that are compiled for the CPU and the code that runs them.
 *
 * Kernels are the user's C++, compiled after include/cpu/jitload_cpu.h. They are run by runtime/cpu/run.cc, which is compiled once.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

/* What all threads of a block share. */
typedef struct jitload_cpu_block {
  uint32_t grid_dim[3];
  uint32_t block_dim[3];
  uint32_t block_index[3];
  uint32_t shared_bytes;
} jitload_cpu_block;

/* The two ways to run a kernel, and what a reader of its object file needs. cpu/object_file.py reads this layout. */
typedef struct jitload_cpu_kernel {
  /* Run all threads of `count` blocks with consecutive x indices up to JITLOAD_CPU_LAST_BLOCK, as a loop that may be
   * vectorised. This is for kernels that never wait. While a block runs, `block->block_index` is its index. */
  void (*run_blocks)(void* const* params, jitload_cpu_block* block, uint32_t count);
  /* Run `count` threads one by one, from `thread` on, which always is the one that runs. A thread may wait for others for
   * long, but always on the same thread of the operating system. */
  void (*run_threads)(void* const* params, const jitload_cpu_block* block, uint32_t thread[3], uint32_t count);
  void (*function)(void);
  void (*probe)(void);        /* never called; its symbol holds the kernel's type */
  const uint32_t* sizes;      /* bytes of each parameter, ended by 0 */
  const uint32_t* alignments; /* alignment of each parameter, ended by 0 */
} jitload_cpu_kernel;

/* What __syncthreads() and its variants compute over the block. */
enum { JITLOAD_CPU_COUNT, JITLOAD_CPU_AND, JITLOAD_CPU_OR };

#define JITLOAD_CPU_HIDDEN __attribute__((visibility("hidden"), tls_model("local-dynamic")))

#ifdef __SANITIZE_THREAD__ /* which does not watch constants */
#define JITLOAD_CPU_UNWATCHED const
#else
#define JITLOAD_CPU_UNWATCHED
#endif

/* The worker that runs the kernel on this thread. Kernels pass it to each wait: their code already has its
 * address, whereas the functions below would have to look it up. */
extern JITLOAD_CPU_HIDDEN __thread struct jitload_cpu_worker* JITLOAD_CPU_UNWATCHED jitload_cpu_current_worker;

/* Address and size of this thread's thread-local memory, which holds shared memory. No other thread of the operating
 * system accesses it, so atomics in it need no atomic instructions. The size is 0 with sanitize= and debug=. */
extern JITLOAD_CPU_HIDDEN __thread uintptr_t jitload_cpu_thread_memory[2];

/* Wait for all live threads of the block; return the count of true predicates, or whether all or any are true. `site`
 * is the caller's line, with its column in the upper half. */
int jitload_cpu_barrier(struct jitload_cpu_worker* worker, int kind, int predicate, uint64_t site);

/* Wait for the lanes of `mask` and exchange 64-bit values with them: `values[lane]` is a lane's value, 0 for lanes
 * that have ended or are not in the mask. `values[32]` has a bit for each lane whose value is not 0. Return the mask of
 * the lanes that took part. `name` is the function for messages. */
uint32_t jitload_cpu_exchange(struct jitload_cpu_worker* worker, uint32_t mask, uint64_t value, const uint64_t** values,
                              const char* name);

/* Wait until no other lane can arrive at this place; return the mask of the lanes of the warp that are there. */
uint32_t jitload_cpu_active(uint64_t site);

/* Store a number where sanitize="race" does not see it. */
void jitload_cpu_store(void* variable, uint32_t value);

/* Let the other lanes of the warp run up to their accesses to volatile variables. A kernel calls this before its access.
 * `code` is the access's place in the code. */
void jitload_cpu_step(struct jitload_cpu_worker* worker, const void* address, int is_write, const void* code);

/* Note that this thread runs a basic block of a kernel with such variables. `code` is its address. */
void jitload_cpu_path(struct jitload_cpu_worker* worker, const void* code);

/* Note an atomic operation of this thread, which may order it with other lanes. */
void jitload_cpu_atomic(struct jitload_cpu_worker* worker);

#ifdef JITLOAD_CPU_CHECKS
/* Check that an access is valid, with sanitize="address". */
void jitload_cpu_check(const void* memory, size_t size, int is_write, const void* code);
#endif

/* Let the other threads of the block run for a while. */
void jitload_cpu_yield(void);

/* Return the time in nanoseconds. */
int64_t jitload_cpu_clock(void);

/* End the launch with an error that names the block and this thread. */
__attribute__((noreturn, format(printf, 2, 3))) void jitload_cpu_stop(const uint32_t thread[3], const char* format,
                                                                       ...);

/* The memory of a tensor that a kernel was given. */
typedef struct jitload_cpu_region {
  const char* name;
  uintptr_t begin;
  uintptr_t end;
  int is_const; /* of a pointer to const, through which the kernel only reads */
} jitload_cpu_region;

/* How the threads of a block run. */
enum {
  JITLOAD_CPU_LOOP,   /* as a loop that may be vectorised, because they cannot wait */
  JITLOAD_CPU_FIBERS, /* as fibers, because they may wait for each other */
  JITLOAD_CPU_SINGLY  /* one by one, because they may divide integers by zero */
};

/* One call of a kernel. */
typedef struct jitload_cpu_launch {
  const jitload_cpu_kernel* kernel;
  const char* name;
  int mode;
  int is_unchecked; /* the kernel was compiled without checks, in a library that has them */
  jitload_cpu_block block;
  void* const* params;
  const jitload_cpu_region* tensors;
  int tensor_count;
  jitload_cpu_region param_memory;
  int has_addresses; /* the kernel was also given memory that belongs to no tensor */
} jitload_cpu_launch;

#define JITLOAD_CPU_LAST_BLOCK 0x1ffffeu
#define JITLOAD_CPU_INTERRUPTED (-2)

/* Run a grid to its end. Return 0; -1 with a message that stays valid until this thread's next error; or -2 if a Python
 * exception such as KeyboardInterrupt ended it. Only libraries with kernels for the CPU are linked with this function. */
__attribute__((weak, visibility("hidden"))) int jitload_cpu_run(const jitload_cpu_launch* launch, const char** error);

}

#define JITLOAD_MOST_SHARED 232448 /* bytes that the largest GPU gives a block: 227 KiB */
#define JITLOAD_TEXT_(...) #__VA_ARGS__
#define JITLOAD_TEXT(...) JITLOAD_TEXT_(__VA_ARGS__)

/* Define the `extern __shared__` arrays. All begin at the same address and have the largest size there may be. */
#define JITLOAD_SHARED_LABEL(symbol) ".globl " symbol "\n.hidden " symbol "\n.type " symbol ", @object\n" symbol ":\n"
#define JITLOAD_DYNAMIC_SHARED(labels)                                 \
  __asm__(".pushsection .tbss, \"awT\", @nobits\n.balign 128\n" labels \
          ".zero " JITLOAD_TEXT(JITLOAD_MOST_SHARED) "\n.popsection\n")
