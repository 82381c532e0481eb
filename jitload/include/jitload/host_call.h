/* Calls of host functions through the addresses of their arguments.
 *
 * jitload includes this at the end of a text whose functions it exports, after the macros of the text; hence the
 * reserved names. The compiler deduces a function's types. They are read from the mangled name of the function's probe.
 */
#ifndef JITLOAD_HOST_CALL_H_
#define JITLOAD_HOST_CALL_H_

#include <jitload/host_result.h>

#if defined(__EXCEPTIONS) || defined(__cpp_exceptions)
#include <exception>
#endif

template <class __jitload_t> struct __jitload_value { typedef __jitload_t __jitload_type; };
template <class __jitload_t> struct __jitload_value<const __jitload_t> { typedef __jitload_t __jitload_type; };
template <class __jitload_t> struct __jitload_value<const __jitload_t&> { typedef __jitload_t __jitload_type; };
template <class __jitload_t> struct __jitload_value<__jitload_t&&> { typedef __jitload_t __jitload_type; };

/* Replaces an enum by its integer type, also behind a pointer. */
template <class __jitload_t, bool = __is_enum(__jitload_t)> struct __jitload_promote {
  typedef __jitload_t __jitload_type;
};
template <class __jitload_t> struct __jitload_promote<__jitload_t, true> {
  typedef __underlying_type(__jitload_t) __jitload_type;
};
template <class __jitload_t> struct __jitload_promote<__jitload_t*, false> {
  typedef typename __jitload_promote<__jitload_t>::__jitload_type* __jitload_type;
};

/* The size of a parameter, or 0 if its type cannot be passed: a reference, a function, or an object with a copy
 * constructor. */
template <class __jitload_t> struct __jitload_size {
  static constexpr unsigned long __jitload_bytes = __is_trivially_copyable(__jitload_t) ? sizeof(__jitload_t) : 0;
};
template <class __jitload_t> struct __jitload_size<__jitload_t&> { static constexpr unsigned long __jitload_bytes = 0; };
template <class __jitload_r, class... __jitload_p> struct __jitload_size<__jitload_r (*)(__jitload_p...)> {
  static constexpr unsigned long __jitload_bytes = 0;
};

template <class __jitload_t> struct __jitload_alignment { static constexpr unsigned long __jitload_bytes = alignof(__jitload_t); };
template <class __jitload_t> struct __jitload_alignment<__jitload_t&> { static constexpr unsigned long __jitload_bytes = 8; };

/* The kind of a result of type `__jitload_t`. */
template <class __jitload_t, bool = __is_enum(__jitload_t)> struct __jitload_kind {
  static constexpr int __jitload_number = __JITLOAD_UNSUPPORTED;
};
template <class __jitload_t> struct __jitload_kind<__jitload_t, true>
    : __jitload_kind<__underlying_type(__jitload_t), false> {};
#define __JITLOAD_KIND(type, kind)                            \
  template <> struct __jitload_kind<type, false> {            \
    static constexpr int __jitload_number = __JITLOAD_##kind; \
  };
__JITLOAD_KIND(void, VOID)
__JITLOAD_KIND(bool, BOOL)
__JITLOAD_KIND(char, INT)
__JITLOAD_KIND(signed char, INT)
__JITLOAD_KIND(short, INT)
__JITLOAD_KIND(int, INT)
__JITLOAD_KIND(long, INT)
__JITLOAD_KIND(long long, INT)
__JITLOAD_KIND(unsigned char, UINT)
__JITLOAD_KIND(unsigned short, UINT)
__JITLOAD_KIND(unsigned int, UINT)
__JITLOAD_KIND(unsigned long, UINT)
__JITLOAD_KIND(unsigned long long, UINT)
__JITLOAD_KIND(float, FLOAT)
__JITLOAD_KIND(double, FLOAT)
#undef __JITLOAD_KIND
#ifdef __CUDA_RUNTIME_API_H__
template <> struct __jitload_kind<cudaError_t, true> {
  static constexpr int __jitload_number = __JITLOAD_CUDA_ERROR;
};
#endif

/* Whether a type is a class that tvm-ffi converts, or a pointer to an object of tvm-ffi. */
template <class __jitload_t, bool = __is_class(__jitload_t)> struct __jitload_converted {
  static constexpr bool __jitload_holds = false;
};
#ifdef TVM_FFI_OBJECT_H_
template <class __jitload_t> struct __jitload_converted<__jitload_t, true> {
  static constexpr bool __jitload_holds = ::tvm::ffi::TypeTraits<__jitload_t>::convert_enabled;
};
char __jitload_is_object(const volatile ::tvm::ffi::Object*);
long __jitload_is_object(...);
template <class __jitload_t> struct __jitload_converted<__jitload_t*, false> {
  static constexpr bool __jitload_holds = sizeof(__jitload_is_object((__jitload_t*)0)) == 1;
};
#endif

template <int... __jitload_i> struct __jitload_indices {};
template <int __jitload_n, int... __jitload_i> struct __jitload_count_to
    : __jitload_count_to<__jitload_n - 1, __jitload_n - 1, __jitload_i...> {};
template <int... __jitload_i> struct __jitload_count_to<0, __jitload_i...> {
  typedef __jitload_indices<__jitload_i...> __jitload_type;
};

template <unsigned long...> struct __jitload_numbers {};
/* A function's probe. Only its mangled name counts, which contains the function's type, its exported name, the kind of
 * the result, the sizes and alignments of the parameters, and the function's type with enums replaced. */
template <class __jitload_f, class __jitload_name, class __jitload_kinds, class __jitload_sizes,
          class __jitload_alignments, class __jitload_g>
__attribute__((noinline)) void __jitload_host_probe() {}

static inline void __jitload_copy_text(char* __jitload_to, int __jitload_room, const char* __jitload_from) {
  while (__jitload_from != 0 && *__jitload_from != 0 && __jitload_room-- > 1) *__jitload_to++ = *__jitload_from++;
  *__jitload_to = 0;
}

static inline void __jitload_fail_with(__jitload_result* __jitload_out, const char* __jitload_text) {
  __jitload_out->failed = 1;
  __jitload_copy_text(__jitload_out->message, sizeof __jitload_out->message, __jitload_text);
}

#ifdef __CUDA_RUNTIME_API_H__
static inline void __jitload_fail_with_code(__jitload_result* __jitload_out, cudaError_t __jitload_code) {
  __jitload_copy_text(__jitload_out->error, sizeof __jitload_out->error, cudaGetErrorName(__jitload_code));
  __jitload_fail_with(__jitload_out,
                      __jitload_code == cudaErrorNoKernelImageForDevice
                          ? "this library has " __JITLOAD_ARCHS ", and no code for this GPU: build it with arch=\"native\""
                          : cudaGetErrorString(__jitload_code));
}
#endif

template <int __jitload_number, class __jitload_r> struct __jitload_keep {
  template <class __jitload_c> static void __jitload_store(__jitload_result* __jitload_out, __jitload_c __jitload_call) {
    const __jitload_r __jitload_returned = __jitload_call();
    __jitload_out->integer = (long long)__jitload_returned;
    __jitload_out->number = (double)__jitload_returned;
  }
};
template <class __jitload_r> struct __jitload_keep<__JITLOAD_VOID, __jitload_r> {
  template <class __jitload_c> static void __jitload_store(__jitload_result*, __jitload_c __jitload_call) {
    __jitload_call();
  }
};
#ifdef __CUDA_RUNTIME_API_H__
template <class __jitload_r> struct __jitload_keep<__JITLOAD_CUDA_ERROR, __jitload_r> {
  template <class __jitload_c> static void __jitload_store(__jitload_result* __jitload_out, __jitload_c __jitload_call) {
    const cudaError_t __jitload_returned = __jitload_call();
    if (__jitload_returned == cudaSuccess) return;
    __jitload_fail_with_code(__jitload_out, __jitload_returned);
  }
};
#endif

/* Calls a function if all of its types can be passed. */
template <bool, int __jitload_number, class __jitload_r, class... __jitload_p> struct __jitload_caller {
  template <int... __jitload_i>
  static void __jitload_call(__jitload_r (*__jitload_f)(__jitload_p...), void** __jitload_args,
                             __jitload_result* __jitload_out, __jitload_indices<__jitload_i...>) {
    (void)__jitload_args;
    __jitload_keep<__jitload_number, __jitload_r>::__jitload_store(__jitload_out, [&]() -> __jitload_r {
      return __jitload_f(static_cast<__jitload_p&&>(
          *(typename __jitload_value<__jitload_p>::__jitload_type*)__jitload_args[__jitload_i])...);
    });
  }
};
template <int __jitload_number, class __jitload_r, class... __jitload_p>
struct __jitload_caller<false, __jitload_number, __jitload_r, __jitload_p...> {
  template <class __jitload_f, class __jitload_i>
  static void __jitload_call(__jitload_f, void**, __jitload_result*, __jitload_i) {}
};

template <bool... __jitload_b> struct __jitload_all { static constexpr bool __jitload_holds = true; };
template <bool __jitload_first, bool... __jitload_b> struct __jitload_all<__jitload_first, __jitload_b...> {
  static constexpr bool __jitload_holds = __jitload_first && __jitload_all<__jitload_b...>::__jitload_holds;
};

/* Selects the overload of a function with these types of parameters. */
template <class... __jitload_p> struct __jitload_overload {
  template <class __jitload_r>
  static constexpr auto __jitload_of(__jitload_r (*__jitload_f)(__jitload_p...)) -> __jitload_r (*)(__jitload_p...) {
    return __jitload_f;
  }
};

template <class __jitload_name, class __jitload_r, class... __jitload_p>
static inline void __jitload_call_guarded(__jitload_r (*__jitload_f)(__jitload_p...), void** __jitload_args,
                                          __jitload_result* __jitload_out) {
  constexpr bool __jitload_is_plain = __jitload_all<
      !__jitload_converted<__jitload_r>::__jitload_holds,
      (!__jitload_converted<typename __jitload_value<__jitload_p>::__jitload_type>::__jitload_holds)...>::__jitload_holds;
  constexpr int __jitload_number =
      __jitload_is_plain ? __jitload_kind<__jitload_r>::__jitload_number : __JITLOAD_CONVERTED;
  constexpr bool __jitload_fits = __jitload_is_plain && __jitload_number != __JITLOAD_UNSUPPORTED &&
      __jitload_all<(__jitload_size<typename __jitload_value<__jitload_p>::__jitload_type>::__jitload_bytes != 0)...>
          ::__jitload_holds;
  __jitload_out->kind = __jitload_number;
  __jitload_out->probe = (const void*)&__jitload_host_probe<
      __jitload_r(typename __jitload_value<__jitload_p>::__jitload_type...), __jitload_name,
      __jitload_numbers<(unsigned long)__jitload_number>,
      __jitload_numbers<__jitload_size<typename __jitload_value<__jitload_p>::__jitload_type>::__jitload_bytes...>,
      __jitload_numbers<__jitload_alignment<typename __jitload_value<__jitload_p>::__jitload_type>::__jitload_bytes...>,
      void(typename __jitload_promote<typename __jitload_value<__jitload_p>::__jitload_type>::__jitload_type...)>;
  typedef typename __jitload_count_to<(int)sizeof...(__jitload_p)>::__jitload_type __jitload_all_indices;
  __jitload_caller<__jitload_fits, __jitload_number, __jitload_r, __jitload_p...>::__jitload_call(
      __jitload_f, __jitload_args, __jitload_out, __jitload_all_indices());
}

/* The version for functions without parameters, because nvcc 13 crashes on the empty lists of types above. */
template <class __jitload_name, class __jitload_r>
static inline void __jitload_call_guarded(__jitload_r (*__jitload_f)(), void**, __jitload_result* __jitload_out) {
  constexpr bool __jitload_is_plain = !__jitload_converted<__jitload_r>::__jitload_holds;
  constexpr int __jitload_number =
      __jitload_is_plain ? __jitload_kind<__jitload_r>::__jitload_number : __JITLOAD_CONVERTED;
  __jitload_out->kind = __jitload_number;
  __jitload_out->probe =
      (const void*)&__jitload_host_probe<__jitload_r(), __jitload_name, __jitload_numbers<(unsigned long)__jitload_number>,
                                         __jitload_numbers<>, __jitload_numbers<>, void()>;
  constexpr bool __jitload_fits = __jitload_is_plain && __jitload_number != __JITLOAD_UNSUPPORTED;
  __jitload_caller<__jitload_fits, __jitload_number, __jitload_r>::__jitload_call(
      __jitload_f, (void**)0, __jitload_out, __jitload_indices<>());
}

#ifdef __CUDACC__
/* Whether the error only says that CUDA cannot be used here. Functions that do not use CUDA need not report this. */
static inline bool __jitload_is_absent(cudaError_t __jitload_code) {
  return __jitload_code == cudaErrorInsufficientDriver || __jitload_code == cudaErrorNoDevice ||
         __jitload_code == cudaErrorInitializationError || __jitload_code == cudaErrorStubLibrary;
}
#endif

/* Call a function, and report what it throws and the error of a launch that failed in it, without waiting for the
 * device. An error that earlier calls left is removed: it is not the function's own. */
template <class __jitload_name, class __jitload_function>
static inline int __jitload_invoke(__jitload_function __jitload_f, void** __jitload_args,
                                   __jitload_result* __jitload_out) {
#ifdef __CUDACC__
  const cudaError_t __jitload_before = cudaGetLastError();
#endif
#if defined(__EXCEPTIONS) || defined(__cpp_exceptions)
  try {
    __jitload_call_guarded<__jitload_name>(__jitload_f, __jitload_args, __jitload_out);
#ifdef TVM_FFI_ERROR_H_
  } catch (const ::tvm::ffi::Error& __jitload_error) {
    __jitload_copy_text(__jitload_out->error, sizeof __jitload_out->error,
                        ::std::string(__jitload_error.kind()).c_str());
    __jitload_fail_with(__jitload_out, ::std::string(__jitload_error.message()).c_str());
#endif
  } catch (const ::std::exception& __jitload_error) {
    __jitload_fail_with(__jitload_out, __jitload_error.what());
  } catch (...) {
    __jitload_fail_with(__jitload_out, "it threw an object that is not a std::exception");
  }
#else
  __jitload_call_guarded<__jitload_name>(__jitload_f, __jitload_args, __jitload_out);
#endif
#ifdef __CUDACC__
  const cudaError_t __jitload_after = cudaGetLastError();
  if (__jitload_after != cudaSuccess && !(__jitload_after == __jitload_before && __jitload_is_absent(__jitload_after))) {
    if (!__jitload_out->failed) __jitload_fail_with_code(__jitload_out, __jitload_after);
  }
#endif
  return __jitload_out->failed;
}

/* Export a function: `name` is its name in Python, followed by an expression for it. */
#define __JITLOAD_HOST_FUNCTION(name, ...)                                                   \
  struct __jitload_name_##name;                                                              \
  extern "C" __attribute__((visibility("hidden"))) int __jitload_call_##name(                \
      void** __jitload_args, __jitload_result* __jitload_out) {                              \
    return __jitload_invoke<__jitload_name_##name>(__VA_ARGS__, __jitload_args, __jitload_out); \
  }

#endif /* JITLOAD_HOST_CALL_H_ */
