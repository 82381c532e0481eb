/* Copies by a group, which are complete at once. */
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

namespace cooperative_groups {

/* Copy a number of bytes. Each thread of the group copies a part of them. */
template <class Group, class Element, class Count>
__JITLOAD_INLINE void memcpy_async(const Group& group, Element* destination, const Element* source, const Count& bytes) {
  const size_t count = (size_t)bytes, rank = group.thread_rank(), threads = group.size();
  const size_t first = count * rank / threads, end = count * (rank + 1) / threads;
  __builtin_memcpy((char*)destination + first, (const char*)source + first, end - first);
}
/* Copy as many elements as the smaller of the two layouts has. */
template <class Group, class Element, class Destination, class Source>
__JITLOAD_INLINE void memcpy_async(const Group& group, Element* destination, const Destination& destination_layout,
                                   const Element* source, const Source& source_layout) {
  const size_t room = (size_t)destination_layout, count = (size_t)source_layout;
  memcpy_async(group, destination, source, (room < count ? room : count) * sizeof(Element));
}

template <unsigned int Stage, class Group>
__JITLOAD_INLINE void wait_prior(const Group& group) { group.sync(); }
template <class Group>
__JITLOAD_INLINE void wait(const Group& group) { group.sync(); }

}  // namespace cooperative_groups
