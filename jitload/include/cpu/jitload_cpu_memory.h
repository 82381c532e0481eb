/* Atomics, fences, and loads and stores with cache hints. */
#pragma once

/* A loop around an atomic operation that changes nothing, such as atomicAdd(p, 0), waits for another thread. Without
 * optimization, g++ takes no argument of a function for a constant. */
#ifdef __OPTIMIZE__
#define __JITLOAD_YIELD_IF(condition) \
  if (__builtin_constant_p(condition) && (condition)) __jitload_yield();
#else
#define __JITLOAD_YIELD_IF(condition) \
  if (condition) __jitload_yield();
#endif

/* Return whether an address is in shared memory, where atomics may be plain accesses: no other thread of the operating
 * system accesses it. With preemption another thread of the block may interrupt a plain access, and sanitize="race" has
 * to see atomics, so the answer is no. */
#if defined(JITLOAD_CPU_PREEMPT) || defined(__SANITIZE_THREAD__)
__JITLOAD_INLINE bool __jitload_is_shared(const void*) { return false; }
#else
__JITLOAD_INLINE bool __jitload_is_shared(const void* address) {
  return (uintptr_t)address - jitload_cpu_thread_memory[0] < jitload_cpu_thread_memory[1];
}
#endif
#define __JITLOAD_IF_SHARED(type, p, ...) \
  if (__jitload_is_shared(p)) {           \
    const type old = *p;                  \
    *p = (type)(__VA_ARGS__);             \
    return old;                           \
  }

/* Replace a value with a function of it; return the old value. */
template <class __jitload_t, class __jitload_f>
__JITLOAD_INLINE __jitload_t __jitload_update(__jitload_t* address, __jitload_f next) {
  static_assert(__atomic_always_lock_free(sizeof(__jitload_t), 0), "an atomic operation takes 1, 2, 4 or 8 bytes");
  __JITLOAD_IF_SHARED(__jitload_t, address, next(old))
  __jitload_t old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  while (true) {
    __jitload_t desired = next(old);
    if (__atomic_compare_exchange(address, &old, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

/* Define an atomic function of a pointer and a value, and its versions for the scopes of a block and of the system.
 * A function of the source for GPUs that lack the atomic operation takes precedence. */
#define __JITLOAD_ATOMIC(type, name, ...)                                              \
  __JITLOAD_REPLACEABLE                                                                \
  __JITLOAD_INLINE type name(type* p, type v) { __VA_ARGS__ }                          \
  __JITLOAD_INLINE type name##_block(type* p, type v) { return name(p, v); }           \
  __JITLOAD_INLINE type name##_system(type* p, type v) { return name(p, v); }

/* The functions that are built into the compiler. With `neutral`, they change nothing. */
#define __JITLOAD_ATOMIC_FETCH(type, name, fetch, op, neutral, order)                  \
  __JITLOAD_ATOMIC(type, name, __JITLOAD_YIELD_IF(v == (type)(neutral))                \
                   __JITLOAD_IF_SHARED(type, p, old op v)                              \
                   return __atomic_fetch_##fetch(p, v, order);)
/* A thread whose exchange fails or changes nothing waits for another thread, and will try again. */
#define __JITLOAD_ATOMIC_CAS(type)                                                                                     \
  __JITLOAD_INLINE type atomicCAS(type* p, type compare, type v) {                                                     \
    type old = compare;                                                                                                \
    if (__jitload_is_shared(p)) {                                                                                      \
      old = *p;                                                                                                        \
      if (old == compare) *p = v;                                                                                      \
    } else {                                                                                                           \
      __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                              \
    }                                                                                                                  \
    if (old != compare || old == v) __jitload_yield();                                                                 \
    return old;                                                                                                        \
  }                                                                                                                    \
  __JITLOAD_INLINE type atomicCAS_block(type* p, type compare, type v) { return atomicCAS(p, compare, v); }            \
  __JITLOAD_INLINE type atomicCAS_system(type* p, type compare, type v) { return atomicCAS(p, compare, v); }
#define __JITLOAD_ATOMIC_INT(type)                                                                      \
  __JITLOAD_ATOMIC_FETCH(type, atomicAdd, add, +, 0, __ATOMIC_SEQ_CST)                                  \
  __JITLOAD_ATOMIC_FETCH(type, atomicAnd, and, &, -1, __ATOMIC_RELAXED)                                 \
  __JITLOAD_ATOMIC_FETCH(type, atomicOr, or, |, 0, __ATOMIC_SEQ_CST)                                    \
  __JITLOAD_ATOMIC_FETCH(type, atomicXor, xor, ^, 0, __ATOMIC_RELAXED)                                  \
  __JITLOAD_ATOMIC(type, atomicMin, return __jitload_update(p, [=](type a) { return a < v ? a : v; });) \
  __JITLOAD_ATOMIC(type, atomicMax, return __jitload_update(p, [=](type a) { return a > v ? a : v; });) \
  __JITLOAD_ATOMIC(type, atomicExch, type old;                                                          \
                   if (__jitload_is_shared(p)) old = *p, *p = v;                                        \
                   else old = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                              \
                   if (old == v) __jitload_yield(); /* *p may be a lock that another thread holds */    \
                   return old;)                                                                         \
  __JITLOAD_ATOMIC_CAS(type)
__JITLOAD_ATOMIC_INT(int)
__JITLOAD_ATOMIC_INT(unsigned)
__JITLOAD_ATOMIC_INT(long long)
__JITLOAD_ATOMIC_INT(unsigned long long)
__JITLOAD_ATOMIC_CAS(unsigned short)
#undef __JITLOAD_ATOMIC_INT
#undef __JITLOAD_ATOMIC_CAS
#undef __JITLOAD_ATOMIC_FETCH

#define __JITLOAD_ATOMIC_FLOAT(type)                                                                \
  __JITLOAD_ATOMIC(type, atomicAdd, __JITLOAD_YIELD_IF(v == 0)                                      \
                   return __jitload_update(p, [=](type a) { return a + v; });)                      \
  __JITLOAD_ATOMIC(type, atomicExch, const type old = __jitload_update(p, [=](type) { return v; }); \
                   if (old == v) __jitload_yield();                                                 \
                   return old;)
__JITLOAD_ATOMIC_FLOAT(float)
__JITLOAD_ATOMIC_FLOAT(double)
#undef __JITLOAD_ATOMIC_FLOAT
__JITLOAD_ATOMIC(float2, atomicAdd, return float2{atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y)};)
__JITLOAD_ATOMIC(float4, atomicAdd, return float4{atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y), atomicAdd(&p->z, v.z),
                                                  atomicAdd(&p->w, v.w)};)
__JITLOAD_ATOMIC(int, atomicSub, return atomicAdd(p, (int)-(unsigned)v);)
__JITLOAD_ATOMIC(unsigned, atomicSub, return atomicAdd(p, -v);)
__JITLOAD_ATOMIC(unsigned, atomicInc,
                 return __jitload_update(p, [=](unsigned a) { return a >= v ? 0u : a + 1; });)
__JITLOAD_ATOMIC(unsigned, atomicDec,
                 return __jitload_update(p, [=](unsigned a) { return a == 0 || a > v ? v : a - 1; });)

__JITLOAD_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
__JITLOAD_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
__JITLOAD_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define __JITLOAD_LOAD(name)   \
  template <class __jitload_t> \
  __JITLOAD_INLINE __jitload_t name(const __jitload_t* p) { return *p; }
__JITLOAD_LOAD(__ldg)
__JITLOAD_LOAD(__ldca)
__JITLOAD_LOAD(__ldcg)
__JITLOAD_LOAD(__ldcs)
__JITLOAD_LOAD(__ldlu)
#undef __JITLOAD_LOAD
/* A load that is never cached: a loop around it waits for another thread. */
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __ldcv(const __jitload_t* p) {
  __jitload_yield();
  __asm__ volatile("" : : : "memory");
  return *p;
}
template <class __jitload_t>
struct __jitload_same {
  typedef __jitload_t type;
};
#define __JITLOAD_STORE(name)  \
  template <class __jitload_t> \
  __JITLOAD_INLINE void name(__jitload_t* p, typename __jitload_same<__jitload_t>::type v) { *p = v; }
__JITLOAD_STORE(__stwb)
__JITLOAD_STORE(__stcg)
__JITLOAD_STORE(__stcs)
__JITLOAD_STORE(__stwt)
#undef __JITLOAD_STORE

/* ---- __nv_atomic_…(): every order is as strong as the strongest ---------------------------------------------------- */

#define __NV_ATOMIC_RELAXED __ATOMIC_RELAXED
#define __NV_ATOMIC_CONSUME __ATOMIC_CONSUME
#define __NV_ATOMIC_ACQUIRE __ATOMIC_ACQUIRE
#define __NV_ATOMIC_RELEASE __ATOMIC_RELEASE
#define __NV_ATOMIC_ACQ_REL __ATOMIC_ACQ_REL
#define __NV_ATOMIC_SEQ_CST __ATOMIC_SEQ_CST
enum {
  __NV_THREAD_SCOPE_THREAD,
  __NV_THREAD_SCOPE_BLOCK,
  __NV_THREAD_SCOPE_CLUSTER,
  __NV_THREAD_SCOPE_DEVICE,
  __NV_THREAD_SCOPE_SYSTEM
};

/* A loop around a load, or around an exchange that fails, waits for another thread. The last parameters, which have no
 * names here, are orders and the scope. */
#define __JITLOAD_NV_ATOMIC(name, result, parameters, ...) \
  template <class __jitload_t>                             \
  __JITLOAD_INLINE result __nv_atomic_##name parameters { __VA_ARGS__; }
#define __JITLOAD_VALUE typename __jitload_same<__jitload_t>::type
__JITLOAD_NV_ATOMIC(load, void, (const __jitload_t* p, __jitload_t* result, int, int = 0), __jitload_yield();
                    __atomic_load(p, result, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(load_n, __jitload_t, (const __jitload_t* p, int, int = 0), __jitload_yield();
                    return __atomic_load_n(p, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(store, void, (__jitload_t* p, __jitload_t* value, int, int = 0),
                    __atomic_store(p, value, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(store_n, void, (__jitload_t* p, __JITLOAD_VALUE value, int, int = 0),
                    __atomic_store_n(p, value, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(exchange, void, (__jitload_t* p, __jitload_t* value, __jitload_t* result, int, int = 0),
                    __jitload_yield();
                    __atomic_exchange(p, value, result, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(exchange_n, __jitload_t, (__jitload_t* p, __JITLOAD_VALUE value, int, int = 0), __jitload_yield();
                    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST))
__JITLOAD_NV_ATOMIC(compare_exchange, bool,
                    (__jitload_t* p, __jitload_t* expected, __jitload_t* desired, bool, int, int, int = 0),
                    const bool is_equal = __atomic_compare_exchange(p, expected, desired, false, __ATOMIC_SEQ_CST,
                                                                    __ATOMIC_SEQ_CST);
                    if (!is_equal) __jitload_yield(); return is_equal)
__JITLOAD_NV_ATOMIC(compare_exchange_n, bool,
                    (__jitload_t* p, __jitload_t* expected, __JITLOAD_VALUE desired, bool, int, int, int = 0),
                    return __nv_atomic_compare_exchange(p, expected, &desired, false, 0, 0))
#undef __JITLOAD_VALUE
#undef __JITLOAD_NV_ATOMIC
__JITLOAD_INLINE void __nv_atomic_thread_fence(int, int = 0) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define __JITLOAD_NV_ATOMIC(name, expression)                                                                       \
  template <class __jitload_t>                                                                                      \
  __JITLOAD_INLINE __jitload_t __nv_atomic_fetch_##name(                                                            \
      __jitload_t* p, typename __jitload_same<__jitload_t>::type b, int, int = 0) {                                 \
    __JITLOAD_YIELD_IF(b == 0)                                                                                      \
    return __jitload_update(p, [=](__jitload_t a) -> __jitload_t { return expression; });                           \
  }                                                                                                                 \
  template <class __jitload_t>                                                                                      \
  __JITLOAD_INLINE void __nv_atomic_##name(__jitload_t* p, typename __jitload_same<__jitload_t>::type b, int order, \
                                           int = 0) {                                                               \
    __nv_atomic_fetch_##name(p, b, order);                                                                          \
  }
__JITLOAD_NV_ATOMIC(add, a + b)
__JITLOAD_NV_ATOMIC(sub, a - b)
__JITLOAD_NV_ATOMIC(and, a & b)
__JITLOAD_NV_ATOMIC(or, a | b)
__JITLOAD_NV_ATOMIC(xor, a ^ b)
__JITLOAD_NV_ATOMIC(min, a < b ? a : b)
__JITLOAD_NV_ATOMIC(max, a > b ? a : b)
#undef __JITLOAD_NV_ATOMIC
