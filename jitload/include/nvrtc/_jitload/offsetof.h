// offsetof, without a guard: see stdint_macros.h. __INTADDR__ is what keeps it a constant expression in every NVRTC.
#undef offsetof
#define offsetof(type, member) (static_cast<size_t>(__INTADDR__(&(static_cast<type*>(nullptr)->member))))
