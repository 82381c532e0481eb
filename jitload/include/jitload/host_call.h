/* Calls of host functions through the addresses of their arguments.
 *
 * jitload includes this at the end of a text whose functions it exports, after the macros of the text; hence the
 * reserved names. The compiler deduces a function's types. They are read from the mangled name of the function's probe.
 * This is C++11, because a text for nvcc may have an older dialect than the headers of tvm-ffi.
 */
#pragma once

#include <jitload/host_result.h>

#include <type_traits>
#if defined(__EXCEPTIONS) || defined(__cpp_exceptions)
#include <exception>
#endif

/* The type of a parameter's argument: a value, also if the parameter is a reference that accepts one. */
template <class __jitload_t, class __jitload_u = typename std::remove_reference<__jitload_t>::type>
using __jitload_value =
    typename std::conditional<std::is_lvalue_reference<__jitload_t>::value && !std::is_const<__jitload_u>::value,
                              __jitload_t, typename std::remove_const<__jitload_u>::type>::type;

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
template <class __jitload_t> constexpr unsigned long __jitload_size() {
  return __is_trivially_copyable(__jitload_t) && !std::is_function<typename std::remove_pointer<__jitload_t>::type>::value
             ? sizeof(typename std::conditional<std::is_reference<__jitload_t>::value, char, __jitload_t>::type)
             : 0;
}

template <class __jitload_t> constexpr unsigned long __jitload_alignment() {
  return alignof(typename std::conditional<std::is_reference<__jitload_t>::value, void*, __jitload_t>::type);
}

/* The kind of a result of type `__jitload_t`, whose integer type is `__jitload_i` if it is an enum. */
template <class __jitload_t, class __jitload_i = typename __jitload_promote<__jitload_t>::__jitload_type>
constexpr int __jitload_kind() {
  return
#ifdef __CUDA_RUNTIME_API_H__
      std::is_same<__jitload_t, cudaError_t>::value ? __JITLOAD_CUDA_ERROR :
#endif
      std::is_void<__jitload_t>::value ? __JITLOAD_VOID
      : std::is_same<__jitload_i, bool>::value ? __JITLOAD_BOOL
      : std::is_same<__jitload_t, float>::value || std::is_same<__jitload_t, double>::value ? __JITLOAD_FLOAT
      : sizeof(typename std::conditional<std::is_integral<__jitload_i>::value, __jitload_i, char[9]>::type) > 8
          ? __JITLOAD_UNSUPPORTED
      : std::is_signed<__jitload_i>::value ? __JITLOAD_INT : __JITLOAD_UINT;
}

/* Whether a type is a class that tvm-ffi converts, or a pointer to an object of tvm-ffi. */
template <class __jitload_t> constexpr bool __jitload_is_converted() {
#ifdef TVM_FFI_OBJECT_H_
  if constexpr (std::is_class_v<__jitload_t>) {
    return ::tvm::ffi::TypeTraits<__jitload_t>::convert_enabled;
  } else {
    return std::is_pointer_v<__jitload_t> && std::is_convertible_v<__jitload_t, const volatile ::tvm::ffi::Object*>;
  }
#else
  return false;
#endif
}

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

/* Call a function, and store its result. */
template <int __jitload_number, class __jitload_c>
static inline void __jitload_store(std::integral_constant<int, __jitload_number>, __jitload_result* __jitload_out,
                                   __jitload_c __jitload_run) {
  const auto __jitload_returned = __jitload_run();
  __jitload_out->integer = (long long)__jitload_returned;
  __jitload_out->number = (double)__jitload_returned;
}
template <class __jitload_c>
static inline void __jitload_store(std::integral_constant<int, __JITLOAD_VOID>, __jitload_result*,
                                   __jitload_c __jitload_run) {
  __jitload_run();
}
#ifdef __CUDA_RUNTIME_API_H__
template <class __jitload_c>
static inline void __jitload_store(std::integral_constant<int, __JITLOAD_CUDA_ERROR>, __jitload_result* __jitload_out,
                                   __jitload_c __jitload_run) {
  const cudaError_t __jitload_returned = __jitload_run();
  if (__jitload_returned != cudaSuccess) __jitload_fail_with_code(__jitload_out, __jitload_returned);
}
#endif

template <int...> struct __jitload_indices {};
template <int __jitload_n, int... __jitload_i> struct __jitload_count_to
    : __jitload_count_to<__jitload_n - 1, __jitload_n - 1, __jitload_i...> {};
template <int... __jitload_i> struct __jitload_count_to<0, __jitload_i...> : __jitload_indices<__jitload_i...> {};

/* Call a function with the values at these addresses. A function whose types cannot be passed is not called. */
template <class __jitload_number, class __jitload_r, class... __jitload_p, int... __jitload_i>
static inline void __jitload_call(std::true_type, __jitload_number, __jitload_r (*__jitload_f)(__jitload_p...),
                                  void** __jitload_args, __jitload_result* __jitload_out,
                                  __jitload_indices<__jitload_i...>) {
  (void)__jitload_args;
  __jitload_store(__jitload_number(), __jitload_out, [&]() -> __jitload_r {
    return __jitload_f(static_cast<__jitload_p&&>(*(__jitload_value<__jitload_p>*)__jitload_args[__jitload_i])...);
  });
}
template <class... __jitload_t> static inline void __jitload_call(std::false_type, __jitload_t...) {}

/* Selects the overload of a function with these types of parameters. */
template <class... __jitload_p> struct __jitload_overload {
  template <class __jitload_r>
  static constexpr auto __jitload_of(__jitload_r (*__jitload_f)(__jitload_p...)) -> __jitload_r (*)(__jitload_p...) {
    return __jitload_f;
  }
};

/* The address of a function's probe. Functions without parameters are apart, because nvcc 13 crashes on empty packs. */
template <class __jitload_name, class __jitload_kinds, class __jitload_r>
static inline const void* __jitload_probe_of(__jitload_r (*)()) {
  return (const void*)&__jitload_host_probe<__jitload_r(), __jitload_name, __jitload_kinds, __jitload_numbers<>,
                                            __jitload_numbers<>, void()>;
}
template <class __jitload_name, class __jitload_kinds, class __jitload_r, class... __jitload_p>
static inline const void* __jitload_probe_of(__jitload_r (*)(__jitload_p...)) {
  return (const void*)&__jitload_host_probe<
      __jitload_r(__jitload_value<__jitload_p>...), __jitload_name, __jitload_kinds,
      __jitload_numbers<__jitload_size<__jitload_value<__jitload_p>>()...>,
      __jitload_numbers<__jitload_alignment<__jitload_value<__jitload_p>>()...>,
      void(typename __jitload_promote<__jitload_value<__jitload_p>>::__jitload_type...)>;
}

/* Whether all numbers are 1. */
template <unsigned long... __jitload_n> constexpr bool __jitload_all() {
  return std::is_same<__jitload_numbers<1, __jitload_n...>, __jitload_numbers<__jitload_n..., 1>>::value;
}

template <class __jitload_name, class __jitload_r, class... __jitload_p>
static inline void __jitload_call_guarded(__jitload_r (*__jitload_f)(__jitload_p...), void** __jitload_args,
                                          __jitload_result* __jitload_out) {
  constexpr bool __jitload_is_plain =
      __jitload_all<!__jitload_is_converted<__jitload_r>(), !__jitload_is_converted<__jitload_value<__jitload_p>>()...>();
  constexpr int __jitload_number = __jitload_is_plain ? __jitload_kind<__jitload_r>() : (int)__JITLOAD_CONVERTED;
  constexpr bool __jitload_fits = __jitload_is_plain && __jitload_number != __JITLOAD_UNSUPPORTED &&
                                  __jitload_all<(__jitload_size<__jitload_value<__jitload_p>>() != 0)...>();
  __jitload_out->kind = __jitload_number;
  __jitload_out->probe = __jitload_probe_of<__jitload_name, __jitload_numbers<__jitload_number>>(__jitload_f);
  __jitload_call(std::integral_constant<bool, __jitload_fits>(), std::integral_constant<int, __jitload_number>(),
                 __jitload_f, __jitload_args, __jitload_out, __jitload_count_to<(int)sizeof...(__jitload_p)>());
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
