/* Shuffles, votes, matches and reductions of a warp, all over one exchange of 64-bit values. */
#ifndef JITLOAD_CPU_WARP_H_
#define JITLOAD_CPU_WARP_H_

template <class __jitload_t>
__JITLOAD_INLINE uint64_t __jitload_bits(const __jitload_t& value) {
  static_assert(sizeof(__jitload_t) <= 8, "a warp operation takes at most 64 bits");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_value(uint64_t bits) {
  __jitload_t value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/* Where a lane reads from, as the instruction `shfl` works it out: its own value where the source is out of range. */
enum { __JITLOAD_AT, __JITLOAD_UP, __JITLOAD_DOWN, __JITLOAD_XOR };

__JITLOAD_INLINE int __jitload_source(int way, int lane, int by, int width) {
  const int first = lane & ~(width - 1);
  int source = lane;
  if (way == __JITLOAD_AT) {
    source = first + (by & (width - 1));
  } else if (way == __JITLOAD_UP) {
    source = lane - by < first ? lane : lane - by;
  } else if (way == __JITLOAD_DOWN) {
    source = lane + by >= first + width ? lane : lane + by;
  } else {
    source = (lane ^ by) >= first + width ? lane : lane ^ by;
  }
  return source < 0 || source > 31 ? lane : source;
}

template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_shuffle(int way, unsigned mask, __jitload_t var, int by, int width, const char* what) {
  const int lane = (int)__jitload_lane();
  const uint64_t* values;
  const uint32_t came = __jitload_exchange(mask, __jitload_bits(var), &values, what);
  const int source = __jitload_source(way, lane, by, width);
  if (!(came >> source & 1)) {
    __jitload_stop("%s reads from lane %d, which does not take part: the value is undefined on a GPU", what, source);
  }
  return __jitload_value<__jitload_t>(values[source]);
}

/* A shuffle or a vote of all lanes of all warps, for the loops that cpu/split.py writes: what each gives, and gets. Lanes
 * of up to four bytes lie four bytes apart, so that a vector holds as many as it can. */
template <unsigned __jitload_size>
struct __jitload_lane_type {
  typedef uint64_t type;
};
template <>
struct __jitload_lane_type<4> {
  typedef uint32_t type;
};
template <class __jitload_t, unsigned __jitload_size = sizeof(__jitload_t)>
using __jitload_lane_of = typename __jitload_lane_type<(__jitload_size <= 4 ? 4 : 8)>::type;
template <class __jitload_t>
__JITLOAD_INLINE __jitload_lane_of<__jitload_t> __jitload_lane_bits(const __jitload_t& value) {
  static_assert(sizeof(__jitload_t) <= 8, "a warp operation takes at most 64 bits");
  __jitload_lane_of<__jitload_t> bits; /* nothing is set twice: the compiler is to see vectors */
  if (sizeof value < sizeof bits) bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}
__JITLOAD_INLINE void __jitload_put(unsigned long long* lanes, size_t at, uint32_t bits) { ((uint32_t*)lanes)[at] = bits; }
__JITLOAD_INLINE void __jitload_put(unsigned long long* lanes, size_t at, uint64_t bits) { lanes[at] = bits; }
struct __jitload_slot {
  const unsigned long long* lanes;
  size_t at;
};
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_value(const __jitload_slot& slot) {
  const __jitload_lane_of<__jitload_t> bits = ((const __jitload_lane_of<__jitload_t>*)slot.lanes)[slot.at];
  __jitload_t value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/* A whole warp whose lanes all read as far away, in vectors; false where it is another case. */
template <class __jitload_l>
__JITLOAD_INLINE bool __jitload_move(int kind, const __jitload_l* give, int by, __jitload_l* got) {
  if (by < 0 || by > 31) return false;
  if (kind == __JITLOAD_AT) {
    for (int lane = 0; lane < 32; ++lane) got[lane] = give[by];
  } else if (kind == __JITLOAD_UP) {
    for (int lane = 0; lane < by; ++lane) got[lane] = give[lane];
    for (int lane = by; lane < 32; ++lane) got[lane] = give[lane - by];
  } else if (kind == __JITLOAD_DOWN) {
    for (int lane = 0; lane < 32; ++lane) { /* what lies behind a warp is read, and not taken */
      const __jitload_l far = give[lane + by], near = give[lane];
      got[lane] = lane + by < 32 ? far : near;
    }
  } else {
    typedef __jitload_l vector __attribute__((vector_size(32), aligned(alignof(__jitload_l)), may_alias));
    constexpr int in_one = 32 / sizeof(__jitload_l), last = in_one - 1;
    const vector* from = (const vector*)give;
    vector* to = (vector*)got;
    const int far = by / in_one, near = by & last;
    vector order;
#define __JITLOAD_MOVE(x)                                                                    \
  for (int lane = 0; lane < in_one; ++lane) order[lane] = (__jitload_l)(lane ^ ((x) & last)); \
  for (int i = 0; i < 32 / in_one; ++i) to[i] = __builtin_shuffle(from[i ^ far], order)
    if (near == 0) {
      for (int i = 0; i < 32 / in_one; ++i) to[i] = from[i ^ far];
    } else if (near == 1) { /* an order that the compiler knows is one instruction */
      __JITLOAD_MOVE(1);
    } else if (near == 2) {
      __JITLOAD_MOVE(2);
    } else if (near == 4) {
      __JITLOAD_MOVE(4);
    } else {
      __JITLOAD_MOVE(near);
    }
#undef __JITLOAD_MOVE
  }
  return true;
}
template <class __jitload_l>
__JITLOAD_INLINE bool __jitload_move_all(int kind, const __jitload_l* give, int by, int width, __jitload_l* got, unsigned count) {
  if (kind > __JITLOAD_XOR || width != 32 || count % 32 != 0) return false;
  for (unsigned first = 0; first < count; first += 32) {
    if (!__jitload_move(kind, give + first, by, got + first)) return false;
  }
  return true;
}
template <class __jitload_l, class __jitload_b, class __jitload_w>
__JITLOAD_INLINE bool __jitload_move_all(int, const __jitload_l*, const __jitload_b&, const __jitload_w&, __jitload_l*, unsigned) {
  return false;
}

__JITLOAD_INLINE int __jitload_of(int value, unsigned) { return value; }
__JITLOAD_INLINE int __jitload_of(const int* values, unsigned thread) { return values[thread]; }
template <class __jitload_l, class __jitload_b, class __jitload_w>
__JITLOAD_INLINE void __jitload_exchange_lanes(int kind, const __jitload_l* give, __jitload_b by, __jitload_w width,
                                               __jitload_l* got, const unsigned char* gone, const jitload_cpu_place* place) {
  const unsigned count = place->block[0] * place->block[1] * place->block[2];
  if (!gone && __jitload_move_all(kind, give, by, width, got, count)) return;
  for (unsigned first = 0; first < count; first += 32) {
    const unsigned lanes = count - first < 32 ? count - first : 32;
    uint32_t came = lanes == 32 ? ~0u : (1u << lanes) - 1, yes = 0;
    for (unsigned lane = 0; gone && lane < lanes; ++lane) came &= ~((uint32_t)gone[first + lane] << lane);
    for (unsigned lane = 0; kind > __JITLOAD_XOR && lane < lanes; ++lane) yes |= (uint32_t)(give[first + lane] != 0) << lane;
    yes &= came;
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if (!(came >> lane & 1)) continue;
      if (kind > __JITLOAD_XOR) {
        got[first + lane] = (__jitload_l)(kind == 4 ? yes : kind == 5 ? yes != 0 : yes == came);
        continue;
      }
      const int source = __jitload_source(kind, (int)lane, __jitload_of(by, first + lane), __jitload_of(width, first + lane));
      if (!(came >> source & 1)) {
        const unsigned rank = first + lane, row = rank / place->block[0];
        const uint32_t at[3] = {rank % place->block[0], row % place->block[1], row / place->block[1]};
        static const char* const names[] = {"", "_up", "_down", "_xor"};
        jitload_cpu_stop(at, "__shfl%s_sync() reads from lane %d, which does not take part: the value is undefined on a GPU",
                         names[kind], source);
      }
      got[first + lane] = give[first + source];
    }
  }
}

template <class __jitload_b, class __jitload_w>
__JITLOAD_INLINE void __jitload_exchange_all(int kind, const unsigned long long* give, __jitload_b by, __jitload_w width,
                                             unsigned long long* got, const unsigned char* gone,
                                             const jitload_cpu_place* place, size_t size) {
  if (size == 4) {
    __jitload_exchange_lanes(kind, (const uint32_t*)give, by, width, (uint32_t*)got, gone, place);
  } else {
    __jitload_exchange_lanes(kind, give, by, width, got, gone, place);
  }
}

#define __JITLOAD_SHUFFLES(type)                                                                          \
  __JITLOAD_INLINE type __shfl_sync(unsigned mask, type var, int lane, int width = 32) {                  \
    return __jitload_shuffle(__JITLOAD_AT, mask, var, lane, width, "__shfl_sync()");                      \
  }                                                                                                       \
  __JITLOAD_INLINE type __shfl_up_sync(unsigned mask, type var, unsigned delta, int width = 32) {         \
    return __jitload_shuffle(__JITLOAD_UP, mask, var, (int)delta, width, "__shfl_up_sync()");             \
  }                                                                                                       \
  __JITLOAD_INLINE type __shfl_down_sync(unsigned mask, type var, unsigned delta, int width = 32) {       \
    return __jitload_shuffle(__JITLOAD_DOWN, mask, var, (int)delta, width, "__shfl_down_sync()");         \
  }                                                                                                       \
  __JITLOAD_INLINE type __shfl_xor_sync(unsigned mask, type var, int lanes, int width = 32) {             \
    return __jitload_shuffle(__JITLOAD_XOR, mask, var, lanes, width, "__shfl_xor_sync()");                \
  }
__JITLOAD_SHUFFLES(int)
__JITLOAD_SHUFFLES(unsigned)
__JITLOAD_SHUFFLES(long)
__JITLOAD_SHUFFLES(unsigned long)
__JITLOAD_SHUFFLES(long long)
__JITLOAD_SHUFFLES(unsigned long long)
__JITLOAD_SHUFFLES(float)
__JITLOAD_SHUFFLES(double)

/* The lanes that came with a predicate that holds, and in `came` all of them. */
__JITLOAD_INLINE unsigned __jitload_vote(unsigned mask, int predicate, uint32_t* came, const char* what) {
  const uint64_t* values;
  *came = __jitload_exchange(mask, predicate != 0, &values, what);
  return (unsigned)values[32];
}
__JITLOAD_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
  uint32_t came;
  return __jitload_vote(mask, predicate, &came, "__ballot_sync()");
}
__JITLOAD_INLINE int __any_sync(unsigned mask, int predicate) {
  uint32_t came;
  return __jitload_vote(mask, predicate, &came, "__any_sync()") != 0;
}
__JITLOAD_INLINE int __all_sync(unsigned mask, int predicate) {
  uint32_t came;
  return __jitload_vote(mask, !predicate, &came, "__all_sync()") == 0;
}
__JITLOAD_INLINE int __uni_sync(unsigned mask, int predicate) {
  uint32_t came;
  const unsigned yes = __jitload_vote(mask, predicate, &came, "__uni_sync()");
  return yes == 0 || yes == came;
}

template <class __jitload_t>
__JITLOAD_INLINE unsigned __match_any_sync(unsigned mask, __jitload_t value) {
  const uint64_t* values;
  const uint64_t own = __jitload_bits(value);
  const uint32_t came = __jitload_exchange(mask, own, &values, "__match_any_sync()");
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) result |= (unsigned)((came >> lane & 1) && values[lane] == own) << lane;
  return result;
}
template <class __jitload_t>
__JITLOAD_INLINE unsigned __match_all_sync(unsigned mask, __jitload_t value, int* predicate) {
  const uint64_t* values;
  const uint64_t own = __jitload_bits(value);
  const uint32_t came = __jitload_exchange(mask, own, &values, "__match_all_sync()");
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= (unsigned)((came >> lane & 1) && values[lane] == own) << lane;
  *predicate = same == came;
  return *predicate ? came : 0;
}

#define __JITLOAD_REDUCE(name, type, expression)                                                          \
  __JITLOAD_INLINE type name(unsigned mask, type value) {                                                 \
    const uint64_t* values;                                                                               \
    const uint32_t came = __jitload_exchange(mask, __jitload_bits(value), &values, #name "()");           \
    bool is_first = true;                                                                                 \
    type a = 0;                                                                                           \
    for (int lane = 0; lane < 32; ++lane) {                                                               \
      if (!(came >> lane & 1)) continue;                                                                  \
      const type b = __jitload_value<type>(values[lane]);                                                 \
      a = is_first ? b : (type)(expression);                                                              \
      is_first = false;                                                                                   \
    }                                                                                                     \
    return a;                                                                                             \
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

#endif /* JITLOAD_CPU_WARP_H_ */
