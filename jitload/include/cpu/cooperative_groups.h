/* Cooperative groups within a block, and a grid group without sync(). */
#ifndef JITLOAD_CPU_COOPERATIVE_GROUPS_H_
#define JITLOAD_CPU_COOPERATIVE_GROUPS_H_

namespace cooperative_groups {

/* ---- lanes of a warp -------------------------------------------------------------------------------------------- */

namespace __jitload_groups {

/* A value of any size from the lane `source`, eight bytes at a time. */
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t shuffle(unsigned mask, const __jitload_t& value, unsigned source, const char* name) {
  static_assert(__is_trivially_copyable(__jitload_t), "a group exchanges values that can be copied as bytes");
  unsigned char bytes[(sizeof(__jitload_t) + 7) / 8 * 8] = {};
  __builtin_memcpy(bytes, &value, sizeof value);
  for (unsigned i = 0; i < sizeof bytes; i += 8) {
    uint64_t piece;
    const uint64_t* values;
    __builtin_memcpy(&piece, bytes + i, 8);
    const uint32_t lanes = __jitload_exchange(mask, piece, &values, name);
    if (source > 31 || !(lanes >> source & 1)) {
      __jitload_stop("%s reads from lane %u, which does not take part: the value is undefined on a GPU", name, source);
    }
    __builtin_memcpy(bytes + i, &values[source], 8);
  }
  __jitload_t result;
  __builtin_memcpy(&result, bytes, sizeof result);
  return result;
}

/* The members that all groups of lanes have; the derived group gives the mask and the ranks. */
template <class __jitload_g>
struct warp_part {
  __JITLOAD_MEMBER void sync() const { __syncwarp(mask()); }
  __JITLOAD_MEMBER unsigned ballot(int predicate) const { return pack(__ballot_sync(mask(), predicate)); }
  __JITLOAD_MEMBER int any(int predicate) const { return __any_sync(mask(), predicate); }
  __JITLOAD_MEMBER int all(int predicate) const { return __all_sync(mask(), predicate); }
  template <class T>
  __JITLOAD_MEMBER unsigned match_any(T value) const { return pack(__match_any_sync(mask(), value)); }
  template <class T>
  __JITLOAD_MEMBER unsigned match_all(T value, int& predicate) const {
    return pack(__match_all_sync(mask(), value, &predicate));
  }
  template <class T>
  __JITLOAD_MEMBER T shfl(T value, int rank) const {
    return shuffle(mask(), value, self().lane_of((unsigned)rank % size()), "shfl()");
  }
  template <class T>
  __JITLOAD_MEMBER T shfl_up(T value, unsigned delta) const {
    const unsigned rank = self().thread_rank();
    return shuffle(mask(), value, self().lane_of(rank >= delta ? rank - delta : rank), "shfl_up()");
  }
  template <class T>
  __JITLOAD_MEMBER T shfl_down(T value, unsigned delta) const {
    const unsigned rank = self().thread_rank();
    return shuffle(mask(), value, self().lane_of(rank + delta < size() ? rank + delta : rank), "shfl_down()");
  }
  template <class T>
  __JITLOAD_MEMBER T shfl_xor(T value, unsigned bits) const {
    const unsigned rank = self().thread_rank();
    return shuffle(mask(), value, self().lane_of((rank ^ bits) < size() ? rank ^ bits : rank), "shfl_xor()");
  }

 private:
  __JITLOAD_MEMBER const __jitload_g& self() const { return static_cast<const __jitload_g&>(*this); }
  __JITLOAD_MEMBER unsigned mask() const { return self().__jitload_mask(); }
  __JITLOAD_MEMBER unsigned size() const { return self().size(); }
  /* Turn a mask of lanes into a mask of ranks. */
  __JITLOAD_MEMBER unsigned pack(unsigned lanes) const {
    unsigned ranks = 0;
    for (unsigned rank = 0; rank < size(); ++rank) ranks |= (lanes >> self().lane_of(rank) & 1u) << rank;
    return ranks;
  }
};

__JITLOAD_INLINE unsigned tile_mask(unsigned size) {
  const unsigned first = __jitload_lane() & ~(size - 1);
  return (size == 32 ? ~0u : (1u << size) - 1) << first;
}

}  // namespace __jitload_groups

/* ---- the block -------------------------------------------------------------------------------------------------- */

struct thread_block {
  typedef unsigned int arrival_token;
  static __JITLOAD_MEMBER void sync(__jitload_site site = __JITLOAD_SITE) { __syncthreads(site); }
  static __JITLOAD_MEMBER unsigned int size() { return blockDim.x * blockDim.y * blockDim.z; }
  static __JITLOAD_MEMBER unsigned int num_threads() { return size(); }
  static __JITLOAD_MEMBER unsigned int thread_rank() { return __jitload_rank(); }
  static __JITLOAD_MEMBER dim3 group_index() { return dim3(blockIdx); }
  static __JITLOAD_MEMBER dim3 thread_index() { return dim3(threadIdx); }
  static __JITLOAD_MEMBER dim3 group_dim() { return blockDim; }
  static __JITLOAD_MEMBER dim3 dim_threads() { return blockDim; }
};
__JITLOAD_INLINE thread_block this_thread_block() { return thread_block(); }

/* ---- the grid --------------------------------------------------------------------------------------------------- */

struct grid_group {
  static __JITLOAD_MEMBER bool is_valid() { return false; } /* as in a launch that is not cooperative */
  static __JITLOAD_MEMBER unsigned long long size() { return num_blocks() * thread_block::size(); }
  static __JITLOAD_MEMBER unsigned long long num_threads() { return size(); }
  static __JITLOAD_MEMBER unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  static __JITLOAD_MEMBER unsigned long long block_rank() {
    return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  }
  static __JITLOAD_MEMBER unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static __JITLOAD_MEMBER dim3 group_dim() { return gridDim; }
  static __JITLOAD_MEMBER dim3 dim_blocks() { return gridDim; }
  static __JITLOAD_MEMBER dim3 block_index() { return dim3(blockIdx); }
  void sync() const = delete;
};
__JITLOAD_INLINE grid_group this_grid() { return grid_group(); }

/* ---- tiles ------------------------------------------------------------------------------------------------------ */

template <unsigned int Size, class Parent = void>
struct thread_block_tile : __jitload_groups::warp_part<thread_block_tile<Size, Parent>> {
  static_assert(Size > 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
  static_assert(Size <= 32, "GPU only: tiles of more than 32 threads");
  static __JITLOAD_MEMBER unsigned int size() { return Size; }
  static __JITLOAD_MEMBER unsigned int num_threads() { return Size; }
  static __JITLOAD_MEMBER unsigned int thread_rank() { return __jitload_lane() & (Size - 1); }
  static __JITLOAD_MEMBER unsigned int meta_group_rank() { return __jitload_rank() / Size; }
  static __JITLOAD_MEMBER unsigned int meta_group_size() { return (thread_block::size() + Size - 1) / Size; }
  static __JITLOAD_MEMBER unsigned __jitload_mask() { return __jitload_groups::tile_mask(Size); }
  static __JITLOAD_MEMBER unsigned lane_of(unsigned rank) { return (__jitload_lane() & ~(Size - 1)) + rank; }
};
/* A tile within a tile has its rank within that one. */
template <unsigned int Size, unsigned int Outer, class Parent>
struct thread_block_tile<Size, thread_block_tile<Outer, Parent>> : thread_block_tile<Size, void> {
  static __JITLOAD_MEMBER unsigned int meta_group_rank() { return (__jitload_lane() & (Outer - 1)) / Size; }
  static __JITLOAD_MEMBER unsigned int meta_group_size() { return Outer / Size; }
};

struct coalesced_group : __jitload_groups::warp_part<coalesced_group> {
  explicit coalesced_group(unsigned mask) : mask_(mask) {}
  __JITLOAD_MEMBER unsigned int size() const { return (unsigned)__popc(mask_); }
  __JITLOAD_MEMBER unsigned int num_threads() const { return size(); }
  __JITLOAD_MEMBER unsigned int thread_rank() const {
    return (unsigned)__popc(mask_ & ((1u << __jitload_lane()) - 1));
  }
  __JITLOAD_MEMBER unsigned int meta_group_rank() const { return 0; }
  __JITLOAD_MEMBER unsigned int meta_group_size() const { return 1; }
  __JITLOAD_MEMBER unsigned __jitload_mask() const { return mask_; }
  __JITLOAD_MEMBER unsigned lane_of(unsigned rank) const { return __fns(mask_, 0, (int)rank + 1); }

 private:
  unsigned mask_;
};
__JITLOAD_INLINE coalesced_group coalesced_threads(__jitload_site site = __JITLOAD_SITE) {
  return coalesced_group(__activemask(site));
}

/* A block, or a part of one of its warps. */
struct thread_group {
  thread_group(const thread_block&) : mask_(0), is_block_(true) {}
  thread_group(const coalesced_group& group) : mask_(group.__jitload_mask()), is_block_(false) {}
  template <unsigned int Size, class Parent>
  thread_group(const thread_block_tile<Size, Parent>& tile) : mask_(tile.__jitload_mask()), is_block_(false) {}
  __JITLOAD_MEMBER void sync() const { is_block_ ? __syncthreads() : __syncwarp(mask_); }
  __JITLOAD_MEMBER unsigned int size() const { return is_block_ ? thread_block::size() : (unsigned)__popc(mask_); }
  __JITLOAD_MEMBER unsigned int num_threads() const { return size(); }
  __JITLOAD_MEMBER unsigned int thread_rank() const {
    return is_block_ ? __jitload_rank() : (unsigned)__popc(mask_ & ((1u << __jitload_lane()) - 1));
  }
  __JITLOAD_MEMBER unsigned __jitload_mask() const { return is_block_ ? ~0u : mask_; }

 private:
  unsigned mask_;
  bool is_block_;
};

template <unsigned int Size, class Parent>
__JITLOAD_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
  return thread_block_tile<Size, Parent>();
}
/* Part of a warp; the last warp of a block may have fewer than 32 lanes. */
__JITLOAD_INLINE coalesced_group __jitload_part(unsigned parent, unsigned size) {
  const unsigned rank = (unsigned)__popc(parent & ((1u << __jitload_lane()) - 1));
  unsigned mask = 0;
  for (unsigned i = rank / size * size; i < rank / size * size + size; ++i) {
    const unsigned lane = __fns(parent, 0, (int)i + 1);
    if (lane < 32) mask |= 1u << lane;
  }
  return coalesced_group(mask);
}
__JITLOAD_INLINE unsigned __jitload_lanes_of_block() {
  const unsigned left = thread_block::size() - (__jitload_rank() & ~31u);
  return left >= 32 ? ~0u : (1u << left) - 1;
}
__JITLOAD_INLINE thread_group tiled_partition(const thread_group& group, unsigned int size) {
  if (size == 0 || size > 32 || (size & (size - 1))) {
    __jitload_stop("tiled_partition() into %u threads: GPU only, or not a power of two", size);
  }
  return __jitload_part(group.__jitload_mask() & __jitload_lanes_of_block(), size);
}
__JITLOAD_INLINE coalesced_group tiled_partition(const coalesced_group& group, unsigned int size) {
  return __jitload_part(group.__jitload_mask(), size);
}
template <class Group>
__JITLOAD_INLINE coalesced_group labeled_partition(const Group& group, unsigned int label) {
  return coalesced_group(__match_any_sync(group.__jitload_mask(), label));
}
template <class Group>
__JITLOAD_INLINE coalesced_group binary_partition(const Group& group, bool predicate) {
  return labeled_partition(group, predicate);
}

/* ---- as functions ----------------------------------------------------------------------------------------------- */

template <class Group>
__JITLOAD_INLINE void sync(const Group& group) { group.sync(); }
template <class Group>
__JITLOAD_INLINE unsigned int thread_rank(const Group& group) { return group.thread_rank(); }
template <class Group>
__JITLOAD_INLINE unsigned int group_size(const Group& group) { return group.size(); }
template <class Group, class Function, class... Arguments>
__JITLOAD_INLINE void invoke_one(const Group& group, Function&& function, Arguments&&... arguments) {
  if (group.thread_rank() == 0) function(arguments...);
}

template <class T> struct plus { __JITLOAD_MEMBER T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { __JITLOAD_MEMBER T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { __JITLOAD_MEMBER T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { __JITLOAD_MEMBER T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_xor { __JITLOAD_MEMBER T operator()(T a, T b) const { return a ^ b; } };
template <class T> struct bit_or { __JITLOAD_MEMBER T operator()(T a, T b) const { return a | b; } };

}  // namespace cooperative_groups

#endif /* JITLOAD_CPU_COOPERATIVE_GROUPS_H_ */
