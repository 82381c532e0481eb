/* The header of generated wrappers: the record that describes a library's kernels, and the functions that their exports
 * jump to.
 *
 * Nothing here throws; failures set tvm-ffi's error and return -1. The work is done in core/call.cc, which is compiled
 * once for each compiler and linked into every library. This header is parsed for every build, so it includes nothing,
 * and assembler replaces functions. Pointers to arguments and results are TVMFFIAny* passed as void*.
 *
 * codegen/record.py reads the structures and the constants below from this text, and writes the structures: each member
 * has a declaration of its own. A change of a structure, of a constant or of their meaning needs a new JITLOAD_ABI.
 */
#pragma once

/* In place of <stdint.h> and <stddef.h>, which take a compiler 2 ms to read. */
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;

enum { JITLOAD_ABI = 8 };

/* Kinds of parameters. */
enum { JITLOAD_POINTER, JITLOAD_INT, JITLOAD_UINT, JITLOAD_FLOAT, JITLOAD_BOOL, JITLOAD_STRUCT, JITLOAD_STREAM };

/* What a parameter accepts in addition to its own type. */
enum {
  JITLOAD_NULLABLE = 1, /* None is a null pointer */
  JITLOAD_RAW = 2,      /* an int is an address */
  JITLOAD_STRIDED = 4,  /* a tensor may be non-contiguous */
  JITLOAD_COMPLEX = 8,  /* float2*: also a complex64 tensor */
  JITLOAD_FINITE = 16,  /* a finite number must not overflow to infinity */
  JITLOAD_DESCRIBED = 32, /* a tensor to make a descriptor of, or Triton's own descriptor object */
  JITLOAD_ON_CPU = 64,    /* a tensor may be on the CPU */
  JITLOAD_ADDRESSES = 128, /* float**: a tensor of addresses, int64 or uint64; or a structure that may have some */
  JITLOAD_HOST = 256,      /* a host function's parameter: a tensor must be on the CPU */
  JITLOAD_READ_ONLY = 512, /* const float*: the kernel cannot write through the pointer */
};

/* A kernel parameter. `argument` is its position in the call, or -1 if the wrapper computes it. */
typedef struct jitload_param {
  const char* name;
  const char* type;
  int32_t argument;
  uint32_t size;
  uint16_t alignment;
  uint8_t kind;
  uint16_t flags;
  uint8_t dtype_code; /* DLPack's code, kDL…; any element type if dtype_bits is 0 */
  uint8_t dtype_bits;
  const char* layout; /* a structure's layout, as in Parameter.layout of model.py; NULL if it is unknown */
} jitload_param;

/* A step of the launch expressions, see expression.h. */
typedef struct jitload_op {
  int32_t code;
  int32_t operand;
  int64_t value;
} jitload_op;

/* The results of the launch expressions. A configured call needs no expression for the parts that it sets itself. */
typedef struct jitload_plan {
  int64_t grid[3];
  int64_t block[3];
  int64_t cluster[3];
  int64_t shared_bytes;
  int64_t* values; /* computed parameters, by parameter number */
  int32_t needs_grid;
  int32_t needs_block;
  int32_t needs_shared_bytes;
  int64_t is_separate; /* whether no thread accesses what others write, if the tensors do not overlap; see `separate` */
} jitload_plan;

/* The slot of the first parameter, after those of the plan's own numbers. */
enum { JITLOAD_FIRST_VALUE = __builtin_offsetof(jitload_plan, values) / sizeof(int64_t) };

/* What a kernel's `Launch` declares. */
enum {
  JITLOAD_HAS_GRID = 1,
  JITLOAD_HAS_BLOCK = 2,
  JITLOAD_HAS_CLUSTER = 4,
  JITLOAD_COMPUTES = 8,    /* at least one parameter is computed */
  JITLOAD_DISPATCHES = 16, /* several kernels: a key chooses one if there is a `choice`, otherwise the tensors' dtypes */
};

enum { JITLOAD_MAX_KEYS = 8 };

typedef struct jitload_number {
  int64_t value;
} jitload_number;

/* The variants that were chosen on one model of GPU. A row has the position of a variant, and then the key. */
typedef struct jitload_table {
  const char* gpu; /* the driver's name of the GPU, or "cpu", or "" for all together */
  const jitload_number* rows;
  int32_t row_count;
} jitload_table;

/* How a key chooses among the variants of a kernel. */
typedef struct jitload_choice {
  const jitload_op* program;      /* the key's expressions; stores the key as computed parameters */
  const char* const* expressions; /* their source texts */
  const jitload_table* tables;
  struct jitload_choice_state* state; /* core/runtime.h */
  int32_t key_count;
  int32_t table_count;
  int32_t takes_nearest; /* a key that was not tuned takes the variant of the nearest one */
} jitload_choice;

/* An attribute of a launch, with the driver's number. A cluster's extents are computed at each call. */
typedef struct jitload_attribute {
  int32_t id;
  int32_t value;
} jitload_attribute;

enum { JITLOAD_MAX_RANK = 5 };

/* How a tensor map is encoded from a tensor. Types and modes are the driver's constants, and the last axis of the tensor
 * comes first, as in the driver. */
typedef struct jitload_tensor_map {
  int32_t param;  /* what the map is passed to */
  int32_t tensor; /* the parameter whose argument is the tensor */
  int32_t rank;
  int32_t type; /* -1: only the layout is needed, because Triton passes it as plain parameters */
  int32_t swizzle;
  int32_t promotion;
  int32_t fill;
  int32_t element_bytes;
  int32_t is_fp4;
  uint32_t box[JITLOAD_MAX_RANK]; /* for im2col, the numbers of channels and pixels */
  int32_t lower[JITLOAD_MAX_RANK]; /* the corners of im2col */
  int32_t upper[JITLOAD_MAX_RANK];
  int32_t is_im2col;
  struct jitload_map_cache* cache; /* tensor_map.cc */
} jitload_tensor_map;

struct jitload_module;
struct jitload_triton;
struct jitload_cpu_kernel;
struct __jitload_result; /* host_result.h */

typedef struct jitload_kernel {
  const char* name;   /* exported name, for error messages */
  const char* symbol; /* the kernel's symbol in the cubin */
  const struct jitload_module* module;
  const jitload_param* params;
  const jitload_op* plan;         /* the launch expressions; NULL if there are none */
  const char* const* expressions; /* their source texts, indexed by jitload_eval.expression */
  const jitload_attribute* attributes;
  int32_t index;
  int32_t param_count;
  int32_t argument_count;
  int32_t flags;
  int32_t attribute_count;
  int32_t struct_bytes; /* for by-value structures, each aligned to 64 bytes */
  const struct jitload_triton* triton; /* triton.h; NULL for a kernel of CUDA C++ */
  const struct jitload_cpu_kernel* cpu; /* cpu.h; NULL without code for the CPU */
  const struct jitload_cpu_kernel* separate; /* the same without checks, for launches that `bounds` allows; or NULL */
  int32_t cpu_mode;     /* JITLOAD_CPU_LOOP or another mode */
  int32_t max_threads;  /* the most threads of a block on the CPU */
  const char* metadata; /* an exported kernel's types, for tvm-ffi */
  const char* doc;
  /* Where the variants of a dispatcher begin in the module's kernels. With JITLOAD_DISPATCHES, all have its name. */
  int32_t first_variant;
  int32_t variant_count;
  const jitload_choice* choice;
  int32_t group; /* of images */
  /* Calls a host function with the addresses of its arguments; NULL for a kernel. */
  int (*host)(void**, struct __jitload_result*);
  jitload_tensor_map* maps;
  int32_t map_count;
  const jitload_op* bounds; /* checks of accesses, each of which ends with JITLOAD_OP_OUTSIDE; NULL without checks */
  struct jitload_recent_plan* recent; /* core/call.cc */
} jitload_kernel;

/* A cubin, or PTX that ends with a NUL: compute capability 9.0 is 90; the suffix is 'a', 'f' or 0. `data` is aligned to 64
 * bytes. */
typedef struct jitload_image {
  int32_t capability;
  int32_t suffix;
  int32_t is_ptx;
  int32_t group; /* kernels of this group are in the image; groups are compiled with different options */
  const unsigned char* data;
} jitload_image;

/* A `__device__` or `__constant__` variable: its C++ name, its symbol in the cubin, and its address on the CPU. */
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
  const char* description; /* JSON: facts about each function, for the loader */
  jitload_state* state;    /* created at the first launch, never freed */
  int32_t image_count;
  int32_t kernel_count;
  int32_t has_cpu; /* whether there is code for the CPU */
} jitload_module;

/* A module as bytes, with all that it points to. In the bytes, a pointer is the distance of its target from the record,
 * or the number of an address that the wrapper has. `pointers` are the distances of the former from the record, and
 * `externals` those of the latter; both arrays lie in the record. */
typedef struct jitload_record {
  char magic[8]; /* "jitload" */
  int32_t abi;
  int32_t pointer_count;
  int32_t external_count;
  int32_t size; /* in bytes */
  const uint32_t* pointers;
  const uint32_t* externals;
  jitload_module module;
} jitload_record;

/* The wrapper's record and addresses. They are not defined in the runtime's own library, which opens records in memory. */
extern __attribute__((visibility("hidden"), weak)) jitload_record jitload_library_record;
extern __attribute__((visibility("hidden"), weak)) const void* const jitload_library_addresses[];

/* The functions behind a kernel's exports; `kernel` is its index. A call checks the arguments, launches and returns 0,
 * or sets an error and returns -1. */
extern "C" {
int jitload_call(__INTPTR_TYPE__ kernel, const void* args, int32_t num_args, void* result);
int jitload_get_metadata(__INTPTR_TYPE__ kernel, const void* args, int32_t num_args, void* result);
int jitload_get_doc(__INTPTR_TYPE__ kernel, const void* args, int32_t num_args, void* result);
}

/* Embed the record, whose pointers are replaced when the library is loaded. */
#define JITLOAD_EMBED_RECORD(path)              \
  __asm__(".pushsection .data\n"                \
          ".balign 64\n"                        \
          ".globl jitload_library_record\n"     \
          ".hidden jitload_library_record\n"    \
          "jitload_library_record:\n"           \
          ".incbin \"" path "\"\n"              \
          ".popsection\n")

/* Export a kernel as a tvm-ffi function, with functions for its type and its doc. Each of these functions replaces
 * tvm-ffi's `self` with the kernel's index and jumps into the runtime. They are written in assembler, because compiling
 * them from C++ takes 5 ms for the first kernel of a file and 1 ms for each further one. */
#if defined(__x86_64__)
#if defined(__CET__) && (__CET__ & 1)
#define JITLOAD_LANDING_PAD_ "endbr64\n"
#else
#define JITLOAD_LANDING_PAD_
#endif
#define JITLOAD_JUMP_(number, work) JITLOAD_LANDING_PAD_ "movl $" number ", %edi\njmp " work "\n"
#elif defined(__aarch64__)
#define JITLOAD_JUMP_(number, work) "hint 34\nmov x0, " number "\nb " work "\n" /* hint 34 is bti c */
#else
#error "jitload runs on x86-64 and aarch64"
#endif

#define JITLOAD_ENTRY_(symbol, number, work) \
  ".globl " symbol "\n.type " symbol ", %function\n" symbol ":\n" JITLOAD_JUMP_(number, work) \
  ".size " symbol ", . - " symbol "\n"
#define JITLOAD_EXPORT(name, number)                                                    \
  __asm__(".pushsection .text\n.balign 16\n"                                            \
          JITLOAD_ENTRY_("__tvm_ffi_" #name, #number, "jitload_call")                   \
          JITLOAD_ENTRY_("__tvm_ffi__metadata_" #name, #number, "jitload_get_metadata") \
          JITLOAD_ENTRY_("__tvm_ffi__doc_" #name, #number, "jitload_get_doc")          \
          ".popsection\n");
