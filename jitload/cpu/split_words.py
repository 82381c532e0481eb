"""Words of CUDA C++ whose meaning is known without looking: types, functions that only compute, constants."""

from __future__ import annotations

PLACES = frozenset({"blockIdx", "blockDim", "gridDim"})  # the same for all threads of a block
TYPES = frozenset(
    """
    void bool char short int long float double signed unsigned wchar_t size_t ptrdiff_t uint uchar ushort ulong
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t half __half __nv_bfloat16
    half2 __half2 __nv_bfloat162 dim3
    """.split()  # noqa: SIM905  as a list it would take the whole page
).union(
    name + size
    for name in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong", "ulonglong", "float",
                 "double")
    for size in "1234"
)  # fmt: skip
QUALIFIERS = frozenset(
    "const volatile static extern constexpr register typename struct thread_local mutable __shared__".split()  # noqa: SIM905
)
ALIGNMENTS = frozenset({"alignas", "__align__", "__attribute__", "__builtin_align__"})
_ROUNDED = tuple(name + suffix for name in ("add", "sub", "mul", "div", "rcp", "sqrt") for suffix in ("rn", "rz", "ru"))
# Functions whose result depends on their arguments alone, and which write nothing.
FUNCTIONS = frozenset(
    """
    min max abs labs llabs fabs fabsf fmin fminf fmax fmaxf fma fmaf exp expf exp2 exp2f exp10 exp10f expm1 expm1f log
    logf log2 log2f log10 log10f log1p log1pf sqrt sqrtf rsqrt rsqrtf cbrt cbrtf pow powf sin sinf cos cosf tan tanf
    sinh sinhf cosh coshf tanh tanhf asin asinf acos acosf atan atanf atan2 atan2f erf erff erfc erfcf floor floorf
    ceil ceilf round roundf rint rintf trunc truncf fmod fmodf hypot hypotf copysign copysignf isnan isinf isfinite
    __expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf __powf __fdividef __saturatef __popc __popcll __clz
    __clzll __ffs __ffsll __brev __brevll __mulhi __umulhi __mul24 __umul24 __float_as_int __int_as_float
    __float_as_uint __uint_as_float __double_as_longlong __longlong_as_double __float2half __half2float
    __float2half_rn __float2bfloat16 __bfloat162float __float2int_rn __float2int_rz __float2int_rd __float2int_ru
    __int2float_rn __uint2float_rn __dp4a __byte_perm __funnelshift_l __funnelshift_r sizeof alignof
    static_cast reinterpret_cast const_cast
    """.split()  # noqa: SIM905
).union(
    (f"make_{type_}" for type_ in TYPES if type_[-1] in "1234"),
    (f"__{kind}{name[:-2]}_{name[-2:]}" for kind in ("f", "d") for name in _ROUNDED),
)
LOADS = frozenset("__ldg __ldca __ldcg __ldcs __ldlu".split())  # noqa: SIM905
ATOMICS = frozenset(
    f"atomic{name}{scope}"
    for name in ("Add", "Sub", "Min", "Max", "And", "Or", "Xor", "Inc", "Dec")
    for scope in ("", "_block", "_system")
)
KEYWORDS = frozenset(
    """
    if else for while do switch case default break continue return true false nullptr const volatile static extern
    constexpr sizeof alignof static_cast reinterpret_cast const_cast new delete this operator template typename struct
    class union enum using typedef namespace auto decltype inline void bool char short int long float double signed
    unsigned wchar_t alignas and or not xor register static_assert noexcept thread_local mutable public private
    protected goto
    """.split()  # noqa: SIM905
)
CONSTANTS = frozenset({"true", "false", "nullptr", "warpSize"})
# What headers define as macros that only compute, or that are ours.
HARMLESS_MACROS = frozenset(
    """
    assert NULL INFINITY NAN HUGE_VAL HUGE_VALF FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON CHAR_BIT
    INT_MAX INT_MIN UINT_MAX LONG_MAX LONG_MIN ULONG_MAX LLONG_MAX LLONG_MIN ULLONG_MAX SHRT_MAX SHRT_MIN USHRT_MAX
    INT8_MAX INT16_MAX INT32_MAX INT64_MAX INT8_MIN INT16_MIN INT32_MIN INT64_MIN UINT8_MAX UINT16_MAX UINT32_MAX
    UINT64_MAX SIZE_MAX M_PI M_E M_LN2 M_LN10 M_LOG2E M_LOG10E M_SQRT2 M_SQRT1_2 M_PI_2 M_PI_4 M_1_PI M_2_PI
    CUDART_INF_F CUDART_NAN_F CUDART_INF CUDART_NAN CUDART_PI_F CUDART_PI
    __shared__ __restrict__ __align__ __global__ __device__ __constant__ __forceinline__ __noinline__ __launch_bounds__
    __grid_constant__ __builtin_align__ __host__ __maxnreg__ __cluster_dims__ __attribute__ __expf __exp10f __logf
    __log2f __log10f __sinf __cosf __tanf __powf __sincosf __tanhf __builtin_assume __assume
    """.split()  # noqa: SIM905
)
ASSIGNMENTS = frozenset("= += -= *= /= %= &= |= ^= <<= >>=".split())  # noqa: SIM905
STEPS = frozenset({"++", "--"})
