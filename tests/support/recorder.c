/* A libcuda.so.1 that writes down what reaches the driver: tensor maps and launches, as lines of text.
 *
 * Smaller than the stub driver and less strict, but Triton's own launcher runs over it, too, so that two launchers can
 * be compared. RECORDER_FILE is where it writes, RECORDER_SIZES the bytes of each parameter, RECORDER_CAPABILITY the
 * device's, 90.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NOTHING(name) \
  API int name(void) { return 0; }
#define HANDLE(name) \
  API int name(void** handle) { return *handle = (void*)16, 0; }

NOTHING(cuInit)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuFuncLoad)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuKernelSetAttribute)
NOTHING(cuLibraryGetGlobal)
NOTHING(cuMemAlloc_v2)
NOTHING(cuMemFreeAsync)
NOTHING(cuMemFree_v2)
NOTHING(cuMemcpyDtoHAsync_v2)
NOTHING(cuMemcpyHtoD_v2)
NOTHING(cuMemsetD8Async)
NOTHING(cuMemsetD32Async)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuStreamIsCapturing)
NOTHING(cuStreamSynchronize)
NOTHING(cuTensorMapEncodeIm2col)
NOTHING(cuThreadExchangeStreamCaptureMode)
HANDLE(cuCtxGetCurrent)
HANDLE(cuDevicePrimaryCtxRetain)
HANDLE(cuKernelGetFunction)
HANDLE(cuLibraryGetKernel)
HANDLE(cuLibraryLoadData)
HANDLE(cuModuleGetFunction)
HANDLE(cuModuleLoadData)

typedef struct Attribute {
  int id, padding;
  union {
    unsigned numbers[3];
    char bytes[64];
  } value;
} Attribute;

typedef struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const Attribute* attributes;
  unsigned count;
} Config;

static void record(const char* format, ...) {
  FILE* file = fopen(getenv("RECORDER_FILE"), "a");
  va_list rest;
  va_start(rest, format);
  vfprintf(file, format, rest);
  va_end(rest);
  fclose(file);
}

API int cuGetErrorName(int code, const char** text) { return *text = "CUDA_ERROR", (void)code, 0; }
API int cuGetErrorString(int code, const char** text) { return *text = "an error", (void)code, 0; }
API int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
API int cuDeviceGet(int* device, int number) { return *device = number, 0; }
API int cuDeviceGetCount(int* count) { return *count = 1, 0; }
API int cuDeviceGetName(char* name, int size) { return snprintf(name, (size_t)size, "recorder"), 0; }
API int cuCtxGetDevice(int* device) { return *device = 0, 0; }
API int cuFuncGetAttribute(int* value) { return *value = 0, 0; }
API int cuKernelGetAttribute(int* value) { return *value = 0, 0; }

API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  (void)device, *flags = 0;
  return *is_active = 1, 0;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = atoi(getenv("RECORDER_CAPABILITY"));
  (void)device;
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 97 ? 232448 : 1;
  return 0;
}

API int cuPointerGetAttribute(uint64_t* out, int attribute, uint64_t address) {
  (void)attribute;
  return *out = address, 0;
}

API int cuMemAllocAsync(uint64_t* address, size_t size, void* stream) {
  (void)size, (void)stream;
  return *address = 0x5550000, 0;
}

API int cuTensorMapEncodeTiled(unsigned char* map, int type, unsigned rank, void* address, const uint64_t* extents,
                               const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave,
                               int swizzle, int promotion, int fill) {
  record("map type %d rank %u address %p interleave %d swizzle %d promotion %d fill %d", type, rank, address, interleave,
         swizzle, promotion, fill);
  for (unsigned i = 0; i < rank; ++i) {
    record("; %llu by %u step %u", (unsigned long long)extents[i], box[i], steps[i]);
    if (i + 1 < rank) record(" stride %llu", (unsigned long long)strides[i]);
  }
  record("\n");
  memset(map, 0, 128);
  memcpy(map, &address, sizeof address);
  map[sizeof address] = (unsigned char)rank;
  return 0;
}

static void record_params(void** params) {
  char* sizes = strdup(getenv("RECORDER_SIZES"));
  int number = 0;
  for (char* size = strtok(sizes, ","); size != NULL; size = strtok(NULL, ","), ++number) {
    record("parameter %d: ", number);
    for (int i = 0; i < atoi(size); ++i) record("%02x", ((unsigned char*)params[number])[i]);
    record("\n");
  }
  free(sizes);
}

API int cuLaunchKernelEx(const Config* config, void* function, void** params, void** extra) {
  (void)function, (void)extra;
  record("grid %u %u %u block %u %u %u shared %u stream %p\n", config->grid[0], config->grid[1], config->grid[2],
         config->block[0], config->block[1], config->block[2], config->shared_bytes, config->stream);
  for (int id = 0; id < 20; ++id) {
    for (unsigned i = 0; i < config->count; ++i) {
      const unsigned* numbers = config->attributes[i].value.numbers;
      if (config->attributes[i].id != id) continue;
      record(id == 4 ? "attribute %d: %u %u %u\n" : "attribute %d: %u\n", id, numbers[0], numbers[1], numbers[2]);
    }
  }
  record_params(params);
  return 0;
}

API int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** params,
                       void** extra) {
  const Config config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, NULL, 0};
  return cuLaunchKernelEx(&config, function, params, extra);
}
