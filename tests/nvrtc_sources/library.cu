// The C++ library on the device: utility, tuple, array, functional, algorithm and the rest. Compiled from C++17 on.
#include <algorithm>
#include <array>
#include <complex>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#define YES(...) static_assert((__VA_ARGS__), #__VA_ARGS__)
#define SAME(...) static_assert(std::is_same_v<__VA_ARGS__>, #__VA_ARGS__)

// utility
SAME(std::make_index_sequence<3>, std::index_sequence<0, 1, 2>); SAME(std::make_integer_sequence<int, 0>, std::integer_sequence<int>);
YES(std::make_index_sequence<1000>::size() == 1000);
YES(std::make_pair(1, 2.0f).second == 2.0f && std::pair(1, 2) < std::pair(1, 3) && std::get<0>(std::pair<int, char>(4, 'c')) == 4 && std::get<char>(std::pair<int, char>(4, 'c')) == 'c');
SAME(std::tuple_element_t<1, std::pair<int, float>>, float); SAME(std::tuple_element_t<0, const std::pair<int, float>>, const int);
YES(std::tuple_size_v<const std::array<int, 3>> == 3);
// tuple
constexpr std::tuple<int, float, char> three(1, 2.5f, 'c');
YES(std::get<0>(three) == 1 && std::get<float>(three) == 2.5f && std::tuple_size_v<decltype(three)> == 3);
YES(std::make_tuple(1, 2) == std::tuple<int, long>(1, 2) && std::make_tuple(1, 2) < std::make_tuple(1, 3) && std::make_tuple(2, 0) > std::make_tuple(1, 9));
YES(std::get<3>(std::tuple_cat(three, std::make_tuple(7L))) == 7 && std::tuple_size_v<decltype(std::tuple_cat())> == 0);
YES(std::tuple<std::tuple<int>>(std::tuple<int>(3)) == std::tuple<std::tuple<int>>(std::tuple<int>(3)));
SAME(std::tuple_element_t<2, decltype(three)>, const char); SAME(decltype(std::tuple(1, 2.0f)), std::tuple<int, float>);
struct Add { __host__ __device__ constexpr int operator()(int a, int b) const { return a + b; } int base; __host__ __device__ constexpr int plus(int x) const { return base + x; } };
YES(std::apply(Add{}, std::make_tuple(3, 4)) == 7 && std::invoke(Add{}, 3, 4) == 7 && std::make_from_tuple<std::pair<int, int>>(std::make_tuple(3, 4)).second == 4);
// functional
YES(std::plus<int>()(1, 2) == 3 && std::multiplies<>()(2, 3.5) == 7.0 && std::less<>()(1, 2) && std::negate<>()(3) == -3 && std::bit_xor<int>()(5, 1) == 4 && std::logical_not<bool>()(false));
// array
constexpr std::array<int, 4> four{3, 1, 2, 0};
YES(four.size() == 4 && four[2] == 2 && four.back() == 0 && std::get<1>(four) == 1 && four == std::array<int, 4>{3, 1, 2, 0} && std::array<int, 0>().empty());
YES(four.at(3) == 0 && *four.rbegin() == 0 && four < std::array<int, 4>{3, 1, 2, 1});
// algorithm and numeric
YES(std::min(2, 1) == 1 && std::max({1, 3, 2}) == 3 && std::clamp(5, 0, 3) == 3 && std::minmax(2, 1).first == 1 && std::max(1, 2, std::greater<int>()) == 1);
YES(*std::max_element(four.begin(), four.end()) == 3 && std::count(four.begin(), four.end(), 1) == 1 && std::find(four.begin(), four.end(), 2) == four.begin() + 2);
YES(std::accumulate(four.begin(), four.end(), 0) == 6 && std::inner_product(four.begin(), four.end(), four.begin(), 0) == 14 && std::gcd(-12, 18) == 6 && std::lcm(4, 6) == 12 && std::reduce(four.begin(), four.end(), 1, std::multiplies<>()) == 0);
__host__ __device__ constexpr bool sorts() {
  std::array<int, 9> x{5, 2, 8, 1, 9, 3, 7, 4, 6}, y{};
  std::copy(x.begin(), x.end(), y.begin());
  std::sort(x.begin(), x.end());
  if (!std::is_sorted(x.begin(), x.end()) || std::is_sorted(y.begin(), y.end())) return false;
  for (int i = 0; i < 9; ++i) if (x[i] != i + 1) return false;
  if (std::lower_bound(x.begin(), x.end(), 4) != x.begin() + 3 || std::upper_bound(x.begin(), x.end(), 4) != x.begin() + 4 || !std::binary_search(x.begin(), x.end(), 7)) return false;
  std::reverse(x.begin(), x.end());
  std::sort(x.begin(), x.end(), std::greater<>());
  std::iota(y.begin(), y.end(), 1);
  std::transform(x.begin(), x.end(), y.begin(), x.begin(), std::plus<>());
  for (int v : x) if (v != 10) return false;
  std::swap(x, y);
  int a[2] = {1, 2}, b[2] = {3, 4};
  std::swap(a, b);
  int left = 1, right = 2;
  std::tie(left, right) = std::make_tuple(right, left);
  auto [p, q] = std::make_pair(left, right);
  auto& [r, s, t, u] = four;
  return a[0] == 3 && std::exchange(left, 9) == 2 && left == 9 && p == 2 && q == 1 && r == 3 && u == 0 && x[0] == 1;
}
YES(sorts());
YES(std::distance(four.begin(), std::next(four.begin(), 3)) == 3 && std::size(four) == 4);
YES(std::to_integer<int>((std::byte(3) << 2) | std::byte(1)) == 13);
// complex
constexpr std::complex<float> i(0, 1);
YES((i * i).real() == -1 && std::conj(i).imag() == -1 && std::norm(std::complex<double>(3, 4)) == 25 && i + 1.0f == std::complex<float>(1, 1));
YES((std::complex<double>(1, 2) / std::complex<double>(3, -4)).imag() > 0.399 && sizeof(std::complex<float>) == 8);

#if __cplusplus >= 202002L
#include <bit>
#include <compare>
#include <concepts>
#include <numbers>
#include <span>
YES(std::bit_cast<unsigned>(1.0f) == 0x3f800000u && std::popcount(0xffu) == 8 && std::countl_zero((unsigned char)1) == 7 && std::countr_zero(8u) == 3 && std::bit_ceil(5u) == 8 && std::bit_floor(5u) == 4 && std::rotl((unsigned char)0x81, 1) == 3 && std::bit_width(0u) == 0 && std::has_single_bit(4ul));
template <std::integral T> __host__ __device__ constexpr int pick(T) { return 1; }
template <std::floating_point T> __host__ __device__ constexpr int pick(T) { return 2; }
YES(pick(1) == 1 && pick(1.0f) == 2 && std::regular<int> && std::invocable<Add, int, int> && std::same_as<int, int> && std::convertible_to<int, float> && !std::copyable<void> && std::totally_ordered<int> && std::derived_from<Add, Add>);
struct Version { int major, minor; __host__ __device__ constexpr auto operator<=>(const Version& v) const { return major != v.major ? major <=> v.major : minor <=> v.minor; } };
YES(Version{1, 2} < Version{1, 3} && (1 <=> 2) < 0 && (2.0 <=> 1.0) > 0 && (1 <=> 1) == 0 && std::is_eq(1 <=> 1));
YES(std::numbers::pi > 3.14 && std::midpoint(1, 4) == 2 && std::cmp_less(-1, 1u) && !std::cmp_equal(-1, ~0u));
YES(std::span<const int>(four).size() == 4 && std::span<const int>(four).subspan(1, 2)[1] == 2 && std::span<const int, 4>(four).extent == 4);
#endif

__global__ void kernel(std::pair<int, float>* p, std::tuple<int, float> t, std::array<float, 4> a, std::complex<float>* z, int n) {
  int x[3] = {3, 1, 2};
  std::sort(x, x + 3);
  for (auto v : {1, 2, 3}) n += v;
  p->first = std::min(n, x[0]) + std::get<0>(t) + static_cast<int>(a.at(n));
  p->second = std::ref(n).get() + std::invoke(&Add::plus, Add{1}, 2) + std::invoke(&Add::base, Add{1});
  *z = std::exp(*z) * std::polar(1.0f, std::arg(*z)) + std::sqrt(*z) / std::abs(*z) + std::pow(*z, 2.0f) + std::pow(*z, *z) + std::pow(2.0f, *z) + std::complex<float>(std::pow(*z, 2));
  SAME(decltype(std::pow(*z, 2)), std::complex<double>); SAME(decltype(std::pow(*z, 2.0f)), std::complex<float>);
  int moved = std::move(n);
  std::fill_n(std::addressof(x[0]), 3, std::forward<int>(moved));
  std::pair<std::tuple<int>, std::tuple<int, int>> q(std::piecewise_construct, std::make_tuple(x[0]), std::make_tuple(x[1], x[2]));
  p->first += std::get<0>(q.first) + std::get<1>(q.second);
}
