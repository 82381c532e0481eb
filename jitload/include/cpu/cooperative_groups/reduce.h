/* Reductions over a group of lanes, in the order of a GPU's butterfly. */
#ifndef JITLOAD_CPU_GROUPS_REDUCE_H_
#define JITLOAD_CPU_GROUPS_REDUCE_H_

#include <cooperative_groups.h>

namespace cooperative_groups {

template <unsigned int Size, class Parent, class T, class Operation>
__JITLOAD_INLINE T reduce(const thread_block_tile<Size, Parent>& group, T value, Operation&& operation) {
  for (unsigned lanes = Size / 2; lanes > 0; lanes /= 2) value = operation(value, group.shfl_xor(value, lanes));
  return value;
}
template <class T, class Operation>
__JITLOAD_INLINE T reduce(const coalesced_group& group, T value, Operation&& operation) {
  T result = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, (int)rank));
  return result;
}

}  // namespace cooperative_groups

#endif /* JITLOAD_CPU_GROUPS_REDUCE_H_ */
