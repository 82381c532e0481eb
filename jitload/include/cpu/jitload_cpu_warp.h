/* Shuffles, votes, matches and reductions of a warp. All exchange 64-bit values among its lanes. */
#pragma once

template <class __jitload_t>
__JITLOAD_INLINE uint64_t __jitload_bits(const __jitload_t& value) {
  static_assert(sizeof(__jitload_t) <= 8, "a warp operation takes at most 64 bits");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

/* The lane that a lane reads from, as the instruction `shfl` defines it: itself if the source is out of range. Only the
 * lowest five bits of the distance count. */
enum { __JITLOAD_SHFL_IDX, __JITLOAD_SHFL_UP, __JITLOAD_SHFL_DOWN, __JITLOAD_SHFL_BFLY };

__JITLOAD_INLINE int __jitload_source(int mode, int lane, int distance, int width) {
  const int first = lane & ~(width - 1);
  int source = lane;
  distance &= 31;
  if (mode == __JITLOAD_SHFL_IDX) {
    source = first + (distance & (width - 1));
  } else if (mode == __JITLOAD_SHFL_UP) {
    source = lane - distance < first ? lane : lane - distance;
  } else if (mode == __JITLOAD_SHFL_DOWN) {
    source = lane + distance >= first + width ? lane : lane + distance;
  } else {
    source = (lane ^ distance) >= first + width ? lane : lane ^ distance;
  }
  return source < 0 || source > 31 ? lane : source;
}

/* A value of any size from the lane `source`, eight bytes at a time. */
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_shuffle(unsigned mask, const __jitload_t& value, int source, const char* name) {
  unsigned char bytes[(sizeof(__jitload_t) + 7) / 8 * 8] = {};
  __builtin_memcpy(bytes, &value, sizeof value);
  for (unsigned i = 0; i < sizeof bytes; i += 8) {
    uint64_t piece;
    const uint64_t* values;
    __builtin_memcpy(&piece, bytes + i, 8);
    const uint32_t lanes = __jitload_exchange(mask, piece, &values, name);
    if (!(lanes >> source & 1)) {
      __jitload_stop("%s reads from lane %d, which does not take part: the value is undefined on a GPU", name, source);
    }
    __builtin_memcpy(bytes + i, &values[source], 8);
  }
  __jitload_t result;
  __builtin_memcpy(&result, bytes, sizeof result);
  return result;
}

#define __JITLOAD_SHUFFLE(type, name, mode, distance)                                  \
  __JITLOAD_INLINE type name(unsigned mask, type value, distance by, int width = 32) { \
    const int source = __jitload_source(mode, (int)__jitload_lane(), (int)by, width);  \
    return __jitload_shuffle(mask, value, source, #name "()");                         \
  }
#define __JITLOAD_SHUFFLES(type)                                           \
  __JITLOAD_SHUFFLE(type, __shfl_sync, __JITLOAD_SHFL_IDX, int)            \
  __JITLOAD_SHUFFLE(type, __shfl_up_sync, __JITLOAD_SHFL_UP, unsigned)     \
  __JITLOAD_SHUFFLE(type, __shfl_down_sync, __JITLOAD_SHFL_DOWN, unsigned) \
  __JITLOAD_SHUFFLE(type, __shfl_xor_sync, __JITLOAD_SHFL_BFLY, int)
__JITLOAD_SHUFFLES(int)
__JITLOAD_SHUFFLES(unsigned)
__JITLOAD_SHUFFLES(long)
__JITLOAD_SHUFFLES(unsigned long)
__JITLOAD_SHUFFLES(long long)
__JITLOAD_SHUFFLES(unsigned long long)
__JITLOAD_SHUFFLES(float)
__JITLOAD_SHUFFLES(double)

/* Return the mask of the lanes whose predicate is true; `*lanes` gets the mask of all that took part. */
__JITLOAD_INLINE unsigned __jitload_vote(unsigned mask, int predicate, uint32_t* lanes, const char* name) {
  const uint64_t* values;
  *lanes = __jitload_exchange(mask, predicate != 0, &values, name);
  return (unsigned)values[32];
}
__JITLOAD_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
  uint32_t lanes;
  return __jitload_vote(mask, predicate, &lanes, "__ballot_sync()");
}
__JITLOAD_INLINE int __any_sync(unsigned mask, int predicate) {
  uint32_t lanes;
  return __jitload_vote(mask, predicate, &lanes, "__any_sync()") != 0;
}
__JITLOAD_INLINE int __all_sync(unsigned mask, int predicate) {
  uint32_t lanes;
  return __jitload_vote(mask, !predicate, &lanes, "__all_sync()") == 0;
}
__JITLOAD_INLINE int __uni_sync(unsigned mask, int predicate) {
  uint32_t lanes;
  const unsigned yes = __jitload_vote(mask, predicate, &lanes, "__uni_sync()");
  return yes == 0 || yes == lanes;
}

/* Return the mask of the lanes with the same value; `*lanes` gets the mask of all that took part. */
__JITLOAD_INLINE unsigned __jitload_match(unsigned mask, uint64_t value, uint32_t* lanes, const char* name) {
  const uint64_t* values;
  *lanes = __jitload_exchange(mask, value, &values, name);
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= (unsigned)((*lanes >> lane & 1) && values[lane] == value) << lane;
  return same;
}
template <class __jitload_t>
__JITLOAD_INLINE unsigned __match_any_sync(unsigned mask, __jitload_t value) {
  uint32_t lanes;
  return __jitload_match(mask, __jitload_bits(value), &lanes, "__match_any_sync()");
}
template <class __jitload_t>
__JITLOAD_INLINE unsigned __match_all_sync(unsigned mask, __jitload_t value, int* predicate) {
  uint32_t lanes;
  *predicate = __jitload_match(mask, __jitload_bits(value), &lanes, "__match_all_sync()") == lanes;
  return *predicate ? lanes : 0;
}

#define __JITLOAD_REDUCE(name, type, expression)                                                                  \
  __JITLOAD_INLINE type name(unsigned mask, type value) {                                                         \
    const uint64_t* values;                                                                                       \
    uint32_t others = __jitload_exchange(mask, (uint64_t)value, &values, #name "()") & ~(1u << __jitload_lane()); \
    type a = value;                                                                                               \
    for (; others != 0; others &= others - 1) {                                                                   \
      const type b = (type)values[__builtin_ctz(others)];                                                         \
      a = expression;                                                                                             \
    }                                                                                                             \
    return a;                                                                                                     \
  }
__JITLOAD_REDUCE(__reduce_add_sync, unsigned, a + b)
__JITLOAD_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
__JITLOAD_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
__JITLOAD_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
__JITLOAD_REDUCE(__reduce_min_sync, int, a < b ? a : b)
__JITLOAD_REDUCE(__reduce_max_sync, int, a > b ? a : b)
__JITLOAD_REDUCE(__reduce_and_sync, unsigned, a & b)
__JITLOAD_REDUCE(__reduce_or_sync, unsigned, a | b)
__JITLOAD_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef __JITLOAD_REDUCE
