/* What the parts of the stub libcuda.so.1 share: hand-written driver types, records, and the frame of a call.
 *
 * The stub keeps the driver's contracts that a launcher can get wrong (contexts, handles, parameter bytes, capture)
 * and records every call. Nothing of CUDA is needed to build it.
 */
#ifndef STUB_H_
#define STUB_H_

#include <stddef.h>
#include <stdint.h>

#define STUB_API __attribute__((visibility("default")))
#define STUB_MAX_DEVICES 16

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
};

enum {
  DEVICE_MAX_THREADS_PER_BLOCK = 1,
  DEVICE_MAX_BLOCK_DIM_X = 2,
  DEVICE_MAX_GRID_DIM_X = 5,
  DEVICE_MAX_SHARED_PER_BLOCK = 8,
  DEVICE_MULTIPROCESSORS = 16,
  DEVICE_THREADS_PER_MULTIPROCESSOR = 39,
  DEVICE_MAJOR = 75,
  DEVICE_MINOR = 76,
  DEVICE_SHARED_PER_MULTIPROCESSOR = 81,
  DEVICE_REGISTERS_PER_MULTIPROCESSOR = 82,
  DEVICE_COOPERATIVE_LAUNCH = 95,
  DEVICE_MAX_SHARED_OPTIN = 97,
  DEVICE_BLOCKS_PER_MULTIPROCESSOR = 106,
  DEVICE_RESERVED_SHARED = 111,
  DEVICE_CLUSTER_LAUNCH = 120,
  DEVICE_ATTRIBUTE_COUNT = 160,
};

enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct stub_context* CUcontext;
typedef struct stub_library* CUlibrary;
typedef struct stub_kernel* CUkernel;
typedef void* CUfunction; /* a function, or a kernel cast to one */
typedef void* CUstream;

struct stub_context {
  CUdevice device;
  int references; /* of a primary context */
  int is_active;
};

typedef struct stub_slot {
  uint32_t offset;
  uint32_t size;
} stub_slot;

typedef struct stub_function {
  struct stub_kernel* kernel;
  CUdevice device;
  int is_loaded;
  int max_dynamic_shared;
  int carveout;
  int allows_non_portable_cluster;
} stub_function;

struct stub_kernel {
  struct stub_library* library;
  struct stub_kernel* next;
  const char* name;
  stub_slot* slots;
  uint32_t slot_count;
  uint32_t param_bytes;
  int registers, static_shared, local_bytes, max_threads;
  uint32_t cluster[3]; /* __cluster_dims__, or zeros */
  stub_function functions[STUB_MAX_DEVICES];
};

typedef struct stub_global {
  struct stub_global* next;
  const char* name;
  const unsigned char* initial; /* NULL for zeros */
  size_t size;
  unsigned char* copies[STUB_MAX_DEVICES];
} stub_global;

struct stub_library {
  struct stub_library* next;
  unsigned char* image; /* our copy, or NULL where the bytes are no cubin */
  size_t size;
  int capability; /* 90 for sm_90 */
  int is_loaded;
  struct stub_kernel* kernels;
  stub_global* globals;
};

/* What one thread of the driver knows; `generation` tells a state from before the last stub_reset(). */
typedef struct stub_thread {
  unsigned generation;
  int ordinal;
  int depth;
  int capture_mode;
  CUcontext stack[16];
} stub_thread;

/* Everything that stub_reset() restores. Guarded by the lock that a call holds from stub_begin to stub_end. */
typedef struct stub_settings {
  int device_count;
  int driver_version;
  int attributes[STUB_MAX_DEVICES][DEVICE_ATTRIBUTE_COUNT];
  int is_capturing;
  int capturing_thread;
} stub_settings;

extern stub_settings stub_config;
extern struct stub_context stub_primary[STUB_MAX_DEVICES];

/* What must hold before a call does anything. */
enum { NEEDS_NOTHING = 0, NEEDS_INIT = 1, NEEDS_CONTEXT = 3, IS_UNSAFE_IN_CAPTURE = 4 };

/* A call is: begin (take the lock; a forced or general failure), its own work, end (record; drop the lock). */
CUresult stub_begin(const char* name, int needs);
CUresult stub_end(CUresult result, const char* format, ...) __attribute__((format(printf, 2, 3)));
/* One caller's string as a value of a record: %20 for a blank. Good until the next call of it, under the lock. */
const char* stub_quote(const char* text);

stub_thread* stub_this_thread(void);
CUcontext stub_current(void);
CUdevice stub_device_of_current(void); /* -1 without a context */
void stub_mark_initialized(void);
int stub_is_context(CUcontext context);
int stub_stream_device(CUstream stream); /* -1 for a stream that no test made */

/* Read a cubin. Returns a library with its kernels and variables; `image` is NULL where the bytes are no cubin. */
CUlibrary stub_read_image(const void* code);
int stub_is_library(CUlibrary library);
/* The kernel behind a handle, or NULL; `function` is set where the handle is a CUfunction. */
CUkernel stub_find_kernel(const void* handle, stub_function** function);
/* The function behind a handle on a device; for a kernel (a CUkernel), on the device that the caller names. */
CUresult stub_get_function(const void* handle, CUdevice device, stub_function** function);

typedef struct stub_symbol {
  const char* name; /* as cuGetProcAddress is asked for it */
  int since;        /* CUDA version, 12040 for 12.4 */
  void* address;
} stub_symbol;

extern const stub_symbol stub_symbols[]; /* ends with a NULL name */

#endif /* STUB_H_ */
