/* The functions that code compiled with g++'s -fsanitize=thread calls for each access to memory.
 *
 * The file that includes this one defines JITLOAD_HOOK, with which each definition begins, and what is done for each
 * access before it: JITLOAD_ACCESS, JITLOAD_VOLATILE_ACCESS and JITLOAD_ATOMIC_ACCESS. They get an address, a size, and
 * whether it is a write.
 */
#pragma once

#define JITLOAD_ACCESSES_(size)                                                                                \
  JITLOAD_HOOK void __tsan_read##size(void* p) { JITLOAD_ACCESS(p, size, false); }                             \
  JITLOAD_HOOK void __tsan_write##size(void* p) { JITLOAD_ACCESS(p, size, true); }                             \
  JITLOAD_HOOK void __tsan_unaligned_read##size(void* p) { JITLOAD_ACCESS(p, size, false); }                   \
  JITLOAD_HOOK void __tsan_unaligned_write##size(void* p) { JITLOAD_ACCESS(p, size, true); }                   \
  JITLOAD_HOOK void __tsan_volatile_read##size(void* p) { JITLOAD_VOLATILE_ACCESS(p, size, false); }           \
  JITLOAD_HOOK void __tsan_volatile_write##size(void* p) { JITLOAD_VOLATILE_ACCESS(p, size, true); }           \
  JITLOAD_HOOK void __tsan_unaligned_volatile_read##size(void* p) { JITLOAD_VOLATILE_ACCESS(p, size, false); } \
  JITLOAD_HOOK void __tsan_unaligned_volatile_write##size(void* p) { JITLOAD_VOLATILE_ACCESS(p, size, true); }
JITLOAD_ACCESSES_(1)
JITLOAD_ACCESSES_(2)
JITLOAD_ACCESSES_(4)
JITLOAD_ACCESSES_(8)
JITLOAD_ACCESSES_(16)
JITLOAD_HOOK void __tsan_read_range(void* p, size_t size) { JITLOAD_ACCESS(p, size, false); }
JITLOAD_HOOK void __tsan_write_range(void* p, size_t size) { JITLOAD_ACCESS(p, size, true); }
JITLOAD_HOOK void __tsan_vptr_update(void** p, void*) { JITLOAD_ACCESS(p, 8, true); }
JITLOAD_HOOK void __tsan_vptr_read(void** p) { JITLOAD_ACCESS(p, 8, false); }
JITLOAD_HOOK void __tsan_func_entry(void*) {}
JITLOAD_HOOK void __tsan_func_exit() {}
JITLOAD_HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
JITLOAD_HOOK void __tsan_atomic_signal_fence(int) {}

#define JITLOAD_FETCH_(bits, type, name)                                       \
  JITLOAD_HOOK type __tsan_atomic##bits##_fetch_##name(type* p, type v, int) { \
    JITLOAD_ATOMIC_ACCESS(p, sizeof(type), true);                              \
    return __atomic_fetch_##name(p, v, __ATOMIC_SEQ_CST);                      \
  }
#define JITLOAD_EXCHANGE_(bits, type, strength)                                                                   \
  JITLOAD_HOOK int __tsan_atomic##bits##_compare_exchange_##strength(type* p, type* expected, type v, int, int) { \
    JITLOAD_ATOMIC_ACCESS(p, sizeof(type), true);                                                                 \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                \
  }
#define JITLOAD_ATOMICS_(bits, type)                                       \
  JITLOAD_HOOK type __tsan_atomic##bits##_load(const type* p, int) {       \
    JITLOAD_ATOMIC_ACCESS(p, sizeof(type), false);                         \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                           \
  }                                                                        \
  JITLOAD_HOOK void __tsan_atomic##bits##_store(type* p, type v, int) {    \
    JITLOAD_ATOMIC_ACCESS(p, sizeof(type), true);                          \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                              \
  }                                                                        \
  JITLOAD_HOOK type __tsan_atomic##bits##_exchange(type* p, type v, int) { \
    JITLOAD_ATOMIC_ACCESS(p, sizeof(type), true);                          \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                    \
  }                                                                        \
  JITLOAD_FETCH_(bits, type, add)                                          \
  JITLOAD_FETCH_(bits, type, sub)                                          \
  JITLOAD_FETCH_(bits, type, and)                                          \
  JITLOAD_FETCH_(bits, type, or)                                           \
  JITLOAD_FETCH_(bits, type, xor)                                          \
  JITLOAD_FETCH_(bits, type, nand)                                         \
  JITLOAD_EXCHANGE_(bits, type, strong)                                    \
  JITLOAD_EXCHANGE_(bits, type, weak)
JITLOAD_ATOMICS_(8, uint8_t)
JITLOAD_ATOMICS_(16, uint16_t)
JITLOAD_ATOMICS_(32, uint32_t)
JITLOAD_ATOMICS_(64, uint64_t)
