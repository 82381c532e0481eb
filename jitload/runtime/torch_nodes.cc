/* Tensors of the running torch: what they hold, their sizes and memory, and their printed form. */
#include <dlfcn.h>

#include <sstream>

#include "torch_library.h"

namespace jitload_torch {

namespace {
Node* make_node(void* object, void* impl) {
  Node* node = new Node; /* the node's view is filled in when it is needed */
  node->count = 1;
  node->object = object;
  node->impl = impl;
  node->is_viewed = false;
  node->sizes = nullptr;
  return node;
}
}  // namespace
Node* share(Object tensor) { return make_node(tensor.release(), nullptr); }
Node* adopt(void* impl) { return impl != direct().undefined ? make_node(nullptr, impl) : nullptr; }

void destroy(Node* node) {
  if (node->object != nullptr) Object::drop(node->object);
  if (node->impl != nullptr) direct().assign(&direct().undefined, &node->impl); /* drops the former TensorImpl */
  delete[] node->sizes;
  delete node;
}

void* object_of(Node* node) {
  if (node->object != nullptr) return node->object;
  Gil gil;
  if (node->object == nullptr) { /* no other thread has made the object in the meantime */
    node->object = checked(direct().wrap(&node->impl)).release();
    direct().assign(&direct().undefined, &node->impl);
    node->impl = nullptr;
  }
  return node->object;
}

void* const* tensor_slot(const at::Tensor& tensor) {
  const Node* node = tensor.node();
  return node != nullptr ? slot_of(node) : &direct().undefined;
}

namespace {
/* Reads a tensor that DLPack does not export: a sparse one, or one on another device. */
void read_attributes(Node* node) {
  const Object shape = attribute(node->object, "shape"), dtype = attribute(node->object, "dtype");
  const Object device = attribute(node->object, "device"), layout = attribute(node->object, "layout");
  size_t count = 0;
  int8_t type = 0, index = 0, layout_number = -1;
  sequence_size(shape.get(), &count);
  delete[] node->sizes;
  node->sizes = new int64_t[2 * count + 1];
  const bool is_strided = layout_from(layout.get(), &layout_number) && layout_number == 0;
  const Object strides = is_strided ? call(attribute(node->object, "stride").get(), {}) : Object();
  for (size_t i = 0; i < count; ++i) {
    node->sizes[i] = PyLong_AsLongLong(sequence_item(shape.get(), i).get());
    node->sizes[count + i] = is_strided ? PyLong_AsLongLong(sequence_item(strides.get(), i).get()) : 0;
  }
  if (PyErr_Occurred() != nullptr) throw PythonError();
  if (!dtype_from(dtype.get(), &node->scalar_type)) {
    throw CheckError(ErrorKind::runtime, "a tensor has a dtype that jitload's headers for torch do not support");
  }
  device_from(device.get(), &type, &index);
  const bool is_meta = type == static_cast<int8_t>(c10::DeviceType::Meta);
  node->view = {nullptr, kOtherDevice + type, index, static_cast<int32_t>(count), 0, 0, 1, node->sizes,
                is_strided || layout_number == 1 ? node->sizes + count : nullptr, is_meta && is_strided ? 0 : kNoMemory};
  node->is_viewed = true;
}
}  // namespace

int8_t layout_of(Node* node) {
  Gil gil;
  int8_t layout = 0;
  if (layout_from(attribute(object_of(node), "layout").get(), &layout)) return layout;
  throw CheckError(ErrorKind::runtime, "a tensor has a layout that jitload's headers for torch do not support");
}

namespace {
/* Reads a tensor through torch's C interface; returns whether it is one with strides on the CPU or a GPU. */
bool read_impl(Node* node) {
  const Direct& functions = direct();
  if (!functions.is_usable) return false;
  void* const* tensor = slot_of(node);
  int64_t ndim = 0;
  int32_t scalar_type = 0, layout = 0, device_type = 0, device_index = 0;
  View& view = node->view;
  if (functions.get_layout(tensor, &layout) != 0 || layout != 0 || functions.get_device_type(tensor, &device_type) != 0 ||
      device_type > static_cast<int32_t>(c10::DeviceType::CUDA) || functions.get_dim(tensor, &ndim) != 0 ||
      functions.get_sizes(tensor, &view.sizes) != 0 || functions.get_strides(tensor, &view.strides) != 0 ||
      functions.get_dtype(tensor, &scalar_type) != 0 || functions.get_device_index(tensor, &device_index) != 0) {
    return false;
  }
  view.device_type = device_type == 0 ? 1 : 2; /* as DLPack numbers them */
  view.device_index = device_index;
  view.ndim = static_cast<int32_t>(ndim);
  view.byte_offset = kUnreadMemory;
  node->scalar_type = static_cast<int8_t>(scalar_type);
  node->is_viewed = true;
  return true;
}
}  // namespace

void read_view(Node* node) {
  Gil gil;
  if (read_impl(node)) return;
  if (torch_module().view(object_of(node), &node->view) != 0) {
    PyErr_Clear();
    return read_attributes(node);
  }
  for (const Dtype& dtype : kDtypes) {
    if (dtype.code == node->view.dtype_code && dtype.bits == node->view.dtype_bits) {
      node->scalar_type = dtype.scalar_type;
      node->is_viewed = true;
      return;
    }
  }
  throw CheckError(ErrorKind::runtime, "a tensor has a dtype that jitload's headers for torch do not support");
}

void read_memory(Node* node) {
  const bool is_readable = node->view.byte_offset == kUnreadMemory;
  if (is_readable && direct().get_data(slot_of(node), &node->view.data) == 0) {
    node->view.byte_offset = 0;
    return;
  }
  Gil gil;
  const Object method = attribute(object_of(node), "data_ptr");
  const Object address = call(method.get(), {}); /* throws torch's error */
  throw CheckError(ErrorKind::runtime, "this tensor has no memory that can be accessed");
}

void check_dtype(Node* node, int8_t scalar_type) {
  const c10::ScalarType found = node != nullptr ? c10::ScalarType(node->scalar_type) : c10::ScalarType::Undefined;
  Message message;
  append_all(message, "expected scalar type ", c10::ScalarType(scalar_type), " but found ", found);
  throw CheckError(ErrorKind::runtime, message.text());
}

bool dtype_of_dlpack(int8_t scalar_type, uint8_t* code, uint8_t* bits) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.scalar_type != scalar_type) continue;
    *code = dtype.code;
    *bits = dtype.bits;
    return true;
  }
  return false;
}

Object tensor_over(const View& view, void (*release)(void* context, void* data), void* context) {
  Gil gil;
  struct Memory {
    Managed managed;
    void (*release)(void*, void*);
    void* context;
  };
  Memory* memory = new Memory{{1, 0, nullptr, nullptr, 0, view}, release, context};
  memory->managed.context = memory;
  memory->managed.deleter = [](Managed* managed) {
    const GilNote note(false); /* torch may have released the GIL */
    Memory* mine = static_cast<Memory*>(managed->context);
    if (mine->release != nullptr) mine->release(mine->context, managed->view.data);
    delete[] managed->view.sizes; /* also frees the strides, which are behind the sizes */
    delete mine;
  };
  void* tensor = nullptr;
  if (torch_module().import(&memory->managed, &tensor) != 0) throw PythonError();
  return Object(tensor);
}

void print(std::ostream& stream, const at::Tensor& tensor) {
  using Print = std::ostream& (*)(std::ostream&, void* const*, int64_t);
  Gil gil;
  void* const function = direct().is_usable ? dlsym(direct().torch, "_ZN2at5printERSoRKNS_6TensorEl") : nullptr;
  if (function == nullptr) throw CheckError(ErrorKind::runtime, "printing a tensor needs torch 2.10 to 2.13");
  try {
    reinterpret_cast<Print>(function)(stream, tensor_slot(tensor), 80);
  } catch (...) {
    rethrow_from_torch();
  }
}
void append(Message& m, const at::Tensor& value) {
  std::ostringstream stream;
  print(stream, value);
  m.append(stream.str().c_str());
}

}  // namespace jitload_torch
