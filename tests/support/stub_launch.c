/* Entry points of the stub libcuda.so.1 for launches and occupancy. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

enum { LAUNCH_COOPERATIVE = 2, LAUNCH_CLUSTER = 4 };
enum { PORTABLE_CLUSTER = 8, LARGEST_CLUSTER = 16 };

typedef struct CUlaunchAttribute {
  int id;
  int padding;
  union {
    int number;
    uint32_t extent[3];
    unsigned char bytes[64];
  } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  uint32_t attribute_count;
} CUlaunchConfig;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "cuda.h says 72");
_Static_assert(sizeof(CUlaunchConfig) == 56, "cuda.h says 56");

static uint64_t volume(const uint32_t* extents) { return (uint64_t)extents[0] * extents[1] * extents[2]; }

static const CUlaunchAttribute* find_attribute(const CUlaunchConfig* config, int id) {
  for (uint32_t i = 0; i < config->attribute_count; ++i) {
    if (config->attributes[i].id == id) return &config->attributes[i];
  }
  return NULL;
}

/* The cluster of a launch: the attribute's, else the one compiled in, else zeros. */
static const uint32_t* cluster_of(const CUlaunchConfig* config, const struct stub_kernel* kernel) {
  const CUlaunchAttribute* attribute = find_attribute(config, LAUNCH_CLUSTER);
  return attribute != NULL ? attribute->value.extent : kernel->cluster;
}

/* ---- occupancy ------------------------------------------------------------------------------------------------- */

static int blocks_per_multiprocessor(const stub_function* function, uint64_t threads, uint64_t dynamic_shared) {
  const int* attributes = stub_config.attributes[function->device];
  const uint64_t registers = (uint64_t)function->kernel->registers * threads;
  const uint64_t shared = (uint64_t)function->kernel->static_shared + dynamic_shared +
                          (uint64_t)attributes[DEVICE_RESERVED_SHARED];
  uint64_t most = (uint64_t)attributes[DEVICE_BLOCKS_PER_MULTIPROCESSOR];
  const uint64_t limits[][2] = {
      {(uint64_t)attributes[DEVICE_THREADS_PER_MULTIPROCESSOR], threads},
      {(uint64_t)attributes[DEVICE_REGISTERS_PER_MULTIPROCESSOR], registers},
      {(uint64_t)attributes[DEVICE_SHARED_PER_MULTIPROCESSOR], shared},
  };
  for (int i = 0; i < 3; ++i) {
    if (limits[i][1] != 0 && limits[i][0] / limits[i][1] < most) most = limits[i][0] / limits[i][1];
  }
  return (int)most;
}

static uint64_t blocks_per_device(const stub_function* function, const CUlaunchConfig* config) {
  return (uint64_t)blocks_per_multiprocessor(function, volume(config->block), config->shared_bytes) *
         (uint64_t)stub_config.attributes[function->device][DEVICE_MULTIPROCESSORS];
}

static CUresult check_cluster(const stub_function* function, const uint32_t* cluster) {
  const uint64_t most = function->allows_non_portable_cluster ? LARGEST_CLUSTER : PORTABLE_CLUSTER;
  if (stub_config.attributes[function->device][DEVICE_CLUSTER_LAUNCH] == 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  return volume(cluster) <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

STUB_API CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction function, const CUlaunchConfig* config) {
  CUresult result = stub_begin("cuOccupancyMaxActiveClusters", NEEDS_CONTEXT);
  stub_function* found = NULL;
  if (result == CUDA_SUCCESS && (count == NULL || config == NULL)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = stub_get_function(function, stub_device_of_current(), &found);
  if (result == CUDA_SUCCESS) {
    const uint32_t* cluster = cluster_of(config, found->kernel);
    if (volume(cluster) == 0) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = check_cluster(found, cluster);
    if (result == CUDA_SUCCESS) *count = (int)(blocks_per_device(found, config) / volume(cluster));
  }
  return stub_end(result, "device=%d", stub_device_of_current());
}

/* ---- a launch -------------------------------------------------------------------------------------------------- */

static CUresult check_extents(const CUlaunchConfig* config, const stub_function* function) {
  const int* attributes = stub_config.attributes[function->device];
  for (int i = 0; i < 3; ++i) {
    if (config->grid[i] == 0 || config->grid[i] > (uint32_t)attributes[DEVICE_MAX_GRID_DIM_X + i] ||
        config->block[i] == 0 || config->block[i] > (uint32_t)attributes[DEVICE_MAX_BLOCK_DIM_X + i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const uint64_t threads = volume(config->block);
  const int is_too_large = threads > (uint64_t)attributes[DEVICE_MAX_THREADS_PER_BLOCK] ||
                           threads > (uint64_t)function->kernel->max_threads ||
                           (int64_t)config->shared_bytes > function->max_dynamic_shared;
  return is_too_large ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult check_attributes(const CUlaunchConfig* config, const stub_function* function) {
  const uint32_t* cluster = cluster_of(config, function->kernel);
  const uint32_t* required = function->kernel->cluster;
  const CUlaunchAttribute* cooperative = find_attribute(config, LAUNCH_COOPERATIVE);
  if (cluster[0] | cluster[1] | cluster[2]) {
    for (int i = 0; i < 3; ++i) {
      if (cluster[i] == 0 || config->grid[i] % cluster[i] != 0) return CUDA_ERROR_INVALID_VALUE;
      if (required[i] != 0 && required[i] != cluster[i]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    const CUresult result = check_cluster(function, cluster);
    if (result != CUDA_SUCCESS) return result;
  }
  if (cooperative != NULL && cooperative->value.number != 0 &&
      volume(config->grid) > blocks_per_device(function, config)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

static CUresult pack_values(const struct stub_kernel* kernel, void** values, uint8_t* params) {
  for (uint32_t i = 0; i < kernel->slot_count; ++i) {
    if (values == NULL || values[i] == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(params + kernel->slots[i].offset, values[i], kernel->slots[i].size);
  }
  return CUDA_SUCCESS;
}

static CUresult pack_buffer(const struct stub_kernel* kernel, void** extra, uint8_t* params) {
  enum { END = 0, BUFFER_POINTER = 1, BUFFER_SIZE = 2 };
  const void* buffer = NULL;
  size_t size = 0;
  for (; (uintptr_t)extra[0] != END; extra += 2) {
    if ((uintptr_t)extra[0] == BUFFER_POINTER) {
      buffer = extra[1];
    } else if ((uintptr_t)extra[0] == BUFFER_SIZE && extra[1] != NULL) {
      memcpy(&size, extra[1], sizeof size);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (size < kernel->param_bytes || (buffer == NULL && kernel->param_bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (kernel->param_bytes != 0) memcpy(params, buffer, kernel->param_bytes);
  return CUDA_SUCCESS;
}

static CUresult check_launch(const CUlaunchConfig* config, CUfunction handle, stub_function** function) {
  if (config == NULL || (config->attribute_count != 0 && config->attributes == NULL)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = stub_get_function(handle, stub_device_of_current(), function);
  const int stream_device = stub_stream_device(config->stream);
  if (result == CUDA_SUCCESS && stream_device >= 0 && stream_device != stub_device_of_current()) {
    result = CUDA_ERROR_INVALID_HANDLE;
  }
  if (result == CUDA_SUCCESS) result = check_extents(config, *function);
  if (result == CUDA_SUCCESS) result = check_attributes(config, *function);
  return result;
}

/* The parameter block: what kernelParams point to, or the buffer in `extra`, and never both. */
static CUresult pack(const struct stub_kernel* kernel, void** values, void** extra, uint8_t* params) {
  if (values != NULL && extra != NULL) return CUDA_ERROR_INVALID_VALUE;
  return extra != NULL ? pack_buffer(kernel, extra, params) : pack_values(kernel, values, params);
}

static void print_hex(FILE* out, const uint8_t* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) fprintf(out, "%02x", bytes[i]);
}

/* The fields of a launch record; `kernel` is NULL for a wrong handle, `params` where the launch was refused. */
static void print_launch(FILE* out, const CUlaunchConfig* config, const struct stub_kernel* kernel,
                         const uint8_t* params) {
  const uint32_t none[3] = {0, 0, 0}, *cluster = kernel != NULL ? cluster_of(config, kernel) : none;
  fprintf(out, "kernel=%s device=%d", stub_quote(kernel != NULL ? kernel->name : NULL), stub_device_of_current());
  fprintf(out, " grid=%u,%u,%u block=%u,%u,%u", config->grid[0], config->grid[1], config->grid[2], config->block[0],
          config->block[1], config->block[2]);
  fprintf(out, " cluster=%u,%u,%u shared_bytes=%u stream=%#llx attributes=", cluster[0], cluster[1], cluster[2],
          config->shared_bytes, (unsigned long long)(uintptr_t)config->stream);
  for (uint32_t i = 0; i < config->attribute_count && config->attributes != NULL; ++i) {
    fprintf(out, "%s%d:", i != 0 ? "," : "", config->attributes[i].id);
    print_hex(out, config->attributes[i].value.bytes, sizeof config->attributes[i].value.bytes);
  }
  if (kernel == NULL || params == NULL) return;
  fprintf(out, " slots=");
  for (uint32_t i = 0; i < kernel->slot_count; ++i) {
    fprintf(out, "%s%u:%u", i != 0 ? "," : "", kernel->slots[i].offset, kernel->slots[i].size);
  }
  fprintf(out, " params=");
  print_hex(out, params, kernel->param_bytes);
}

static char* describe_launch(const CUlaunchConfig* config, const struct stub_kernel* kernel, const uint8_t* params) {
  char* text = NULL;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  if (out == NULL) abort();
  if (config != NULL) print_launch(out, config, kernel, params);
  fclose(out);
  return text;
}

static CUresult launch(const char* call, const CUlaunchConfig* config, CUfunction handle, void** values, void** extra) {
  uint8_t* params = NULL;
  stub_function* function = NULL;
  CUresult result = stub_begin(call, NEEDS_CONTEXT);
  const struct stub_kernel* kernel = stub_find_kernel(handle, &function);
  if (result == CUDA_SUCCESS) result = check_launch(config, handle, &function);
  if (result == CUDA_SUCCESS) {
    params = calloc(1, kernel->param_bytes + 1);
    if (params == NULL) abort();
    result = pack(kernel, values, extra, params);
  }
  char* text = describe_launch(config, kernel, result == CUDA_SUCCESS ? params : NULL);
  stub_end(result, "%s", text);
  free(text);
  free(params);
  return result;
}

STUB_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 CUstream stream, void** values, void** extra) {
  const CUlaunchConfig config = {
      .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}, .shared_bytes = shared_bytes, .stream = stream};
  return launch("cuLaunchKernel", &config, function, values, extra);
}

STUB_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** values, void** extra) {
  return launch("cuLaunchKernelEx", config, function, values, extra);
}
