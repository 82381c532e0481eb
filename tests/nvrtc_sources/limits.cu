// <limits>, <climits>, <cfloat> and <cstdint> against each other and against the bits. Compiled from C++11 on.
#include <cfloat>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#define YES(...) static_assert((__VA_ARGS__), #__VA_ARGS__)
#define SAME(...) static_assert(std::is_same<__VA_ARGS__>::value, #__VA_ARGS__)
template <class T> using L = std::numeric_limits<T>;

#define INTEGER(T, low, high) \
  YES(L<T>::min() == low && L<T>::max() == high && L<T>::lowest() == low && L<T>::is_integer && L<T>::is_exact); \
  YES(L<T>::is_specialized && L<T>::is_bounded && !L<T>::has_infinity && L<T>::is_signed == std::is_signed<T>::value); \
  YES(L<T>::digits == int(sizeof(T)) * CHAR_BIT - L<T>::is_signed && L<T>::radix == 2); \
  SAME(decltype(L<T>::max()), T)
INTEGER(char, CHAR_MIN, CHAR_MAX);
INTEGER(signed char, SCHAR_MIN, SCHAR_MAX);
INTEGER(unsigned char, 0, UCHAR_MAX);
INTEGER(short, SHRT_MIN, SHRT_MAX);
INTEGER(unsigned short, 0, USHRT_MAX);
INTEGER(int, INT_MIN, INT_MAX);
INTEGER(unsigned, 0, UINT_MAX);
INTEGER(long, LONG_MIN, LONG_MAX);
INTEGER(unsigned long, 0, ULONG_MAX);
INTEGER(long long, LLONG_MIN, LLONG_MAX);
INTEGER(unsigned long long, 0, ULLONG_MAX);
INTEGER(wchar_t, WCHAR_MIN, WCHAR_MAX);
INTEGER(char16_t, 0, 65535);
INTEGER(char32_t, 0, 4294967295);
YES(L<bool>::max() && !L<bool>::min() && L<bool>::digits == 1);
YES(L<int>::digits10 == 9 && L<unsigned>::digits10 == 9 && L<long>::digits10 == 18 && L<unsigned long>::digits10 == 19);
YES(L<signed char>::digits10 == 2 && L<unsigned char>::digits10 == 2 && L<short>::digits10 == 4);
YES(L<unsigned>::is_modulo && !L<int>::is_modulo && L<const int>::max() == INT_MAX && L<volatile float>::is_iec559);

#define FLOATING(T, P) \
  YES(L<T>::max() == P##_MAX && L<T>::min() == P##_MIN && L<T>::lowest() == -P##_MAX && L<T>::epsilon() == P##_EPSILON); \
  YES(L<T>::denorm_min() == P##_TRUE_MIN && L<T>::digits == P##_MANT_DIG && L<T>::digits10 == P##_DIG); \
  YES(L<T>::max_digits10 == P##_DECIMAL_DIG && L<T>::min_exponent == P##_MIN_EXP && L<T>::max_exponent == P##_MAX_EXP); \
  YES(L<T>::min_exponent10 == P##_MIN_10_EXP && L<T>::max_exponent10 == P##_MAX_10_EXP && L<T>::radix == FLT_RADIX); \
  YES(L<T>::is_iec559 && L<T>::has_infinity && L<T>::has_quiet_NaN && !L<T>::is_integer && L<T>::is_signed); \
  YES(L<T>::infinity() > L<T>::max() && -L<T>::infinity() < L<T>::lowest()); \
  YES(L<T>::quiet_NaN() != L<T>::quiet_NaN()); \
  YES(L<T>::round_error() == T(0.5) && L<T>::round_style == std::round_to_nearest && L<T>::has_denorm == std::denorm_present)
FLOATING(float, FLT);
FLOATING(double, DBL);
YES(__builtin_bit_cast(unsigned, L<float>::infinity()) == 0x7f800000u && __builtin_bit_cast(unsigned, L<float>::quiet_NaN()) == 0x7fc00000u);
YES(__builtin_bit_cast(unsigned, L<float>::signaling_NaN()) == 0x7fa00000u && __builtin_bit_cast(unsigned, FLT_MIN) == 0x00800000u);
YES(__builtin_bit_cast(unsigned long, L<double>::infinity()) == 0x7ff0000000000000u && __builtin_bit_cast(unsigned, FLT_TRUE_MIN) == 1);
YES(__builtin_bit_cast(unsigned, FLT_MAX) == 0x7f7fffffu && __builtin_bit_cast(unsigned long, DBL_MAX) == 0x7fefffffffffffffu);
YES(L<float>::epsilon() == 1.0f / (1 << 23) && 1.0 + L<double>::epsilon() != 1.0 && 1.0 + L<double>::epsilon() / 2 == 1.0);
struct Other {};
YES(!L<Other>::is_specialized && !L<Other>::has_infinity && L<Other>::digits == 0);

// The types of Linux LP64, which mangled parameter types depend on.
SAME(int8_t, signed char); SAME(uint8_t, unsigned char); SAME(int16_t, short); SAME(uint16_t, unsigned short);
SAME(int32_t, int); SAME(uint32_t, unsigned); SAME(int64_t, long); SAME(uint64_t, unsigned long);
SAME(int_least32_t, int); SAME(int_fast8_t, signed char); SAME(int_fast16_t, long); SAME(uint_fast32_t, unsigned long);
SAME(intptr_t, long); SAME(uintptr_t, unsigned long); SAME(intmax_t, long); SAME(uintmax_t, unsigned long);
SAME(size_t, unsigned long); SAME(ptrdiff_t, long); SAME(std::size_t, size_t); SAME(std::int64_t, int64_t); SAME(std::nullptr_t, decltype(nullptr));
SAME(decltype(INT64_MAX), long); SAME(decltype(UINT64_MAX), unsigned long); SAME(decltype(INT64_C(1)), long); SAME(decltype(UINT32_C(1)), unsigned); SAME(decltype(SIZE_MAX), size_t); SAME(decltype(LONG_MAX), long); SAME(decltype(ULLONG_MAX), unsigned long long);
#define RANGE(T, low, high) YES(L<T>::min() == low && L<T>::max() == high)
RANGE(int8_t, INT8_MIN, INT8_MAX); RANGE(uint8_t, 0, UINT8_MAX); RANGE(int16_t, INT16_MIN, INT16_MAX); RANGE(uint16_t, 0, UINT16_MAX);
RANGE(int32_t, INT32_MIN, INT32_MAX); RANGE(uint32_t, 0, UINT32_MAX); RANGE(int64_t, INT64_MIN, INT64_MAX); RANGE(uint64_t, 0, UINT64_MAX);
RANGE(int_fast16_t, INT_FAST16_MIN, INT_FAST16_MAX); RANGE(uint_least16_t, 0, UINT_LEAST16_MAX); RANGE(intptr_t, INTPTR_MIN, INTPTR_MAX); RANGE(uintmax_t, 0, UINTMAX_MAX);
RANGE(ptrdiff_t, PTRDIFF_MIN, PTRDIFF_MAX); RANGE(size_t, 0, SIZE_MAX); RANGE(wchar_t, WCHAR_MIN, WCHAR_MAX);
struct Pair { char a; double b; };
YES(offsetof(Pair, b) == 8 && alignof(max_align_t) == 16 && CHAR_BIT == 8);
__global__ void wide(int64_t* x, uint64_t y, size_t n) { x[n] = static_cast<int64_t>(y); }
