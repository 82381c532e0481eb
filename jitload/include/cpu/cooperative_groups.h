/* Cooperative groups of one device, without clusters and without barriers of the grid. */
#pragma once

#if defined(__JITLOAD_USES_ATOMICS) && __has_include(<cuda/atomic>)
#include <cuda/atomic>
#endif

namespace cooperative_groups {

namespace __jitload_groups {

enum group_type { coalesced_type = 1, grid_type = 3, block_type = 4 };

__JITLOAD_INLINE unsigned rank_in(unsigned mask) { return (unsigned)__popc(mask & ((1u << __jitload_lane()) - 1)); }

}  // namespace __jitload_groups

/* ---- blocks and grids ------------------------------------------------------------------------------------------- */

/* Any group. A group within a warp has a mask of its lanes; a block and a grid have no mask. */
class thread_group {
 public:
  __JITLOAD_MEMBER thread_group(__jitload_groups::group_type type, unsigned mask) : type_(type), mask_(mask) {}
  __JITLOAD_MEMBER unsigned long long size() const;
  __JITLOAD_MEMBER unsigned long long num_threads() const { return size(); }
  __JITLOAD_MEMBER unsigned long long thread_rank() const;
  __JITLOAD_MEMBER void sync(__jitload_site site = __JITLOAD_SITE) const;
  __JITLOAD_MEMBER unsigned int get_type() const { return type_; }
  __JITLOAD_MEMBER unsigned __jitload_mask() const { return mask_; }

 private:
  __jitload_groups::group_type type_;
  unsigned mask_;
};

class thread_block : public thread_group {
 public:
  using thread_group::thread_group;
  static __JITLOAD_MEMBER void sync(__jitload_site site = __JITLOAD_SITE) { __syncthreads(site); }
  static __JITLOAD_MEMBER unsigned int size() { return blockDim.x * blockDim.y * blockDim.z; }
  static __JITLOAD_MEMBER unsigned int num_threads() { return size(); }
  static __JITLOAD_MEMBER unsigned int thread_rank() { return __jitload_rank(); }
  static __JITLOAD_MEMBER dim3 group_index() { return dim3(blockIdx); }
  static __JITLOAD_MEMBER dim3 thread_index() { return dim3(threadIdx); }
  static __JITLOAD_MEMBER dim3 group_dim() { return dim3(blockDim); }
  static __JITLOAD_MEMBER dim3 dim_threads() { return dim3(blockDim); }
};
__JITLOAD_INLINE thread_block this_thread_block() { return thread_block(__jitload_groups::block_type, 0); }

class grid_group : public thread_group {
 public:
  using thread_group::thread_group;
  static __JITLOAD_MEMBER bool is_valid() { return false; } /* false, as in a launch that is not cooperative */
  void sync() const = delete;
  static __JITLOAD_MEMBER unsigned long long size() { return num_blocks() * thread_block::size(); }
  static __JITLOAD_MEMBER unsigned long long num_threads() { return size(); }
  static __JITLOAD_MEMBER unsigned long long num_blocks() {
    return (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
  }
  static __JITLOAD_MEMBER unsigned long long block_rank() {
    return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  static __JITLOAD_MEMBER unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static __JITLOAD_MEMBER dim3 group_dim() { return dim3(gridDim); }
  static __JITLOAD_MEMBER dim3 dim_blocks() { return dim3(gridDim); }
  static __JITLOAD_MEMBER dim3 block_index() { return dim3(blockIdx); }
  static __JITLOAD_MEMBER dim3 dim_threads() {
    return dim3(gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z);
  }
  static __JITLOAD_MEMBER dim3 thread_index() {
    return dim3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
                blockIdx.z * blockDim.z + threadIdx.z);
  }
};
__JITLOAD_INLINE grid_group this_grid() { return grid_group(__jitload_groups::grid_type, 0); }

/* ---- lanes of a warp -------------------------------------------------------------------------------------------- */

namespace __jitload_groups {

/* A group of lanes of one warp, which stores its rank in its parent, and how many such groups the parent has. The derived
 * group translates lanes to ranks, and finds the lane that a shuffle reads from. */
template <class Group>
class lanes : public thread_group {
 public:
  __JITLOAD_MEMBER lanes(unsigned mask, unsigned rank, unsigned count)
      : thread_group(coalesced_type, mask), meta_rank_(rank), meta_size_(count) {}
  __JITLOAD_MEMBER unsigned int meta_group_rank() const { return meta_rank_; }
  __JITLOAD_MEMBER unsigned int meta_group_size() const { return meta_size_; }
  __JITLOAD_MEMBER void sync() const { __syncwarp(__jitload_mask()); }
  __JITLOAD_MEMBER unsigned int ballot(int predicate) const {
    return self().__jitload_ranks(__ballot_sync(__jitload_mask(), predicate));
  }
  __JITLOAD_MEMBER int any(int predicate) const { return __ballot_sync(__jitload_mask(), predicate) != 0; }
  __JITLOAD_MEMBER int all(int predicate) const { return __ballot_sync(__jitload_mask(), predicate) == __jitload_mask(); }
  template <class Value>
  __JITLOAD_MEMBER unsigned int match_any(Value value) const {
    return self().__jitload_ranks(__match_any_sync(__jitload_mask(), value));
  }
  template <class Value>
  __JITLOAD_MEMBER unsigned int match_all(Value value, int& predicate) const {
    return self().__jitload_ranks(__match_all_sync(__jitload_mask(), value, &predicate));
  }
  template <class Value>
  __JITLOAD_MEMBER Value shfl(Value value, int rank) const {
    return shuffle(value, __JITLOAD_SHFL_IDX, rank, "shfl()");
  }
  template <class Value>
  __JITLOAD_MEMBER Value shfl_up(Value value, unsigned int delta) const {
    return shuffle(value, __JITLOAD_SHFL_UP, (int)delta, "shfl_up()");
  }
  template <class Value>
  __JITLOAD_MEMBER Value shfl_down(Value value, unsigned int delta) const {
    return shuffle(value, __JITLOAD_SHFL_DOWN, (int)delta, "shfl_down()");
  }

 protected:
  template <class Value>
  __JITLOAD_MEMBER Value shuffle(const Value& value, int mode, int distance, const char* name) const {
    static_assert(__is_trivially_copyable(Value), "a group exchanges values that can be copied as bytes");
    static_assert(sizeof(Value) <= 32, "a group exchanges values of at most 32 bytes");
    const int source = self().__jitload_lane_of(mode, distance);
    if (source < 0) {
      __jitload_stop("%s reads from a thread that does not take part: the value is undefined on a GPU", name);
    }
    return __jitload_shuffle(__jitload_mask(), value, source, name);
  }

 private:
  __JITLOAD_MEMBER const Group& self() const { return static_cast<const Group&>(*this); }
  unsigned meta_rank_, meta_size_;
};

}  // namespace __jitload_groups

class coalesced_group : public __jitload_groups::lanes<coalesced_group> {
 public:
  using lanes::lanes;
  __JITLOAD_MEMBER unsigned int size() const { return (unsigned)__popc(__jitload_mask()); }
  __JITLOAD_MEMBER unsigned int num_threads() const { return size(); }
  __JITLOAD_MEMBER unsigned int thread_rank() const { return __jitload_groups::rank_in(__jitload_mask()); }
  __JITLOAD_MEMBER unsigned __jitload_ranks(unsigned lanes) const {
    unsigned ranks = 0, rank = 0;
    for (unsigned rest = __jitload_mask(); rest != 0; rest &= rest - 1, ++rank) {
      ranks |= (lanes >> __builtin_ctz(rest) & 1u) << rank;
    }
    return ranks;
  }
  __JITLOAD_MEMBER int __jitload_lane_of(int mode, int distance) const {
    const unsigned count = size(), rank = thread_rank(), by = (unsigned)distance;
    if (count == 32) return __jitload_source(mode, (int)rank, distance, 32);
    if (mode == __JITLOAD_SHFL_IDX) return by < count ? (int)__fns(__jitload_mask(), 0, distance + 1) : -1;
    const bool is_up = mode == __JITLOAD_SHFL_UP;
    if (is_up ? by > rank : by >= count - rank) return (int)__jitload_lane();
    return (int)__fns(__jitload_mask(), 0, (int)(is_up ? rank - by : rank + by) + 1);
  }
};
__JITLOAD_INLINE coalesced_group coalesced_threads(__jitload_site site = __JITLOAD_SITE) {
  return coalesced_group(__activemask(site), 0, 1);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------ */

namespace __jitload_groups {

/* The size of a group that may have tiles, or 0. */
template <class Parent>
constexpr unsigned parent_size = 0;
template <>
constexpr unsigned parent_size<thread_block> = ~0u;

}  // namespace __jitload_groups

template <unsigned int Size, class Parent = void>
class thread_block_tile;
template <unsigned int Size, class Parent>
constexpr unsigned __jitload_groups::parent_size<thread_block_tile<Size, Parent>> = Size;

/* The type of a tile may leave its parent out. */
template <unsigned int Size, class Parent>
class thread_block_tile : public __jitload_groups::lanes<thread_block_tile<Size, Parent>> {
  static_assert(Size > 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
  static_assert(Size <= 32, "GPU only: tiles of more than 32 threads");
  typedef __jitload_groups::lanes<thread_block_tile> lanes;

 public:
  __JITLOAD_MEMBER thread_block_tile(unsigned rank, unsigned count)
      : lanes((Size == 32 ? ~0u : (1u << Size % 32) - 1) << first(), rank, count) {}
  template <class Other>
  __JITLOAD_MEMBER thread_block_tile(const thread_block_tile<Size, Other>& other)
      : thread_block_tile(other.meta_group_rank(), other.meta_group_size()) {}
  static constexpr unsigned int size() { return Size; }
  static constexpr unsigned int num_threads() { return Size; }
  static __JITLOAD_MEMBER unsigned int thread_rank() { return __jitload_rank() & (Size - 1); }
  template <class Value>
  __JITLOAD_MEMBER Value shfl_xor(Value value, unsigned int bits) const {
    return lanes::shuffle(value, __JITLOAD_SHFL_BFLY, (int)bits, "shfl_xor()");
  }
  static __JITLOAD_MEMBER unsigned __jitload_ranks(unsigned lanes) { return lanes >> first(); }
  static __JITLOAD_MEMBER int __jitload_lane_of(int mode, int distance) {
    return __jitload_source(mode, (int)__jitload_lane(), distance, Size);
  }

 private:
  static __JITLOAD_MEMBER unsigned first() { return __jitload_lane() & ~(Size - 1); }
};

template <unsigned int Size, class Parent>
__JITLOAD_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent& parent) {
  static_assert(__jitload_groups::parent_size<Parent> != 0, "only blocks and tiles have tiles of static size");
  static_assert(__jitload_groups::parent_size<Parent> > Size, "a tile is smaller than the group it is part of");
  return thread_block_tile<Size, Parent>(parent.thread_rank() / Size, (parent.size() + Size - 1) / Size);
}
__JITLOAD_INLINE thread_block_tile<1, void> this_thread() {
  return thread_block_tile<1, void>(0, 1);
}

/* ---- parts of a warp -------------------------------------------------------------------------------------------- */

namespace __jitload_groups {

/* Divide the lanes of `mask` into parts of `size` lanes; return the part that contains the calling thread. */
__JITLOAD_INLINE unsigned part_of(unsigned mask, unsigned size) {
  if (size == 0 || size > 32 || (size & (size - 1))) {
    __jitload_stop("tiled_partition() into %u threads, which is not a power of two of at most 32,", size);
  }
  for (unsigned skip = rank_in(mask) / size * size; skip > 0; --skip) mask &= mask - 1;
  unsigned part = 0;
  for (unsigned i = 0; i < size && mask != 0; ++i, mask &= mask - 1) part |= mask & -mask;
  return part;
}

}  // namespace __jitload_groups

__JITLOAD_INLINE coalesced_group tiled_partition(const coalesced_group& parent, unsigned int size) {
  const unsigned part = __jitload_groups::part_of(parent.__jitload_mask(), size);
  if (parent.size() <= size) return parent;
  return coalesced_group(part, parent.thread_rank() / size,
                         (parent.size() + size - 1) / size);
}
__JITLOAD_INLINE thread_group tiled_partition(const thread_group& parent, unsigned int size) {
  unsigned mask = parent.__jitload_mask();
  if (parent.get_type() == __jitload_groups::block_type) { /* the last warp of a block may have fewer lanes */
    const unsigned rest = thread_block::size() - (__jitload_rank() & ~31u);
    mask = rest >= 32 ? ~0u : (1u << rest) - 1;
  } else if (parent.get_type() == __jitload_groups::grid_type) {
    __jitload_stop("tiled_partition() of a grid");
  }
  return thread_group(__jitload_groups::coalesced_type, __jitload_groups::part_of(mask, size));
}
__JITLOAD_INLINE thread_group tiled_partition(const thread_block& parent, unsigned int size) {
  return tiled_partition(static_cast<const thread_group&>(parent), size);
}

namespace __jitload_groups {

__JITLOAD_INLINE coalesced_group partition_by(unsigned mask, bool predicate) {
  const unsigned yes = __ballot_sync(mask, predicate);
  if (yes == mask || yes == 0) return coalesced_group(mask, 0, 1);
  return coalesced_group(predicate ? yes : mask & ~yes, predicate, 2);
}
template <class Label>
__JITLOAD_INLINE coalesced_group partition_by(unsigned mask, Label label) {
  const unsigned part = __match_any_sync(mask, label), leader = part & -part;
  const unsigned leaders = __ballot_sync(mask, leader == 1u << __jitload_lane());
  return coalesced_group(part, (unsigned)__popc(leaders & (leader - 1)), (unsigned)__popc(leaders));
}

}  // namespace __jitload_groups

/* The parent is a group of lanes of one warp: a coalesced_group, or a tile. */
template <class Group>
__JITLOAD_INLINE coalesced_group binary_partition(const Group& parent, bool predicate) {
  return __jitload_groups::partition_by(parent.__jitload_mask(), predicate);
}
template <class Label, class Group>
__JITLOAD_INLINE coalesced_group labeled_partition(const Group& parent, Label label) {
  return __jitload_groups::partition_by(parent.__jitload_mask(), label);
}

/* ---- any group -------------------------------------------------------------------------------------------------- */

__JITLOAD_MEMBER unsigned long long thread_group::size() const {
  if (type_ == __jitload_groups::grid_type) return grid_group::size();
  return type_ == __jitload_groups::block_type ? thread_block::size() : (unsigned)__popc(mask_);
}
__JITLOAD_MEMBER unsigned long long thread_group::thread_rank() const {
  if (type_ == __jitload_groups::grid_type) return grid_group::thread_rank();
  return type_ == __jitload_groups::block_type ? __jitload_rank() : __jitload_groups::rank_in(mask_);
}
__JITLOAD_MEMBER void thread_group::sync(__jitload_site site) const {
  if (type_ == __jitload_groups::grid_type) __jitload_stop("a barrier of the whole grid, which is GPU only,");
  type_ == __jitload_groups::block_type ? __syncthreads(site) : __syncwarp(mask_);
}

template <class Group>
__JITLOAD_INLINE void sync(const Group& group) { group.sync(); }
template <class Group>
__JITLOAD_INLINE auto thread_rank(const Group& group) -> decltype(group.thread_rank()) { return group.thread_rank(); }
template <class Group>
__JITLOAD_INLINE auto group_size(const Group& group) -> decltype(group.size()) { return group.size(); }

}  // namespace cooperative_groups
