/* Reductions over a group, which call their operation in the order in which a GPU does. */
#pragma once

#include <cooperative_groups/scan.h>

namespace cooperative_groups {

namespace __jitload_groups {

template <class Tile, class Value, class Operation>
__JITLOAD_INLINE Value reduce_tile(const Tile& tile, Value value, Operation&& operation) {
  check_operation(value, operation);
  for (unsigned bits = Tile::size() / 2; bits > 0; bits /= 2) value = operation(value, tile.shfl_xor(value, bits));
  return value;
}

}  // namespace __jitload_groups

template <unsigned int Size, class Parent, class Value, class Operation>
__JITLOAD_INLINE Value reduce(const thread_block_tile<Size, Parent>& group, Value value, Operation&& operation) {
  return __jitload_groups::reduce_tile(group, value, operation);
}
template <class Value, class Operation>
__JITLOAD_INLINE Value reduce(const coalesced_group& group, Value value, Operation&& operation) {
  if (group.size() == 32) return __jitload_groups::reduce_tile(thread_block_tile<32>(0, 1), value, operation);
  return group.shfl(__jitload_groups::running_sum(group, value, operation), (int)group.size() - 1);
}

}  // namespace cooperative_groups
