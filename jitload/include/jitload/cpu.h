/* Between a kernel compiled for the CPU and the part that runs it: what each has to know of the other.
 *
 * The kernels' side is C++ text of a user's behind include/cpu/jitload_cpu.h; the other is cpu.cc, compiled once.
 */
#ifndef JITLOAD_CPU_H_
#define JITLOAD_CPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a block stands: everything that all its threads share. */
typedef struct jitload_cpu_place {
  uint32_t grid[3];
  uint32_t block[3]; /* how many threads it has */
  uint32_t at[3];    /* blockIdx */
  uint32_t shared_bytes;
  uint32_t is_wide; /* the processor runs what was compiled for the wider vectors */
} jitload_cpu_place;

/* A kernel's two ways to run, and what its object file tells a reader about it. */
typedef struct jitload_cpu_kernel {
  /* Every thread of `count` blocks that follow each other in x, one after the other: for a kernel that never waits. The
   * place's `at` is that of the block at hand. */
  void (*blocks)(void* const* params, jitload_cpu_place* place, uint32_t count);
  /* One thread. It may come back from a wait much later, on the same operating system's thread. */
  void (*thread)(void* const* params, const jitload_cpu_place* place, const uint32_t index[3]);
  void (*kernel)(void);
  void (*probe)(void);        /* never called: its symbol holds the kernel's type */
  const uint32_t* sizes;      /* bytes of each parameter; 0 ends them */
  const uint32_t* alignments; /* likewise */
} jitload_cpu_kernel;

/* What __syncthreads and its kin work out over the block. */
enum { JITLOAD_CPU_COUNT, JITLOAD_CPU_AND, JITLOAD_CPU_OR };

#define JITLOAD_CPU_HIDDEN __attribute__((visibility("hidden"), tls_model("local-dynamic")))

/* The thread of the pool that runs the kernel; handed over, because a kernel has its other variables at hand there. */
extern JITLOAD_CPU_HIDDEN __thread struct jitload_cpu_worker* jitload_cpu_here;

/* Where shared memory lies, and how long it is. No other thread of the operating system's gets there, so that nothing in it
 * needs an access that is atomic for the processor. 0 long while kernels are watched. */
extern JITLOAD_CPU_HIDDEN __thread uintptr_t jitload_cpu_own[2];

/* Wait for all living threads of the block; returns the count, or whether all or any, of the predicates are true. */
int jitload_cpu_barrier(struct jitload_cpu_worker* here, int kind, int predicate, const void* site);

/* Wait for the lanes of `mask` and exchange 64-bit values with them: `out[lane]` is what each gave; lanes that have
 * ended or are not in the mask keep 0. `out[32]` has a bit for each that gave something else. Returns the mask of the
 * lanes that came. */
uint32_t jitload_cpu_exchange(struct jitload_cpu_worker* here, uint32_t mask, uint64_t value, const uint64_t** out,
                              const char* what);

/* The lanes of the warp that stand at this same place, once none can come any more. */
uint32_t jitload_cpu_active(const void* site);

/* Let the other threads of the block go on for a while. */
void jitload_cpu_yield(void);

/* End the launch with an error that names the block and this thread. */
__attribute__((noreturn, format(printf, 2, 3))) void jitload_cpu_stop(const uint32_t index[3], const char* format, ...);

/* Memory that a kernel was given: a tensor's. */
typedef struct jitload_cpu_region {
  const char* name;
  uintptr_t begin;
  uintptr_t end;
} jitload_cpu_region;

/* One call of a kernel. */
typedef struct jitload_cpu_launch {
  const jitload_cpu_kernel* kernel;
  const char* name;
  int can_wait;
  jitload_cpu_place place;
  void* const* params;
  const jitload_cpu_region* regions;
  int region_count;
  jitload_cpu_region values; /* of the parameters */
  int has_addresses; /* the kernel has been given memory that is no tensor's, too */
} jitload_cpu_launch;

#define JITLOAD_CPU_INTERRUPTED (-2)

/* Run a grid to its end. Returns 0; -1 with the message of what went wrong, which stays until the thread's next; or -2
 * where Python's own error, a KeyboardInterrupt, ended it. */
int jitload_cpu_run(const jitload_cpu_launch* launch, const char** error);

#ifdef __cplusplus
}
#endif

#define JITLOAD_MOST_SHARED 232448 /* bytes that the largest GPU gives a block: 227 KiB */
#define JITLOAD_TEXT_(...) #__VA_ARGS__
#define JITLOAD_TEXT(...) JITLOAD_TEXT_(__VA_ARGS__)

/* Define the `extern __shared__` arrays: of the most there may be, and all begin at the same address. */
#define JITLOAD_SHARED_LABEL(symbol) ".globl " symbol "\n.hidden " symbol "\n.type " symbol ", @object\n" symbol ":\n"
#define JITLOAD_DYNAMIC_SHARED(labels) \
  __asm__(".pushsection .tbss, \"awT\", @nobits\n.balign 128\n" labels \
          ".zero " JITLOAD_TEXT(JITLOAD_MOST_SHARED) "\n.popsection\n")

#endif /* JITLOAD_CPU_H_ */
