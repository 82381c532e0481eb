/* What a generated wrapper includes: the tables it fills in and the one function that does the work.
 *
 * C, and the common subset of C and C++. Nothing here throws; failures set tvm-ffi's error and return -1.
 * The work is in launch.cc, compiled once for a compiler and linked into every library.
 */
#ifndef JITLOAD_LAUNCH_H_
#define JITLOAD_LAUNCH_H_

#include <tvm/ffi/c_api.h>

#include "expression.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a parameter is; the numbers are in no file, so they may change. */
enum { JITLOAD_POINTER, JITLOAD_INT, JITLOAD_UINT, JITLOAD_FLOAT, JITLOAD_BOOL, JITLOAD_STRUCT };

/* What an argument may be, besides the usual. */
enum {
  JITLOAD_NULLABLE = 1, /* None is a null pointer */
  JITLOAD_RAW = 2,      /* an int is an address */
  JITLOAD_STRIDED = 4,  /* the tensor need not be contiguous */
  JITLOAD_COMPLEX = 8,  /* float2*: a complex64 tensor will do, too */
  JITLOAD_FINITE = 16,  /* a finite number must not become infinite */
  JITLOAD_DESCRIBED = 32, /* a tensor descriptor is made of it; Triton's own object will do, too */
  JITLOAD_ON_CPU = 64,    /* a tensor may be on the CPU: the library has code for it */
};

/* One kernel parameter. `argument` is its position in the call, or -1 where the wrapper computes it. */
typedef struct jitload_param {
  const char* name;
  const char* type;
  int32_t argument;
  uint32_t size;
  uint16_t alignment;
  uint8_t kind;
  uint8_t flags;
  uint8_t dtype_code; /* DLPack's; dtype_bits 0 accepts every element type */
  uint8_t dtype_bits;
} jitload_param;

/* What the launch expressions work out. A part that the call gave already is not asked for. */
typedef struct jitload_plan {
  int64_t grid[3];
  int64_t block[3];
  int64_t cluster[3];
  int64_t shared_bytes;
  int64_t* values; /* computed parameters, by parameter number */
  int32_t wants_grid;
  int32_t wants_block;
  int32_t wants_shared_bytes;
} jitload_plan;

/* What a kernel's `Launch` declares. */
enum {
  JITLOAD_HAS_GRID = 1,
  JITLOAD_HAS_BLOCK = 2,
  JITLOAD_HAS_CLUSTER = 4,
  JITLOAD_IS_COOPERATIVE = 8,
  JITLOAD_IS_PDL = 16,
  JITLOAD_HAS_PRIORITY = 32,
  JITLOAD_COMPUTES = 64, /* some parameter is computed */
  JITLOAD_SPREADS = 128, /* the blocks of a cluster are spread over the multiprocessors */
  JITLOAD_BALANCES = 256, /* or placed where there is least to do */
};

struct jitload_module;
struct jitload_triton;
struct jitload_cpu_kernel;
struct jitload_cpu_launch;

typedef struct jitload_kernel {
  const char* name;   /* exported name, for messages */
  const char* symbol; /* in the cubin */
  const struct jitload_module* module;
  const jitload_param* params;
  void (*plan)(jitload_eval*, jitload_plan*);
  const char* const* expressions; /* their texts, by jitload_eval.where */
  int32_t index;
  int32_t param_count;
  int32_t argument_count;
  int32_t flags;
  int32_t priority;
  int32_t struct_bytes; /* room for the by-value structures, 64 bytes aligned each */
  const struct jitload_triton* triton; /* triton.h; NULL for a kernel of CUDA C++ */
  const struct jitload_cpu_kernel* cpu; /* cpu.h; NULL where there is no code for the CPU */
  int32_t can_wait;     /* on the CPU: a thread may wait for another */
} jitload_kernel;

/* A cubin: compute capability 9.0 is 90; the suffix is 'a', 'f' or 0. */
typedef struct jitload_image {
  int32_t capability;
  int32_t suffix;
  const unsigned char* data;
} jitload_image;

/* A `__device__` or `__constant__` variable: its C++ name and its symbol; on the CPU its address. */
typedef struct jitload_variable {
  const char* name;
  const char* symbol;
  void* on_cpu;
} jitload_variable;

typedef struct jitload_state jitload_state;

typedef struct jitload_module {
  const char* name;
  const jitload_image* images;
  const jitload_kernel* kernels;
  const jitload_variable* variables;
  const char* description; /* JSON: what the loader tells a user about each function */
  jitload_state** state;   /* made at the first launch, kept for good */
  int32_t image_count;
  int32_t kernel_count;
  /* Run a grid on the CPU (cpu.h), where there is code for it; else NULL. */
  int (*cpu_run)(const struct jitload_cpu_launch*, const char**);
} jitload_module;

/* Check the arguments, launch, and return 0; or set an error and return -1. */
int jitload_call(const jitload_kernel* kernel, const TVMFFIAny* args, int32_t num_args);

/* The functions behind a module's own exports; see JITLOAD_EXPORT_MODULE. */
int jitload_return_text(const char* text, TVMFFIAny* result);
int jitload_preload(const jitload_module* module, const TVMFFIAny* args, int32_t num_args);
int jitload_configure(const jitload_module* module, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int jitload_global(const jitload_module* module, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int jitload_use_python(const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
int jitload_bind(const jitload_module* module, const TVMFFIAny* args, int32_t num_args);

#ifdef __cplusplus
} /* extern "C" */
#define JITLOAD_EXTERN_C extern "C"
#else
#define JITLOAD_EXTERN_C
#endif

#define JITLOAD_EXPORT_ JITLOAD_EXTERN_C __attribute__((visibility("default"))) int

/* Embed a cubin by name; the path is relative to the directory that the compiler runs in. */
#define JITLOAD_EMBED(name, path)                                     \
  __asm__(".pushsection .rodata, \"a\"\n"                             \
          ".balign 16\n"                                              \
          ".local __tvm_ffi__cubin_" #name "\n"                       \
          ".local __tvm_ffi__cubin_" #name "_end\n"                   \
          "__tvm_ffi__cubin_" #name ":\n"                             \
          ".incbin \"" path "\"\n"                                    \
          "__tvm_ffi__cubin_" #name "_end:\n"                         \
          ".byte 0\n"                                                 \
          ".popsection\n")

/* Declare an embedded cubin, as upstream's launcher header does; `TVM_FFI_CUBIN_DATA(name)` is its first byte. */
#ifndef TVM_FFI_EMBED_CUBIN
#define TVM_FFI_EMBED_CUBIN(name) \
  JITLOAD_EXTERN_C __attribute__((visibility("hidden"))) const unsigned char __tvm_ffi__cubin_##name[]
#endif

/* Export kernel `index` as a tvm-ffi function, with its type and its doc. */
#define JITLOAD_EXPORT(name, index, metadata, doc)                                                              \
  JITLOAD_EXPORT_ __tvm_ffi_##name(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {    \
    (void)self, (void)result;                                                                                   \
    return jitload_call(&kernels[index], args, num_args);                                                       \
  }                                                                                                             \
  JITLOAD_EXPORT_ __tvm_ffi__metadata_##name(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) { \
    (void)self, (void)args, (void)n;                                                                            \
    return jitload_return_text(metadata, result);                                                               \
  }                                                                                                             \
  JITLOAD_EXPORT_ __tvm_ffi__doc_##name(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {      \
    (void)self, (void)args, (void)n;                                                                            \
    return jitload_return_text(doc, result);                                                                    \
  }

/* Export what jitload's loader asks a library. */
#define JITLOAD_EXPORT_MODULE(module)                                                                               \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_describe(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {   \
    (void)self, (void)args, (void)n;                                                                                \
    return jitload_return_text((module).description, result);                                                       \
  }                                                                                                                 \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_preload(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {    \
    (void)self, (void)result;                                                                                       \
    return jitload_preload(&(module), args, n);                                                                     \
  }                                                                                                                 \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_configure(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {  \
    (void)self;                                                                                                     \
    return jitload_configure(&(module), args, n, result);                                                           \
  }                                                                                                                 \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_global(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {     \
    (void)self;                                                                                                     \
    return jitload_global(&(module), args, n, result);                                                              \
  } \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_use_python(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {  \
    (void)self;                                                                                                     \
    return jitload_use_python(args, n, result);                                                                     \
  }                                                                                                                 \
  JITLOAD_EXPORT_ __tvm_ffi__jitload_bind(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {        \
    (void)self, (void)result;                                                                                       \
    return jitload_bind(&(module), args, n);                                                                        \
  }

#endif /* JITLOAD_LAUNCH_H_ */
