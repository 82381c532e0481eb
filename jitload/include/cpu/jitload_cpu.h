/* CUDA C++ for the host's compiler: what nvcc gives every kernel without an #include.
 *
 * The compiler reads this before a user's text. Kernels are found by the mark that __global__ leaves in the object file, so
 * the compiler decides what a kernel is. threadIdx and its kin are variables of this file alone whose address nobody
 * takes: in the loops over a block's threads they become the loops' counters.
 */
#ifndef JITLOAD_CPU_DEVICE_H_
#define JITLOAD_CPU_DEVICE_H_

#define clock __jitload_c_clock /* C's counts something else */
#include <time.h>
#undef clock

#include <float.h>
#include <jitload/cpu.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define JITLOAD_CPU 1
#define __JITLOAD_INLINE static inline __attribute__((always_inline, unused))
#define __JITLOAD_MEMBER inline __attribute__((always_inline))

/* ---- qualifiers ------------------------------------------------------------------------------------------------ */

#define __host__
#define __device__
#define __global__ __attribute__((used, patchable_function_entry(1)))
#define __shared__ thread_local
#define __constant__ __attribute__((used))
#define __managed__
#define __grid_constant__
#define __forceinline__ __attribute__((always_inline)) /* people write `inline` beside it */
#define __noinline__ inline /* libstdc++ says __attribute__((__noinline__)), which this must leave an attribute */
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...) /* what a cluster can do beyond a block is GPU only */
#define __block_size__(...)
#define __builtin_assume(...) ((__VA_ARGS__) ? (void)0 : __builtin_unreachable())
#define __assume(...) __builtin_assume(__VA_ARGS__)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __nv_pure__ __attribute__((pure))
#define __CUDACC_JITLOAD_CPU__ 1

#include "jitload_cpu_types.h"

/* ---- where a thread is ----------------------------------------------------------------------------------------- */

static thread_local __jitload_index threadIdx, blockIdx, blockDim, gridDim;
static thread_local unsigned __jitload_shared_bytes;
static constexpr int warpSize = 32;

__JITLOAD_INLINE unsigned __jitload_rank() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

__JITLOAD_INLINE unsigned __jitload_lane() { return __jitload_rank() & 31u; }

__JITLOAD_INLINE void __jitload_set(__jitload_index& index, unsigned x, unsigned y, unsigned z) {
  index.x = x;
  index.y = y;
  index.z = z;
}

__JITLOAD_INLINE void __jitload_enter(const jitload_cpu_place* place) {
  __jitload_set(blockIdx, place->at[0], place->at[1], place->at[2]);
  __jitload_set(blockDim, place->block[0], place->block[1], place->block[2]);
  __jitload_set(gridDim, place->grid[0], place->grid[1], place->grid[2]);
  __jitload_shared_bytes = place->shared_bytes;
}

/* Other threads of the block run in a wait, and threadIdx is theirs meanwhile. */
#define __JITLOAD_KEEPING_INDEX(...)                     \
  const unsigned __jitload_x = threadIdx.x, __jitload_y = threadIdx.y, __jitload_z = threadIdx.z; \
  __VA_ARGS__;                                           \
  __jitload_set(threadIdx, __jitload_x, __jitload_y, __jitload_z)

/* ---- ends ------------------------------------------------------------------------------------------------------ */

#define __jitload_stop(...)                                                              \
  (({                                                                                    \
    const uint32_t __jitload_at[3] = {threadIdx.x, threadIdx.y, threadIdx.z};            \
    jitload_cpu_stop(__jitload_at, __VA_ARGS__);                                         \
  }))

__JITLOAD_INLINE void __trap() { __jitload_stop("__trap()"); }
__JITLOAD_INLINE void __brkpt() {}

/* ---- waiting --------------------------------------------------------------------------------------------------- */

#ifdef JITLOAD_CPU_PREEMPT
/* The compiler calls this in every basic block: a loop that waits for what another thread writes lets that one go on.
 * What an exchange gave out is read before the next turn. */
static thread_local int __jitload_fuse = 4096;
extern "C" __attribute__((no_sanitize_coverage, noinline, used)) void __sanitizer_cov_trace_pc() {
  if (--__jitload_fuse > 0) return;
  __jitload_fuse = 512;
  __JITLOAD_KEEPING_INDEX(jitload_cpu_yield());
}
#define __JITLOAD_KEEP_TURN() (__jitload_fuse = 4096)
#else
#define __JITLOAD_KEEP_TURN() ((void)0)
#endif

__JITLOAD_INLINE int __jitload_barrier(int kind, int predicate, int line) {
  __JITLOAD_KEEPING_INDEX(const int result = jitload_cpu_barrier(jitload_cpu_here, kind, predicate, (const void*)(uintptr_t)line));
  return result;
}

__JITLOAD_INLINE void __syncthreads(int line = __builtin_LINE()) { __jitload_barrier(JITLOAD_CPU_COUNT, 0, line); }
__JITLOAD_INLINE int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return __jitload_barrier(JITLOAD_CPU_COUNT, predicate, line);
}
__JITLOAD_INLINE int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return __jitload_barrier(JITLOAD_CPU_AND, predicate, line);
}
__JITLOAD_INLINE int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return __jitload_barrier(JITLOAD_CPU_OR, predicate, line);
}

__JITLOAD_INLINE uint32_t __jitload_exchange(uint32_t mask, uint64_t value, const uint64_t** out, const char* what) {
  __JITLOAD_KEEPING_INDEX(const uint32_t came = jitload_cpu_exchange(jitload_cpu_here, mask, value, out, what));
  __JITLOAD_KEEP_TURN();
  return came;
}

__JITLOAD_INLINE void __syncwarp(unsigned mask = 0xffffffffu) {
  const uint64_t* values;
  __jitload_exchange(mask, 0, &values, "__syncwarp()");
}

__JITLOAD_INLINE unsigned __activemask(int line = __builtin_LINE()) {
  __JITLOAD_KEEPING_INDEX(const unsigned mask = jitload_cpu_active((const void*)(uintptr_t)line));
  return mask;
}

__JITLOAD_INLINE void __nanosleep(unsigned) {
  __JITLOAD_KEEPING_INDEX(jitload_cpu_yield());
}

#include "jitload_cpu_warp.h"
#include "jitload_cpu_memory.h"
#include "jitload_cpu_math.h"
#include <assert.h>

/* ---- the entries ----------------------------------------------------------------------------------------------- */

template <class __jitload_t>
__JITLOAD_INLINE __jitload_t& __jitload_read(void* const* params, unsigned number) {
  return *static_cast<__jitload_t*>(params[number]);
}

template <class... __jitload_a>
struct __jitload_layout {
  static constexpr uint32_t sizes[sizeof...(__jitload_a) + 1] = {sizeof(__jitload_a)..., 0};
  static constexpr uint32_t alignments[sizeof...(__jitload_a) + 1] = {alignof(__jitload_a)..., 0};
};

template <unsigned... __jitload_n>
struct __jitload_numbers {};
template <unsigned __jitload_count, unsigned... __jitload_n>
struct __jitload_count_up : __jitload_count_up<__jitload_count - 1, __jitload_count - 1, __jitload_n...> {};
template <unsigned... __jitload_n>
struct __jitload_count_up<0, __jitload_n...> {
  typedef __jitload_numbers<__jitload_n...> type;
};

/* Where the loops are compiled a second time, for processors that write a part of a vector at once: with a guard like
 * `if (i < n)` there is no other way to compute several threads in one instruction. */
#if defined(__x86_64__) && !defined(__AVX512BW__) && !defined(JITLOAD_CPU_PREEMPT)
#define __JITLOAD_WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif

/* What the compiler is to know of a block: that no sum of an index and a product wraps. Nothing changes in value. */
#define __JITLOAD_LAST_NARROW 0x1ffffeu
__JITLOAD_INLINE unsigned __jitload_within(unsigned value, unsigned limit) { return ((value - 1) & (limit - 1)) + 1; }
__JITLOAD_INLINE void __jitload_narrow() {
  __jitload_set(blockIdx, blockIdx.x < __JITLOAD_LAST_NARROW ? blockIdx.x : __JITLOAD_LAST_NARROW, blockIdx.y & 0xffffu, blockIdx.z & 0xffffu);
  __jitload_set(blockDim, __jitload_within(blockDim.x, 1024), __jitload_within(blockDim.y, 1024), __jitload_within(blockDim.z, 64));
  __jitload_set(gridDim, gridDim.x & 0x7fffffffu, gridDim.y & 0xffffu, gridDim.z & 0xffffu);
}

template <class __jitload_f, __jitload_f* __jitload_k>
struct __jitload_entry;
template <class... __jitload_a, void (*__jitload_k)(__jitload_a...)>
struct __jitload_entry<void(__jitload_a...), __jitload_k> {
  typedef __jitload_layout<__jitload_a...> layout;

  /* The parameters are copies here, which no store of the kernel can reach: they stay in registers. */
  __JITLOAD_INLINE void loop(jitload_cpu_place* place, uint32_t count, __jitload_a... args) {
    __jitload_enter(place);
    for (uint32_t last = place->at[0] + count - 1;; ++place->at[0]) {
      blockIdx.x = place->at[0];
      __jitload_narrow();
      const unsigned depth = blockDim.z, height = blockDim.y, width = blockDim.x;
      for (unsigned z = 0; z < depth; ++z) {
        threadIdx.z = z;
        for (unsigned y = 0; y < height; ++y) {
          threadIdx.y = y;
          for (unsigned x = 0; x < width; ++x) {
            threadIdx.x = x;
            __jitload_k(args...);
          }
        }
      }
      if (place->at[0] == last) return;
    }
  }
  template <unsigned... __jitload_n>
  __attribute__((flatten)) static void spread(void* const* params, jitload_cpu_place* place, uint32_t count,
                                              __jitload_numbers<__jitload_n...>) {
    loop(place, count, __jitload_read<__jitload_a>(params, __jitload_n)...);
  }
#ifdef __JITLOAD_WIDE
  template <unsigned... __jitload_n>
  __attribute__((flatten)) __JITLOAD_WIDE static void spread_wide(void* const* params, jitload_cpu_place* place, uint32_t count,
                                                                  __jitload_numbers<__jitload_n...>) {
    loop(place, count, __jitload_read<__jitload_a>(params, __jitload_n)...);
  }
#endif
  template <unsigned... __jitload_n>
  static void once(void* const* params, __jitload_numbers<__jitload_n...>) {
    __jitload_k(__jitload_read<__jitload_a>(params, __jitload_n)...);
  }
  typedef typename __jitload_count_up<sizeof...(__jitload_a)>::type numbers;

  static void blocks(void* const* params, jitload_cpu_place* place, uint32_t count) {
    if (place->at[0] + count - 1 > __JITLOAD_LAST_NARROW) {
      for (; count != 0; --count, ++place->at[0]) each(params, place);
      return;
    }
#ifdef __JITLOAD_WIDE
    if (place->is_wide) return spread_wide(params, place, count, numbers());
#endif
    spread(params, place, count, numbers());
  }
  static void each(void* const* params, const jitload_cpu_place* place) {
    uint32_t index[3];
    for (index[2] = 0; index[2] < place->block[2]; ++index[2]) {
      for (index[1] = 0; index[1] < place->block[1]; ++index[1]) {
        for (index[0] = 0; index[0] < place->block[0]; ++index[0]) thread(params, place, index);
      }
    }
  }
  static void thread(void* const* params, const jitload_cpu_place* place, const uint32_t* index) {
    __jitload_enter(place);
    __jitload_set(threadIdx, index[0], index[1], index[2]);
    once(params, numbers());
  }
};

template <class __jitload_t>
struct __jitload_function;
template <class... __jitload_a>
struct __jitload_function<void (*)(__jitload_a...)> {
  typedef void type(__jitload_a...);
};

template <class... __jitload_a>
struct __jitload_function<void(__jitload_a...)> {
  typedef void type(__jitload_a...);
};

#define __JITLOAD_ENTRY(...) __jitload_entry<__jitload_function<decltype(__VA_ARGS__)>::type, __VA_ARGS__>

/* A row of the table of kernels; `...` is the kernel as an expression: a name, or a cast that picks an overload. */
#define JITLOAD_CPU_KERNEL(...)                                                                                   \
  {&__JITLOAD_ENTRY(__VA_ARGS__)::blocks, &__JITLOAD_ENTRY(__VA_ARGS__)::thread,                                   \
   (void (*)(void))(__VA_ARGS__),                                                                                 \
   &__jitload_probe<decltype(__VA_ARGS__), __jitload_promoted<decltype(__VA_ARGS__)>::__jitload_type>,            \
   __JITLOAD_ENTRY(__VA_ARGS__)::layout::sizes, __JITLOAD_ENTRY(__VA_ARGS__)::layout::alignments}

#endif /* JITLOAD_CPU_DEVICE_H_ */
