/* Copies by a thread, which are complete at once. */
#pragma once

__JITLOAD_INLINE void __pipeline_memcpy_async(void* destination, const void* source, size_t size, size_t zeros = 0) {
  if ((size != 4 && size != 8 && size != 16) || zeros > size) {
    __jitload_stop("__pipeline_memcpy_async() of %zu bytes, %zu of them zeros,", size, zeros);
  }
  if (((uintptr_t)destination | (uintptr_t)source) & (size - 1)) {
    __jitload_stop("__pipeline_memcpy_async() of %zu bytes with an address that is not a multiple of that", size);
  }
  __builtin_memcpy(destination, source, size - zeros);
  __builtin_memset((char*)destination + (size - zeros), 0, zeros);
}
__JITLOAD_INLINE void __pipeline_commit() {}
__JITLOAD_INLINE void __pipeline_wait_prior(size_t) {}
