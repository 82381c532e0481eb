// The kernel library's dtypes and checks: nothing here launches.
#ifdef CUDA_TYPES
#include <cuda_fp16.h>
#include <jitload/kernel_library.h>
// These come last.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#else
#include <jitload/kernel_library.h>
#endif

template <class T>
static std::string Describe(const void* data) {
  return jitload::KernelName<T>("kernel_") + (static_cast<const T*>(data) != nullptr ? "" : " of nothing");
}

ffi::String AnyOf(TensorView x) {
  std::string name;
  DISPATCH_DTYPE(x.dtype(), T, JITLOAD_ALL_TYPES, { name = Describe<T>(x.data_ptr()); });
  return name;
}

int64_t ListOf(TensorView x) {
  int64_t list = 0;
  if (jitload::IsSame(x.dtype(), dl_bool)) return list;
  try {
    DISPATCH_DTYPE(x.dtype(), T, JITLOAD_FLOATING_TYPES, { list = 1; });
  } catch (const ffi::Error&) {
    try {
      DISPATCH_DTYPE(x.dtype(), T, JITLOAD_FLOAT8_TYPES, { list = 2; });
    } catch (const ffi::Error&) {
      DISPATCH_DTYPE(x.dtype(), T, JITLOAD_INTEGER_TYPES, { list = 3; });
    }
  }
  return list;
}

// Two lists inside one another.
ffi::String Pair(TensorView x, TensorView y) {
  std::string name;
  DISPATCH_DTYPE(x.dtype(), X, (float, __half), {
    DISPATCH_DTYPE(y.dtype(), Y, (int32_t, int64_t), { name = jitload::KernelName<X>("") + jitload::KernelName<Y>("_"); });
  });
  return name;
}

void CheckDtype(TensorView values, Optional<TensorView> index) {
  CHECK_DTYPE(dl_float32, values);
  if (index.has_value())
    CHECK_DTYPE(dl_int64, index.value());
  else
    CHECK_DIM(1, values) << ", as there is no index";
}

int64_t FirstElement(TensorView x) { return *element_ptr<int64_t>(x); }

ffi::Tensor Allocated(TensorView like) { return alloc_tensor({2, 3}, like.dtype(), like.device()); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(allocated, Allocated);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(any_of, AnyOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(list_of, ListOf);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(pair, Pair);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(check_dtype, CheckDtype);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(first_element, FirstElement);
