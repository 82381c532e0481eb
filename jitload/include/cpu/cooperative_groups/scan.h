/* Scans over a group, which call their operation in the order in which a GPU does. */
#pragma once

#include <cooperative_groups.h>

namespace cooperative_groups {

template <class Value> struct plus { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return a + b; } };
template <class Value> struct less { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return b < a ? b : a; } };
template <class Value> struct greater { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return a < b ? b : a; } };
template <class Value> struct bit_and { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return a & b; } };
template <class Value> struct bit_xor { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return a ^ b; } };
template <class Value> struct bit_or { __JITLOAD_MEMBER Value operator()(Value a, Value b) const { return a | b; } };

namespace __jitload_groups {

template <class First, class Second>
constexpr bool is_same = false;
template <class First>
constexpr bool is_same<First, First> = true;

template <class Value>
Value copy(const Value&);
template <class Value, class Operation>
__JITLOAD_INLINE void check_operation(Value& value, Operation&& operation) {
  static_assert(is_same<decltype(copy(operation(value, value))), Value>,
                "the operation returns another type than that of the value");
}

/* The result of an operation, called a sum here, over this thread's value and the values of smaller ranks. */
template <class Group, class Value, class Operation>
__JITLOAD_INLINE Value running_sum(const Group& group, Value value, Operation&& operation) {
  check_operation(value, operation);
  for (unsigned distance = 1; distance < group.size(); distance *= 2) {
    const Value previous = group.shfl_up(value, distance);
    if (group.thread_rank() >= distance) value = operation(value, previous);
  }
  return value;
}

template <class Group, class Value>
__JITLOAD_INLINE Value sum_before(const Group& group, Value sum) {
  const Value previous = group.shfl_up(sum, 1);
  return group.thread_rank() == 0 ? Value() : previous;
}

template <bool is_inclusive, class Group, class Value, class Operation>
__JITLOAD_INLINE Value scan(const Group& group, Value value, Operation&& operation) {
  const Value sum = running_sum(group, value, operation);
  return is_inclusive ? sum : sum_before(group, sum);
}

}  // namespace __jitload_groups

#define __JITLOAD_SCANS(name, is_inclusive)                                             \
  template <class Group, class Value, class Operation>                                  \
  __JITLOAD_INLINE Value name(const Group& group, Value value, Operation&& operation) { \
    return __jitload_groups::scan<is_inclusive>(group, value, operation);               \
  }                                                                                     \
  template <class Group, class Value>                                                   \
  __JITLOAD_INLINE Value name(const Group& group, Value value) {                        \
    return __jitload_groups::scan<is_inclusive>(group, value, plus<Value>());           \
  }
__JITLOAD_SCANS(inclusive_scan, true)
__JITLOAD_SCANS(exclusive_scan, false)
#undef __JITLOAD_SCANS

}  // namespace cooperative_groups
