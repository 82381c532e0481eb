// Every trait of <type_traits>, checked by the compiler itself. Compiled from C++17 on.
#include <type_traits>

#define YES(...) static_assert((__VA_ARGS__), #__VA_ARGS__)
#define NO(...) static_assert(!(__VA_ARGS__), #__VA_ARGS__)
#define SAME(...) static_assert(std::is_same_v<__VA_ARGS__>, #__VA_ARGS__)
using namespace std;

enum Plain { A };
enum class Scoped : unsigned char { B };
enum Wide : unsigned long long { C };
union Union { int a; float b; };
struct Empty {};
struct Base { __device__ virtual ~Base() {} };
struct Derived : Base { int x; };
struct Abstract { __device__ virtual void f() = 0; };
struct Final final {};
struct Pod { int a; char b; };
struct NoCopy { NoCopy(const NoCopy&) = delete; NoCopy& operator=(const NoCopy&) = delete; };
struct Throws { __device__ Throws(); __device__ Throws(const Throws&); __device__ Throws(Throws&&) noexcept(false); __device__ ~Throws() noexcept(false); };
struct Explicit { __device__ explicit Explicit(int) {} };
struct FromInt { __device__ FromInt(int) noexcept {} };
struct Private { private: __device__ ~Private(); };
struct Swapped { NoCopy* p; };
struct Call { __device__ int operator()(float) noexcept; __device__ double operator()(int, int); };
struct Member { int data; __device__ int method(float) const; __device__ int qualified() &; };

// Primary categories
YES(is_void_v<void> && is_void_v<const volatile void>); NO(is_void_v<int>);
YES(is_null_pointer_v<decltype(nullptr)> && is_null_pointer_v<const decltype(nullptr)>); NO(is_null_pointer_v<int*>);
YES(is_integral_v<bool> && is_integral_v<const char> && is_integral_v<unsigned long long> && is_integral_v<char32_t>);
NO(is_integral_v<float> || is_integral_v<Plain> || is_integral_v<int&> || is_integral_v<Pod>);
YES(is_floating_point_v<const float> && is_floating_point_v<long double>); NO(is_floating_point_v<int>);
YES(is_array_v<int[]> && is_array_v<int[3]>); NO(is_array_v<int*>);
YES(is_pointer_v<int*> && is_pointer_v<void* const> && is_pointer_v<void (*)()>); NO(is_pointer_v<int Pod::*> || is_pointer_v<int[2]>);
YES(is_lvalue_reference_v<int&>); NO(is_lvalue_reference_v<int&&>); YES(is_rvalue_reference_v<int&&>); YES(is_reference_v<int&>); NO(is_reference_v<int>);
YES(is_member_object_pointer_v<int Pod::*>); NO(is_member_object_pointer_v<int (Pod::*)()>);
YES(is_member_function_pointer_v<int (Member::*)(float) const> && is_member_function_pointer_v<int (Member::* const)() &>);
YES(is_member_pointer_v<int Pod::*>); NO(is_member_pointer_v<int*>);
YES(is_enum_v<Plain> && is_enum_v<Scoped>); NO(is_enum_v<int>); YES(is_union_v<Union>); NO(is_union_v<Pod>);
YES(is_class_v<Pod> && is_class_v<const Final>); NO(is_class_v<Union> || is_class_v<Plain>);
YES(is_function_v<void()> && is_function_v<int(float) const> && is_function_v<void() &&> && is_function_v<void(...) noexcept>);
NO(is_function_v<int> || is_function_v<int&> || is_function_v<void (*)()> || is_function_v<void>);
// Composite categories
YES(is_arithmetic_v<const bool> && is_fundamental_v<void> && is_fundamental_v<decltype(nullptr)>); NO(is_arithmetic_v<Plain>);
YES(is_object_v<int> && is_object_v<Pod[2]>); NO(is_object_v<int&> || is_object_v<void> || is_object_v<void()>);
YES(is_scalar_v<int*> && is_scalar_v<Plain> && is_scalar_v<int Pod::*>); NO(is_scalar_v<Pod>); YES(is_compound_v<Pod>); NO(is_compound_v<int>);
// Properties
YES(is_const_v<const int>); NO(is_const_v<const int&> || is_const_v<const int*>); YES(is_volatile_v<volatile int>);
YES(is_trivial_v<Pod> && is_trivially_copyable_v<Pod> && is_standard_layout_v<Pod>); NO(is_trivial_v<Base> || is_trivially_copyable_v<Throws>);
YES(is_empty_v<Empty>); NO(is_empty_v<Pod>); YES(is_polymorphic_v<Base>); YES(is_abstract_v<Abstract>); NO(is_abstract_v<Base>);
YES(is_final_v<Final>); NO(is_final_v<Pod>); YES(is_aggregate_v<Pod> && is_aggregate_v<int[2]>); NO(is_aggregate_v<Base>);
YES(is_signed_v<int> && is_signed_v<float> && is_signed_v<const long>); NO(is_signed_v<unsigned> || is_signed_v<Pod> || is_signed_v<Plain>);
YES(is_unsigned_v<unsigned char> && is_unsigned_v<bool>); NO(is_unsigned_v<int> || is_unsigned_v<float>);
YES(has_virtual_destructor_v<Base>); NO(has_virtual_destructor_v<Pod>);
YES(has_unique_object_representations_v<int>); NO(has_unique_object_representations_v<Pod>);
// Construction, assignment, destruction
YES(is_constructible_v<FromInt, int> && is_constructible_v<int, float> && is_constructible_v<Pod>); NO(is_constructible_v<FromInt> || is_constructible_v<Pod, void*>);
YES(is_default_constructible_v<int>); NO(is_default_constructible_v<FromInt> || is_default_constructible_v<int&>);
YES(is_copy_constructible_v<int>); NO(is_copy_constructible_v<NoCopy> || is_copy_constructible_v<void>);
YES(is_move_constructible_v<Pod>); NO(is_move_constructible_v<NoCopy>);
YES(is_trivially_copy_constructible_v<Pod> && is_trivially_default_constructible_v<int> && is_trivially_constructible_v<int, int>); NO(is_trivially_copy_constructible_v<Throws>);
YES(is_nothrow_constructible_v<FromInt, int> && is_nothrow_move_constructible_v<int>); NO(is_nothrow_default_constructible_v<Throws> || is_nothrow_move_constructible_v<Throws>);
YES(is_assignable_v<int&, float>); NO(is_assignable_v<int, int> || is_assignable_v<const int&, int>);
YES(is_copy_assignable_v<Pod> && is_move_assignable_v<int> && is_trivially_copy_assignable_v<Pod> && is_nothrow_move_assignable_v<int>); NO(is_copy_assignable_v<NoCopy> || is_copy_assignable_v<const int>);
YES(is_destructible_v<int> && is_trivially_destructible_v<Pod> && is_nothrow_destructible_v<Pod>); NO(is_destructible_v<Private> || is_nothrow_destructible_v<Throws> || is_destructible_v<void> || is_trivially_destructible_v<Base>);
YES(is_swappable_v<int> && is_swappable_v<int[3]> && is_nothrow_swappable_v<int> && is_swappable_with_v<int&, int&>); NO(is_swappable_v<NoCopy> || is_swappable_v<const int> || is_swappable_with_v<int, int> || is_swappable_v<void>);
// Relations
YES(is_same_v<int, signed>); NO(is_same_v<int, const int>); YES(is_base_of_v<Base, Derived> && is_base_of_v<Base, const Base>); NO(is_base_of_v<Derived, Base> || is_base_of_v<int, int>);
YES(is_convertible_v<int, float> && is_convertible_v<int, FromInt> && is_convertible_v<Derived*, Base*> && is_convertible_v<void, void> && is_convertible_v<int[2], const int*>);
NO(is_convertible_v<int, Explicit> || is_convertible_v<int, void> || is_convertible_v<void, int> || is_convertible_v<int, int[2]> || is_convertible_v<Base*, Derived*> || is_convertible_v<int, void()>);
// Calls
YES(is_invocable_v<Call, float> && is_invocable_v<Call, int, int> && is_invocable_v<int (*)(float), int>); NO(is_invocable_v<Call> || is_invocable_v<int>);
YES(is_invocable_v<int (Member::*)(float) const, const Member&, int> && is_invocable_v<int Member::*, Member*> && is_invocable_v<int (Member::*)() &, Member&>); NO(is_invocable_v<int (Member::*)() &, Member>);
YES(is_invocable_r_v<long, Call, float> && is_invocable_r_v<void, Call, float> && is_nothrow_invocable_v<Call, float>); NO(is_invocable_r_v<Pod, Call, float> || is_nothrow_invocable_v<Call, int, int>);
YES(is_nothrow_invocable_r_v<long, Call, float>);
SAME(invoke_result_t<Call, float>, int); SAME(invoke_result_t<Call, int, int>, double); SAME(invoke_result_t<int Member::*, Member&>, int&);
// Values
YES(alignment_of_v<double> == 8 && rank_v<int[2][3]> == 2 && rank_v<int[]> == 1 && extent_v<int[2][3]> == 2 && extent_v<int[2][3], 1> == 3 && extent_v<int[]> == 0);
// Transformations
SAME(remove_const_t<const volatile int>, volatile int); SAME(remove_volatile_t<volatile int>, int); SAME(remove_cv_t<const volatile int*>, const volatile int*);
SAME(add_const_t<int>, const int); SAME(add_cv_t<int>, const volatile int); SAME(add_volatile_t<int>, volatile int);
SAME(remove_reference_t<int&&>, int); SAME(add_lvalue_reference_t<int>, int&); SAME(add_lvalue_reference_t<void>, void); SAME(add_rvalue_reference_t<int&>, int&); SAME(add_lvalue_reference_t<int() const>, int() const);
SAME(remove_pointer_t<int* const>, int); SAME(remove_pointer_t<int>, int); SAME(add_pointer_t<int&>, int*); SAME(add_pointer_t<void>, void*); SAME(add_pointer_t<int() const>, int() const);
SAME(remove_extent_t<int[2][3]>, int[3]); SAME(remove_all_extents_t<int[][3]>, int);
SAME(make_signed_t<unsigned>, int); SAME(make_unsigned_t<const long long>, const unsigned long long); SAME(make_unsigned_t<Scoped>, unsigned char); SAME(make_signed_t<char>, signed char); SAME(make_unsigned_t<long>, unsigned long); SAME(make_signed_t<wchar_t>, int); SAME(make_unsigned_t<const Wide>, const unsigned long);
SAME(decay_t<const int&>, int); SAME(decay_t<int[3]>, int*); SAME(decay_t<const int (&)[3]>, const int*); SAME(decay_t<void(int)>, void (*)(int));
SAME(common_type_t<int, float>, float); SAME(common_type_t<char, short, long>, long); SAME(common_type_t<const int&>, int); SAME(common_type_t<Derived*, Base*>, Base*);
SAME(underlying_type_t<Scoped>, unsigned char); SAME(conditional_t<true, int, float>, int); SAME(enable_if_t<true, int>, int); SAME(void_t<int, Pod>, void);
YES(sizeof(aligned_storage_t<12, 4>) == 12 && alignof(aligned_storage_t<12, 16>) == 16 && aligned_union<1, int, double>::alignment_value == 8);
YES(conjunction_v<true_type, is_same<int, int>>); NO(conjunction_v<true_type, false_type>); YES(disjunction_v<false_type, true_type>); YES(negation_v<false_type>); YES(conjunction_v<>); NO(disjunction_v<>);
YES(bool_constant<true>() && integral_constant<int, 3>()() == 3);
template <class T, class = void> struct HasUnderlying : false_type {};
template <class T> struct HasUnderlying<T, void_t<underlying_type_t<T>>> : true_type {};
YES(HasUnderlying<Plain>::value); NO(HasUnderlying<int>::value);
template <class T, class = void> struct HasCommon : false_type {};
template <class T> struct HasCommon<T, void_t<common_type_t<T, int>>> : true_type {};
YES(HasCommon<float>::value); NO(HasCommon<Pod>::value);
#if __cplusplus >= 202002L
SAME(remove_cvref_t<const int&>, int); SAME(type_identity_t<int>, int); SAME(unwrap_ref_decay_t<const int&>, int);
YES(is_bounded_array_v<int[2]> && is_unbounded_array_v<int[]>); NO(is_bounded_array_v<int[]> || is_unbounded_array_v<int>);
YES(is_nothrow_convertible_v<int, FromInt>); NO(is_nothrow_convertible_v<int, Explicit>);

template <class T> __device__ constexpr T constant(T x) { return is_constant_evaluated() ? x : T(0); }
YES(constant(1) == 1);
#else
YES(is_literal_type_v<int>); SAME(result_of_t<Call(float)>, int);
#endif
#if __cplusplus > 202002L
YES(is_scoped_enum_v<Scoped>); NO(is_scoped_enum_v<Plain> || is_scoped_enum_v<int>);
#endif
extern "C" __global__ void kernel() {}
