/* Loops whose turns stand outside and the block's threads inside, as cpu/split_turns.py writes them: where each thread
 * begins, where all of them end.
 *
 * Places are compared as `long long`, in which nothing wraps: a loop whose counter would wrap in its own type, or that is
 * compared as another one than it looks, is gone through thread by thread.
 */
#ifndef JITLOAD_CPU_TURNS_H_
#define JITLOAD_CPU_TURNS_H_

#define __JITLOAD_FEWEST_THREADS 4 /* that are worth their turns */
#define __JITLOAD_NOWHERE 0x7fffffffffffffffll

template <class __jitload_t>
struct __jitload_whole {
  static constexpr bool is_whole = (__jitload_t)0.5 == (__jitload_t)0 && (__jitload_t)2 != (__jitload_t)1;
  static constexpr bool is_signed = (__jitload_t)-1 < (__jitload_t)0;
  static constexpr unsigned long long most =
      is_signed ? (1ull << (8 * sizeof(__jitload_t) - 1)) - 1 : ~0ull >> (64 - 8 * sizeof(__jitload_t));
};

/* The first number that a counter does not reach; nowhere where that is no number that it could be compared with. */
template <class __jitload_u, class __jitload_t>
__JITLOAD_INLINE long long __jitload_limit(__jitload_u given, bool reaches, __jitload_t start) {
  typedef decltype(start + given) common;
  typedef __jitload_whole<common> whole;
  const common limit = (common)given;
  const bool is_one = whole::is_whole && (whole::is_signed || (start >= 0 && (unsigned long long)limit < __JITLOAD_NOWHERE));
  return is_one && (long long)limit < __JITLOAD_NOWHERE ? (long long)limit + reaches : __JITLOAD_NOWHERE;
}

template <class __jitload_u>
__JITLOAD_INLINE long long __jitload_step(__jitload_u step) {
  return __jitload_whole<decltype(+step)>::is_whole ? (long long)step : 0;
}

/* Whether threads that begin side by side only meet numbers on their way that their counter's type has. */
template <class __jitload_t>
__JITLOAD_INLINE bool __jitload_walks(long long threads, long long limit, long long step) {
  typedef __jitload_whole<__jitload_t> whole;
  long long last;
  if (threads < __JITLOAD_FEWEST_THREADS || step <= 0 || __builtin_add_overflow(limit, step, &last)) return false;
  return whole::is_whole && (last < 0 || (unsigned long long)last <= whole::most);
}

/* The end of a run of threads each of which begins one behind the one before it. */
template <class __jitload_t>
__JITLOAD_INLINE size_t __jitload_run(const __jitload_t* starts, size_t from, size_t end) {
  if (from == 0 && (long long)starts[end - 1] - (long long)starts[0] == (long long)end - 1) {
    unsigned long long differs = 0;
    for (size_t x = 0; x < end; ++x) {
      differs |= (unsigned long long)(__jitload_t)(starts[x] - starts[0] - (__jitload_t)x);
    }
    if (differs == 0) return end;
  }
  size_t to = from + 1;
  while (to < end && (long long)starts[to] - 1 == (long long)starts[to - 1]) ++to;
  return to;
}
/* The end of a run of threads that have the same. */
__JITLOAD_INLINE size_t __jitload_alike(const long long* values, size_t from, size_t end) {
  unsigned long long differs = 0;
  for (size_t x = from; x < end; ++x) differs |= (unsigned long long)(values[x] ^ values[from]);
  size_t to = from + 1;
  while (differs && to < end && values[to] == values[from]) ++to;
  return differs ? to : end;
}

/* Whether a number that threads are compared with is one of theirs. */
template <class __jitload_u>
__JITLOAD_INLINE bool __jitload_is_near(const __jitload_u& limit) {
  return __jitload_whole<decltype(+limit)>::is_whole && limit > 0 && limit <= 1024;
}

/* What a counter is behind its loop. */
__JITLOAD_INLINE long long __jitload_behind(long long start, long long limit, long long step) {
  return start < limit ? start + (limit - start + step - 1) / step * step : start;
}

#endif /* JITLOAD_CPU_TURNS_H_ */
