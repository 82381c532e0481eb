/* What these headers use of the compiled files runtime/torch/*.cc. */
#pragma once

#if __cplusplus < 201703L
#error "C++17 or later compatible compiler is required to use PyTorch: leave -std=c++14 or older out"
#endif
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>

#if defined(JITLOAD_TORCH_ABI) /* a text, with copies of torch's headers */
#include <torch/headeronly/macros/Macros.h>
#else /* the compiled files, which do not depend on a release of torch */
#define C10_HOST_DEVICE
#define C10_LIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 1))
#define C10_UNLIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 0))
#define JITLOAD_TORCH_ABI 0x020A000000000000
#define JITLOAD_TORCH_GIL kept
#endif

namespace jitload_torch {

/* An AtenTensorHandle of torch's stable C interface, which refers to a tensor of the running torch. NULL stands for an
 * undefined tensor where a handle is owned. */
using Handle = void*;

/* A reference to a Python object that is owned. */
class Object {
 public:
  explicit Object(void* owned = nullptr) : pointer_(owned) {}
  Object(Object&& other) noexcept : pointer_(other.release()) {}
  Object(const Object&) = delete;
  Object& operator=(Object&& other) noexcept {
    void* mine = pointer_;
    pointer_ = other.pointer_;
    other.pointer_ = mine;
    return *this;
  }
  ~Object() {
    if (pointer_ != nullptr) drop(pointer_);
  }
  void* get() const { return pointer_; }
  void* release() {
    void* owned = pointer_;
    pointer_ = nullptr;
    return owned;
  }
  static void drop(void* object);

 private:
  void* pointer_;
};

/* A text that is put together, with numbers as C++ streams write them. */
class Message {
 public:
  Message();
  Message(const Message&) = delete;
  ~Message();
  void append(const char* text, size_t size);
  void append(const char* text);
  void append_character(char value) { append(&value, 1); }
  void append_integer(long long value);
  void append_unsigned(unsigned long long value);
  void append_float(double value, int digits = 6);
  void append_pointer(const void* value);
  const char* text() const;
  size_t size() const;

 private:
  void* text_;
};

/* Which class of Python an error becomes. */
enum class ErrorKind { Error, IndexError, ValueError, TypeError, NotImplementedError, LinAlgError, AcceleratorError };
[[noreturn]] void fail(ErrorKind kind, const char* message);
[[noreturn]] void fail_cuda(int status, const char* description); /* as torch reports it */
void warn(const char* file, int line, const char* message);

/* Tensors. Each function asks torch, without the GIL, and throws torch's error. */
Handle copy_handle(Handle tensor); /* a new reference to the same tensor */
void delete_handle(Handle tensor);
int64_t tensor_dim(Handle tensor), tensor_numel(Handle tensor), tensor_storage_offset(Handle tensor);
const int64_t *tensor_sizes(Handle tensor), *tensor_strides(Handle tensor);
int8_t tensor_dtype(Handle tensor), tensor_layout(Handle tensor);
int8_t tensor_device_type(Handle tensor), tensor_device_index(Handle tensor);
bool tensor_is_contiguous(Handle tensor);
void* tensor_data(Handle tensor);
const void* tensor_const_data(Handle tensor);
void check_allocated(Handle tensor, const void* data, size_t element_size); /* as torch does for typed pointers alone */
void check_dtype(int8_t expected, int8_t actual); /* which differ; a quantized tensor may have the underlying dtype */
[[noreturn]] void fail_dimension(int64_t dim, int64_t ndim);
bool tensor_from(void* object, Handle* tensor); /* false for an object of another type */
Handle empty_tensor(int8_t scalar_type, int64_t size = -1); /* on the CPU, without dimensions or with one; calls no operator */

/* Whether this thread is in a call from Python that has not released the GIL. To ask Python would take longer. */
extern __thread bool holds_gil;
int take_gil();
void return_gil(int state);

/* Holds the GIL while an object of this class lives. */
struct Gil {
  Gil() : was_held(holds_gil), state(was_held ? 0 : take_gil()) { holds_gil = true; }
  Gil(const Gil&) = delete;
  ~Gil() {
    holds_gil = was_held;
    if (!was_held) return_gil(state);
  }
  const bool was_held;
  const int state;
};

/* Releases the GIL while an object of this class lives, if this thread holds the GIL. */
struct GilRelease {
  explicit GilRelease(bool releases = true);
  GilRelease(const GilRelease&) = delete;
  ~GilRelease();
  void* const state;
  const bool was_held;
};

/* Objects of Python. */
Object none();
Object borrow(void* object);
Object python_list(size_t size);
Object python_tuple(size_t size);
void set_item(const Object& sequence, size_t index, Object item); /* of a list or tuple that is new */
bool is_none(void* object);
bool is_builtin(void* object, const char* type); /* such as "tuple" */
bool sequence_size(void* object, size_t* size);   /* false for an object of another type */
Object sequence_item(void* object, size_t index);
Object items_of(void* object, bool convert); /* a list of a set's items if `convert`, or the object itself */
bool is_int_list(void* object, size_t size); /* what torch takes for an IntArrayRef: a list or tuple of ints and tensors */

/* Calls a function by its path, "torch.tensor" or ".__getitem__" for a method of the first argument. */
Object invoke_path(const char* path, const char* keywords, void** arguments, size_t count);

void* current_stream(int device_index);
void set_current_stream(void* stream, int device_index);
void* stream_from_pool(bool is_high_priority, int device_index);
void* blas_handle();
void* library_handle(const char* function); /* returns the result of a function of libtorch_cuda without arguments */
bool is_grad_enabled();
void set_grad_enabled(bool enabled);
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, void (*function)(int64_t, int64_t, void*), void* context);

}  // namespace jitload_torch
