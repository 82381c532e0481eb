/* at::TensorArg, and the common checks of arguments that take it. */
#pragma once

#include "tensor.h"

namespace at {

using CheckedFrom = const char*;
struct TensorArg {
  TensorArg(const Tensor& tensor, const char* name, int pos) : tensor(tensor), name(name), pos(pos) {}
  TensorArg(Tensor&&, const char*, int) = delete;
  const Tensor& operator*() const { return tensor; }
  const Tensor* operator->() const { return &tensor; }
  std::string to_string() const { return (pos != 0 ? c10::str("argument #", pos, " '") : "'") + name + "'"; }
  const Tensor& tensor;
  const char* name;
  int pos; /* 0 for `self` and for results, which have no number */
};
using TensorGeometryArg = TensorArg;

/* X(name, what, label, value): a comparison of two arguments, and of all defined ones in a list. */
#define X(name, what, label, value)                                                                                      \
  inline void checkSame##name(CheckedFrom c, const TensorArg& a, const TensorArg& b) {                                   \
    const auto on_cpu = [](const TensorArg& t) { return t->is_cpu() ? "Tensor for " + t.to_string() + " is on CPU, " : ""; }; \
    TORCH_CHECK(*#name != 'G' || !(a->is_cpu() || b->is_cpu()), on_cpu(a), on_cpu(b),                                    \
                "but expected it to be on GPU (while checking arguments for ", c, ")");                                  \
    TORCH_CHECK(c10::str(a->value) == c10::str(b->value), "Expected tensor for ", a.to_string(), " to have " what        \
                " as tensor for ", b.to_string(), "; but " label, a->value, " does not equal ", b->value,                \
                " (while checking arguments for ", c, ")");                                                              \
  }                                                                                                                      \
  inline void checkAllSame##name(CheckedFrom c, ArrayRef<TensorArg> tensors) {                                           \
    const TensorArg* first = nullptr;                                                                                    \
    for (const TensorArg& t : tensors) {                                                                                 \
      if (first != nullptr && t->defined()) checkSame##name(c, *first, t);                                               \
      else if (t->defined()) first = &t;                                                                                 \
    }                                                                                                                    \
  }
X(Size, "same size", "", sizes()) X(Type, "the same type", "type ", type()) X(GPU, "the same device", "device ", get_device())
#undef X

}  // namespace at
