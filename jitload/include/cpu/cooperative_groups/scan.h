/* Scans over a group of lanes. */
#ifndef JITLOAD_CPU_GROUPS_SCAN_H_
#define JITLOAD_CPU_GROUPS_SCAN_H_

#include <cooperative_groups.h>

namespace cooperative_groups {

template <class Group, class T, class Operation>
__JITLOAD_INLINE T inclusive_scan(const Group& group, T value, Operation&& operation) {
  for (unsigned distance = 1; distance < group.size(); distance *= 2) {
    const T previous = group.shfl_up(value, distance);
    if (group.thread_rank() >= distance) value = operation(previous, value);
  }
  return value;
}
template <class Group, class T>
__JITLOAD_INLINE T inclusive_scan(const Group& group, T value) {
  return inclusive_scan(group, value, plus<T>());
}
template <class Group, class T, class Operation>
__JITLOAD_INLINE T exclusive_scan(const Group& group, T value, Operation&& operation) {
  const T previous = group.shfl_up(inclusive_scan(group, value, operation), 1);
  return group.thread_rank() == 0 ? T() : previous;
}
template <class Group, class T>
__JITLOAD_INLINE T exclusive_scan(const Group& group, T value) {
  return exclusive_scan(group, value, plus<T>());
}

}  // namespace cooperative_groups

#endif /* JITLOAD_CPU_GROUPS_SCAN_H_ */
