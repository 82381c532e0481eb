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

template <class Value>
Value copy(const Value&);
template <class Value, class Operation>
__JITLOAD_INLINE void check_operation(Value& value, Operation&& operation) {
  static_assert(__is_same(decltype(copy(operation(value, value))), Value),
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

}  // namespace __jitload_groups

template <class Group, class Value, class Operation = plus<Value>>
__JITLOAD_INLINE Value inclusive_scan(const Group& group, Value value, Operation&& operation = Operation()) {
  return __jitload_groups::running_sum(group, value, operation);
}
template <class Group, class Value, class Operation = plus<Value>>
__JITLOAD_INLINE Value exclusive_scan(const Group& group, Value value, Operation&& operation = Operation()) {
  const Value previous = group.shfl_up(inclusive_scan(group, value, operation), 1);
  return group.thread_rank() == 0 ? Value() : previous;
}

}  // namespace cooperative_groups
