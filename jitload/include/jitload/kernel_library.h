/* Helpers for the functions of kernel libraries: argument checks, dispatch on dtype, streams and memory.
 *
 * The names are those of tvm-ffi's kernel library guide. The CUDA toolkit is not needed.
 */
#pragma once

#include <jitload/cuda_types.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <string>

namespace ffi = tvm::ffi;
using ffi::Optional;
using ffi::Tensor;
using ffi::TensorView;

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* A loop, because a following `else` of the user's could attach to an `if`. */
#define JITLOAD_REQUIRE(condition) \
  while (!(condition)) TVM_FFI_THROW(ValueError)

#define CHECK_CUDA(x)                              \
  JITLOAD_REQUIRE(::jitload::IsCuda((x).device())) \
      << #x " must be a CUDA tensor, got one on " << ::jitload::Name((x).device())
#define CHECK_CONTIGUOUS(x) JITLOAD_REQUIRE((x).IsContiguous()) << #x " must be contiguous"
#define CHECK_INPUT(x)   \
  do {                   \
    CHECK_CUDA(x);       \
    CHECK_CONTIGUOUS(x); \
  } while (0)
#define CHECK_DIM(d, x) \
  JITLOAD_REQUIRE((x).ndim() == (d)) << #x " must be a " #d "D tensor, got one of " << (x).ndim() << " dimensions"
#define CHECK_DEVICE(a, b)                                                                             \
  JITLOAD_REQUIRE((a).device().device_type == (b).device().device_type &&                              \
                  (a).device().device_id == (b).device().device_id)                                    \
      << #a " and " #b " must be on the same device, got " << ::jitload::Name((a).device()) << " and " \
      << ::jitload::Name((b).device())

#define CHECK_DTYPE(dtype_, x)                                               \
  while (!::jitload::IsSame((x).dtype(), (dtype_)))                          \
  TVM_FFI_THROW(TypeError) << #x " must be " << ::jitload::Name(dtype_) << ", got " << ::jitload::Name((x).dtype())

/* ---- dtypes ---------------------------------------------------------------------------------------------------- */

/* X(C++ type, name, DLPack's code, bits) */
#define JITLOAD_DTYPES_(X)                              \
  X(bool, bool, kDLBool, 8)                             \
  X(int8_t, int8, kDLInt, 8)                            \
  X(int16_t, int16, kDLInt, 16)                         \
  X(int32_t, int32, kDLInt, 32)                         \
  X(int64_t, int64, kDLInt, 64)                         \
  X(uint8_t, uint8, kDLUInt, 8)                         \
  X(uint16_t, uint16, kDLUInt, 16)                      \
  X(uint32_t, uint32, kDLUInt, 32)                      \
  X(uint64_t, uint64, kDLUInt, 64)                      \
  X(__half, float16, kDLFloat, 16)                      \
  X(float, float32, kDLFloat, 32)                       \
  X(double, float64, kDLFloat, 64)                      \
  X(__nv_bfloat16, bfloat16, kDLBfloat, 16)             \
  X(__nv_fp8_e4m3, float8_e4m3fn, kDLFloat8_e4m3fn, 8)  \
  X(__nv_fp8_e5m2, float8_e5m2, kDLFloat8_e5m2, 8)

#define JITLOAD_CONSTANT_(Type, name, code, bits) constexpr DLDataType dl_##name = DLDataType{code, bits, 1};
JITLOAD_DTYPES_(JITLOAD_CONSTANT_)
#undef JITLOAD_CONSTANT_

/* These types are only declared here; CUDA's headers define them. */
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;

namespace jitload {
inline namespace v1 {

template <class T>
struct Dtype;
#define JITLOAD_DTYPE_(Type, text, code, bits)        \
  template <>                                         \
  struct Dtype<Type> {                                \
    using type = Type;                                \
    static constexpr const char* name = #text;        \
    static constexpr DLDataType value = ::dl_##text;  \
  };
JITLOAD_DTYPES_(JITLOAD_DTYPE_)
#undef JITLOAD_DTYPE_

/* Return the name of the element type `T` after a prefix: KernelName<__half>("scale_") is "scale_float16". */
template <class T>
std::string KernelName(const char* prefix) {
  return std::string(prefix) + Dtype<T>::name;
}

inline bool IsSame(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

/* The dtype's name in frameworks. Never throws, because error messages use it, and tvm-ffi cannot name all dtypes. */
inline std::string Name(DLDataType dtype) {
  const std::string bits = std::to_string(dtype.bits) + (dtype.lanes > 1 ? "x" + std::to_string(dtype.lanes) : "");
  if (dtype.code == kDLComplex) return "complex" + bits;
  try {
    return ffi::DLDataTypeToString(dtype);
  } catch (const ffi::Error&) {
    return "of DLPack's code " + std::to_string(dtype.code) + ", " + bits + " bits";
  }
}

template <class List>
struct Dispatch;
template <class... Types>
struct Dispatch<void(Types...)> {
  /* Call `body` with the Dtype among `Types` that matches, or throw a TypeError. */
  template <class Body>
  static void Run(DLDataType dtype, const char* expression, Body&& body) {
    if ((Try<Types>(dtype, body) || ...)) return;
    std::string expected;
    ((expected += (expected.empty() ? "" : ", ") + std::string(Dtype<Types>::name)), ...);
    TVM_FFI_THROW(TypeError) << "Unsupported dtype: " << expression << " is " << Name(dtype)
                             << ", expected " << (sizeof...(Types) > 1 ? "one of " : "") << expected;
  }

 private:
  template <class T, class Body>
  static bool Try(DLDataType dtype, Body& body) {
    if (!IsSame(dtype, Dtype<T>::value)) return false;
    body(Dtype<T>{});
    return true;
  }
};

inline bool IsCuda(DLDevice device) { return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged; }

inline std::string Name(DLDevice device) {
  const bool is_cpu = device.device_type == kDLCPU;
  const std::string type = is_cpu           ? "cpu"
                           : IsCuda(device) ? "cuda"
                                            : "device type " + std::to_string(device.device_type);
  return is_cpu ? type : type + ":" + std::to_string(device.device_id);
}

}  // namespace v1
}  // namespace jitload

/* Run a block in which `T` is the element type:
 *   DISPATCH_DTYPE(x.dtype(), T, (float, __half), { Scale<T>(x, y); });
 * `types` is a list of C++ types or one of the macros below. CUDA's types need their headers only if the block does
 * more than name them. */
#define DISPATCH_DTYPE(dtype, T, types, ...)                                       \
  ::jitload::Dispatch<void types>::Run((dtype), #dtype, [&](auto jitload_dtype_) { \
    using T [[maybe_unused]] = typename decltype(jitload_dtype_)::type;            \
    __VA_ARGS__                                                                    \
  })

#define JITLOAD_FLOATING_TYPES (float, double, __half, __nv_bfloat16)
#define JITLOAD_FLOAT8_TYPES (__nv_fp8_e4m3, __nv_fp8_e5m2)
#define JITLOAD_INTEGER_TYPES (int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t)
#define JITLOAD_ALL_TYPES                                                                                             \
  (bool, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, float, double, __half, __nv_bfloat16, \
   __nv_fp8_e4m3, __nv_fp8_e5m2)

/* ---- stream and memory ----------------------------------------------------------------------------------------- */

/* The framework's current stream on a device. */
inline cudaStream_t get_cuda_stream(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

/* Allocate a tensor with the framework whose tensors the caller passed. */
inline ffi::Tensor alloc_tensor(const ffi::Shape& shape, DLDataType dtype, DLDevice device) {
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr)
    TVM_FFI_THROW(RuntimeError)
        << "alloc_tensor(): no argument of this call is a tensor of a framework that allocates, such as torch; NumPy does "
           "not. Call the function with one, or let the caller pass the tensor to write to";
  return ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, dtype, device);
}

/* The address of the first element: `data_ptr()` does not include DLPack's byte offset. */
template <class T = void, class AnyTensor>
T* element_ptr(const AnyTensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}
