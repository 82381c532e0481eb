/* CUDA C++ for g++: what nvcc gives every kernel without an #include.
 *
 * The compiler reads this header before the user's text. `__global__` leaves a mark in the object file, so the compiler
 * decides what is a kernel. threadIdx, blockIdx and the like are variables of this translation unit whose address is
 * never taken, so that they become the counters of the loops over a block's threads.
 */
#pragma once

#define clock __jitload_c_clock /* C's clock() does not count what CUDA's clock() counts */
#include <time.h>
#undef clock

#include <float.h>
#include <jitload/cpu.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#if __cplusplus > 201703L
#include <source_location>
#else
namespace std {
struct source_location {
  struct __impl { /* what __builtin_source_location() returns */
    const char* _M_file_name;
    const char* _M_function_name;
    unsigned _M_line, _M_column;
  };
  const void* pointer;
  static constexpr source_location current(const void* pointer = __builtin_source_location()) { return {pointer}; }
  constexpr unsigned line() const { return static_cast<const __impl*>(pointer)->_M_line; }
  constexpr unsigned column() const { return static_cast<const __impl*>(pointer)->_M_column; }
};
}  // namespace std
#endif

#define JITLOAD_CPU 1
#define __JITLOAD_INLINE static inline __attribute__((always_inline, unused))
#define __JITLOAD_MEMBER inline __attribute__((always_inline))
/* Makes a function a template, so that a function of the source with the same name and parameters takes precedence. No
 * template arguments that a source writes fit it: max<float>(a, b) is a template of the source or of C++. */
enum class __jitload_tag {};
#define __JITLOAD_REPLACEABLE template <__jitload_tag = __jitload_tag()>

/* ---- qualifiers ------------------------------------------------------------------------------------------------ */

#define __host__
#define __device__
#define __global__ __attribute__((used, patchable_function_entry(1)))
#define __shared__ thread_local
#define __constant__ __attribute__((used))
#define __managed__
#define __grid_constant__
#define __forceinline__ __attribute__((always_inline)) /* without `inline`, which people also write */
#define __noinline__ inline /* libstdc++ writes __attribute__((__noinline__)), which must stay an attribute */
#define __restrict__ __restrict
/* Tells cpu/object_file.py the most threads of a block: the compiler puts as many instructions, which never run, before
 * the function. */
#define __launch_bounds__(...)                                                     \
  __attribute__((patchable_function_entry(__jitload_most_threads(__VA_ARGS__) + 1, \
                                          __jitload_most_threads(__VA_ARGS__))))
template <class... __jitload_t>
constexpr int __jitload_most_threads(long long threads, __jitload_t...) {
  return threads < 1 || threads > 1024 ? 1024 : (int)threads;
}
#define __maxnreg__(...)
#define __cluster_dims__(...) /* ignored; to use what a cluster has and a block lacks is an error */
#define __block_size__(...)
#define __builtin_assume(...) ((__VA_ARGS__) ? (void)0 : __builtin_unreachable())
#define __assume(...) __builtin_assume(__VA_ARGS__)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __nv_pure__ __attribute__((pure))
#define __CUDACC_JITLOAD_CPU__ 1

#include "jitload_cpu_types.h"

/* ---- the position of a thread ---------------------------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
/* The compiler does not watch constants. The runtime stores these, and sets threadIdx again before a thread goes on. */
extern JITLOAD_CPU_HIDDEN __thread const __jitload_index threadIdx __asm__("jitload_cpu_thread_index"),
    blockIdx __asm__("jitload_cpu_block_index"), blockDim __asm__("jitload_cpu_block_dim"),
    gridDim __asm__("jitload_cpu_grid_dim");
#else
static thread_local __jitload_index threadIdx, blockIdx, blockDim, gridDim;
#endif
static constexpr int warpSize = 32;

__JITLOAD_INLINE unsigned __jitload_rank() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

__JITLOAD_INLINE unsigned __jitload_lane() { return __jitload_rank() & 31u; }

/* For functions that run before the kernel's code, whose accesses need no checks with sanitize=. */
#define __JITLOAD_UNCHECKED __attribute__((no_sanitize("thread"), no_sanitize("kernel-address")))

#ifdef __SANITIZE_THREAD__
__JITLOAD_INLINE void __jitload_set(const __jitload_index&, unsigned, unsigned, unsigned) {}
#else
__JITLOAD_INLINE void __jitload_set(__jitload_index& index, unsigned x, unsigned y, unsigned z) {
  index.x = x;
  index.y = y;
  index.z = z;
}
#endif

__JITLOAD_INLINE void __jitload_set_block(const jitload_cpu_block* block) {
  __jitload_set(blockIdx, block->block_index[0], block->block_index[1], block->block_index[2]);
  __jitload_set(blockDim, block->block_dim[0], block->block_dim[1], block->block_dim[2]);
  __jitload_set(gridDim, block->grid_dim[0], block->grid_dim[1], block->grid_dim[2]);
}

/* Run a statement that may switch to other threads of the block, which set threadIdx to theirs. */
#define __JITLOAD_KEEP_THREAD_INDEX(...)                                                          \
  const unsigned __jitload_x = threadIdx.x, __jitload_y = threadIdx.y, __jitload_z = threadIdx.z; \
  __VA_ARGS__;                                                                                    \
  __jitload_set(threadIdx, __jitload_x, __jitload_y, __jitload_z)

/* ---- errors ---------------------------------------------------------------------------------------------------- */

#define __jitload_stop(...)                                                       \
  (({                                                                             \
    const uint32_t __jitload_thread[3] = {threadIdx.x, threadIdx.y, threadIdx.z}; \
    jitload_cpu_stop(__jitload_thread, __VA_ARGS__);                              \
  }))

__JITLOAD_INLINE void __trap() { __jitload_stop("__trap()"); }
__JITLOAD_INLINE void __brkpt() {}
__JITLOAD_INLINE void __prof_trigger(int) {}

/* ---- waiting --------------------------------------------------------------------------------------------------- */

#ifdef JITLOAD_CPU_PREEMPT
static thread_local int __jitload_countdown = 4096; /* basic blocks until another thread of the block gets its turn */
#ifdef __SANITIZE_THREAD__ /* which must not see that all threads of the block store this */
#define __JITLOAD_SET_COUNTDOWN(blocks) jitload_cpu_store(&__jitload_countdown, (blocks))
#else
#define __JITLOAD_SET_COUNTDOWN(blocks) (__jitload_countdown = (blocks))
#endif
#else
#define __JITLOAD_SET_COUNTDOWN(blocks) ((void)0)
#endif

/* Let other threads run, because this one may be waiting for one of them. The countdown is set to a fixed value,
 * because it is part of the state whose repetition shows an endless wait. */
__JITLOAD_INLINE void __jitload_yield() {
  __JITLOAD_SET_COUNTDOWN(512);
  __JITLOAD_KEEP_THREAD_INDEX(jitload_cpu_yield());
}

/* Where a function is called: the line, and in the upper half the column, which tells two calls on one line apart. */
typedef uint64_t __jitload_site;
#define __JITLOAD_SITE __jitload_site_of(std::source_location::current())
constexpr __jitload_site __jitload_site_of(std::source_location location) {
  return location.line() | (__jitload_site)location.column() << 32;
}

#ifdef JITLOAD_CPU_PREEMPT
/* The compiler calls this function in every basic block. After a number of calls, another thread of the block gets its
 * turn, so that a loop may wait for what another thread writes. */
extern "C" __attribute__((no_sanitize_coverage, no_sanitize("thread"), noinline, used)) void __sanitizer_cov_trace_pc() {
#if defined(JITLOAD_CPU_STEPS) || defined(__SANITIZE_THREAD__)
  jitload_cpu_path(jitload_cpu_current_worker, __builtin_return_address(0));
#endif
  const int __jitload_left = __jitload_countdown - 1;
  __JITLOAD_SET_COUNTDOWN(__jitload_left);
  if (__jitload_left <= 0) __jitload_yield();
}
#endif

#ifdef JITLOAD_CPU_STEPS
/* The compiler calls functions before each access to memory, which let lanes run in step, and in place of atomics. */
#define JITLOAD_HOOK \
  extern "C" __attribute__((no_sanitize_coverage, no_sanitize("thread"), noinline, used, visibility("hidden")))
#ifdef JITLOAD_CPU_CHECKS
#define JITLOAD_ACCESS(p, size, is_write) jitload_cpu_check(p, size, is_write, __builtin_return_address(0))
#else
#define JITLOAD_ACCESS(p, size, is_write) ((void)0)
#endif
#define JITLOAD_VOLATILE_ACCESS(p, size, is_write)                                              \
  JITLOAD_ACCESS(p, size, is_write);                                                            \
  __JITLOAD_SET_COUNTDOWN(4096);                                                                \
  __JITLOAD_KEEP_THREAD_INDEX(                                                                  \
      jitload_cpu_step(jitload_cpu_current_worker, p, is_write, __builtin_return_address(0)))
#define JITLOAD_ATOMIC_ACCESS(p, size, is_write) \
  JITLOAD_ACCESS(p, size, is_write);             \
  jitload_cpu_atomic(jitload_cpu_current_worker)
JITLOAD_HOOK void __tsan_init() {}
#include <jitload/accesses.h>
#endif

__JITLOAD_INLINE int __jitload_barrier(int kind, int predicate, __jitload_site site) {
  __JITLOAD_KEEP_THREAD_INDEX(const int result = jitload_cpu_barrier(jitload_cpu_current_worker, kind, predicate, site));
  __JITLOAD_SET_COUNTDOWN(4096);
  return result;
}

__JITLOAD_INLINE void __syncthreads(__jitload_site site = __JITLOAD_SITE) {
  __jitload_barrier(JITLOAD_CPU_COUNT, 0, site);
}
__JITLOAD_INLINE int __syncthreads_count(int predicate, __jitload_site site = __JITLOAD_SITE) {
  return __jitload_barrier(JITLOAD_CPU_COUNT, predicate, site);
}
__JITLOAD_INLINE int __syncthreads_and(int predicate, __jitload_site site = __JITLOAD_SITE) {
  return __jitload_barrier(JITLOAD_CPU_AND, predicate, site);
}
__JITLOAD_INLINE int __syncthreads_or(int predicate, __jitload_site site = __JITLOAD_SITE) {
  return __jitload_barrier(JITLOAD_CPU_OR, predicate, site);
}

/* Exchange values among the lanes of `mask`; see jitload_cpu_exchange. `*values` is valid until the next switch. */
__JITLOAD_INLINE uint32_t __jitload_exchange(uint32_t mask, uint64_t value, const uint64_t** values, const char* name) {
  __JITLOAD_KEEP_THREAD_INDEX(
      const uint32_t lanes = jitload_cpu_exchange(jitload_cpu_current_worker, mask, value, values, name));
  __JITLOAD_SET_COUNTDOWN(4096);
  return lanes;
}

__JITLOAD_INLINE void __syncwarp(unsigned mask = 0xffffffffu) {
  const uint64_t* values;
  __jitload_exchange(mask, 0, &values, "__syncwarp()");
}

__JITLOAD_INLINE unsigned __activemask(__jitload_site site = __JITLOAD_SITE) {
  __JITLOAD_KEEP_THREAD_INDEX(const unsigned mask = jitload_cpu_active(site));
  __JITLOAD_SET_COUNTDOWN(4096);
  return mask;
}

__JITLOAD_INLINE void __nanosleep(unsigned) { __jitload_yield(); }

#include "jitload_cpu_warp.h"
#include "jitload_cpu_memory.h"
#include "jitload_cpu_math.h"
#include <assert.h>

/* Assertions of libcu++ call this when they fail. C's function would end the process. */
#define __assert_fail __jitload_assert_fail
extern "C" __attribute__((noreturn)) inline void __assert_fail(const char* assertion, const char* file, unsigned line,
                                                               const char*) noexcept {
  __jitload_stop("%s:%u: assertion `%s` failed", file, line, assertion);
}

extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept;
__JITLOAD_INLINE void* __nv_aligned_device_malloc(size_t size, size_t alignment) {
  return aligned_alloc(alignment, size);
}

/* ---- how kernels are run --------------------------------------------------------------------------------------- */

/* How a parameter is passed: a reference as a pointer, as on a GPU. */
template <class __jitload_t>
struct __jitload_passed {
  typedef __jitload_t type;
  static __JITLOAD_MEMBER __jitload_t& unpack(type& value) { return value; }
};
template <class __jitload_t>
struct __jitload_passed<__jitload_t&> {
  typedef __jitload_t* type;
  static __JITLOAD_MEMBER __jitload_t& unpack(type value) { return *value; }
};
template <class __jitload_t>
struct __jitload_passed<__jitload_t&&> {
  static_assert(sizeof(__jitload_t) == 0, "a __global__ function cannot have a parameter with rvalue reference type");
};

template <class __jitload_t>
__JITLOAD_INLINE typename __jitload_passed<__jitload_t>::type& __jitload_parameter(void* const* params,
                                                                                   unsigned number) {
  return *static_cast<typename __jitload_passed<__jitload_t>::type*>(params[number]);
}

template <unsigned... __jitload_n>
struct __jitload_indices {};

/* The plain loops are compiled twice on x86-64, the second time for AVX-512, whose masked stores are the only way to
 * run several threads behind a guard such as `if (i < n)` in one instruction. With 512-bit vectors a guard on a 64-bit
 * index, which takes two comparisons for a vector of floats, costs hardly more than one on a 32-bit index. */
#if defined(__x86_64__) && !defined(__AVX512BW__) && !defined(JITLOAD_CPU_PREEMPT)
#define __JITLOAD_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

/* Tell the compiler the limits of a block, so that it knows that `blockIdx.x * blockDim.x + threadIdx.x` does not wrap
 * and that neighbouring threads access neighbouring elements. run_blocks() makes sure that the values do not change. */
#ifndef __SANITIZE_THREAD__
__JITLOAD_INLINE unsigned __jitload_bound(unsigned value, unsigned limit) { return ((value - 1) & (limit - 1)) + 1; }
__JITLOAD_INLINE void __jitload_bound_indices() {
  const unsigned x = blockIdx.x < JITLOAD_CPU_LAST_BLOCK ? blockIdx.x : JITLOAD_CPU_LAST_BLOCK;
  __jitload_set(blockIdx, x, blockIdx.y & 0xffffu, blockIdx.z & 0xffffu);
  __jitload_set(blockDim, __jitload_bound(blockDim.x, 1024), __jitload_bound(blockDim.y, 1024),
                __jitload_bound(blockDim.z, 64));
  __jitload_set(gridDim, gridDim.x & 0x7fffffffu, gridDim.y & 0xffffu, gridDim.z & 0xffffu);
}
#endif

template <class __jitload_f, __jitload_f* __jitload_k>
struct __jitload_entry;
template <class... __jitload_a, void (*__jitload_k)(__jitload_a...)>
struct __jitload_entry<void(__jitload_a...), __jitload_k> {
  static constexpr uint32_t sizes[] = {sizeof(typename __jitload_passed<__jitload_a>::type)..., 0};
  static constexpr uint32_t alignments[] = {alignof(typename __jitload_passed<__jitload_a>::type)..., 0};
  typedef __jitload_indices<__integer_pack(sizeof...(__jitload_a))...> indices;

#ifdef __SANITIZE_THREAD__
  static void run_blocks(void* const*, jitload_cpu_block*, uint32_t) {} /* never called */
#else
  /* The parameters are copies here, which no store of the kernel can reach, so they stay in registers. */
  __JITLOAD_INLINE void loop(jitload_cpu_block* block, uint32_t count,
                             typename __jitload_passed<__jitload_a>::type... args) {
    __jitload_set_block(block);
    for (uint32_t last = block->block_index[0] + count - 1;; ++block->block_index[0]) {
      blockIdx.x = block->block_index[0];
      __jitload_bound_indices();
      const unsigned depth = blockDim.z, height = blockDim.y, width = blockDim.x;
      for (unsigned z = 0; z < depth; ++z) {
        threadIdx.z = z;
        for (unsigned y = 0; y < height; ++y) {
          threadIdx.y = y;
          for (unsigned x = 0; x < width; ++x) {
            threadIdx.x = x;
            __jitload_k(__jitload_passed<__jitload_a>::unpack(args)...);
          }
        }
      }
      if (block->block_index[0] == last) return;
    }
  }
  template <unsigned... __jitload_n>
  __attribute__((flatten)) static void loop_for_any(void* const* params, jitload_cpu_block* block, uint32_t count,
                                                    __jitload_indices<__jitload_n...>) {
    loop(block, count, __jitload_parameter<__jitload_a>(params, __jitload_n)...);
  }
#ifdef __JITLOAD_AVX512
  template <unsigned... __jitload_n>
  __attribute__((flatten)) __JITLOAD_AVX512 static void loop_for_avx512(void* const* params, jitload_cpu_block* block,
                                                                        uint32_t count,
                                                                        __jitload_indices<__jitload_n...>) {
    loop(block, count, __jitload_parameter<__jitload_a>(params, __jitload_n)...);
  }
#endif

  static void run_blocks(void* const* params, jitload_cpu_block* block, uint32_t count) {
#ifdef __JITLOAD_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return loop_for_avx512(params, block, count, indices());
    }
#endif
    loop_for_any(params, block, count, indices());
  }
#endif

  __JITLOAD_UNCHECKED static void run_threads(void* const* params, const jitload_cpu_block* block, uint32_t* thread,
                                              uint32_t count) {
    if (count == 1) return run_thread(params, block, thread); /* so that a fiber's stack has no more than it needs */
    for (; count != 0; --count) {
      run_thread(params, block, thread);
      if (++thread[0] == block->block_dim[0]) thread[0] = 0, ++thread[1];
      if (thread[1] == block->block_dim[1]) thread[1] = 0, ++thread[2];
    }
  }
  __JITLOAD_UNCHECKED __attribute__((noinline)) static void run_thread(
      void* const* params, const jitload_cpu_block* block, const uint32_t* thread) {
    __jitload_set_block(block);
    __jitload_set(threadIdx, thread[0], thread[1], thread[2]);
    call(params, indices());
  }
  template <unsigned... __jitload_n>
  __JITLOAD_UNCHECKED static void call(void* const* params, __jitload_indices<__jitload_n...>) {
    __jitload_k(__jitload_passed<__jitload_a>::unpack(__jitload_parameter<__jitload_a>(params, __jitload_n))...);
  }
};

template <class __jitload_t>
struct __jitload_function;
template <class __jitload_r, class... __jitload_a>
struct __jitload_function<__jitload_r (*)(__jitload_a...)> : __jitload_function<__jitload_r(__jitload_a...)> {};
template <class __jitload_r, class... __jitload_a>
struct __jitload_function<__jitload_r(__jitload_a...)> {
  static_assert(sizeof(__jitload_r*) == 0, "a __global__ function must have a void return type");
  typedef void type(__jitload_a...);
};
template <class... __jitload_a>
struct __jitload_function<void(__jitload_a...)> {
  typedef void type(__jitload_a...);
};
template <class... __jitload_a>
struct __jitload_function<void(__jitload_a...) noexcept> {
  static_assert(sizeof...(__jitload_a) == ~0u, "an exception specification is not allowed for a __global__ function");
  typedef void type(__jitload_a...);
};

#define __JITLOAD_ENTRY(...) __jitload_entry<__jitload_function<decltype(__VA_ARGS__)>::type, __VA_ARGS__>

/* A row of the kernel table. `...` is the kernel as an expression: a name, or a cast that picks an overload. */
#define JITLOAD_CPU_KERNEL(...)                                                                        \
  {&__JITLOAD_ENTRY(__VA_ARGS__)::run_blocks, &__JITLOAD_ENTRY(__VA_ARGS__)::run_threads,              \
   (void (*)(void))(__VA_ARGS__),                                                                      \
   &__jitload_probe<decltype(__VA_ARGS__), __jitload_promoted<decltype(__VA_ARGS__)>::__jitload_type>, \
   __JITLOAD_ENTRY(__VA_ARGS__)::sizes, __JITLOAD_ENTRY(__VA_ARGS__)::alignments}
