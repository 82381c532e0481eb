/* Encoding tensor maps, and keeping those of recent calls. */
#include "tensor_map.h"

#include <stdio.h>

#include "recent.h"

enum { JITLOAD_TMA_ALIGNMENT = 16, JITLOAD_MAP_SLOT_BITS = 4 };

int jitload_read_layout(const jitload_kernel* kernel, const jitload_tensor_map* map, const TVMFFIAny* value,
                        jitload_layout* layout) {
  const char* argument = kernel->params[map->tensor].name;
  const DLTensor* tensor = jitload_get_tensor(value);
  const int32_t rank = map->rank;
  if (tensor == NULL) {
    return jitload_fail("TypeError", "%s(): argument '%s' must be a tensor for its tensor map", kernel->name, argument);
  }
  if (tensor->ndim != rank) {
    return jitload_fail("ValueError", "%s(): argument '%s' must have %d dimension%s for its tensor map, got %d",
                        kernel->name, argument, (int)rank, rank == 1 ? "" : "s", (int)tensor->ndim);
  }
  uint64_t step = 1; /* may overflow for a tensor without elements, which the driver does not accept */
  for (int32_t i = JITLOAD_MAX_RANK - 1; i >= 0; --i) {
    layout->shape[i] = i < rank ? tensor->shape[i] : 0;
    layout->strides[i] = i >= rank ? 0 : tensor->strides != NULL ? tensor->strides[i] : (int64_t)step;
    if (i < rank) step *= (uint64_t)tensor->shape[i];
  }
  if (layout->shape[rank - 1] == 1) layout->strides[rank - 1] = 1; /* the stride of one element is arbitrary */
  layout->address = jitload_tensor_address(tensor);
  return 0;
}

/* Check what the driver requires of a layout, for an error that says what is wrong. */
static int jitload_check_layout(const jitload_kernel* kernel, const jitload_tensor_map* map, const jitload_layout* layout) {
  const char* argument = kernel->params[map->tensor].name;
  const int32_t last = map->rank - 1;
  const uint64_t alignment = map->is_fp4 ? 2 * JITLOAD_TMA_ALIGNMENT : JITLOAD_TMA_ALIGNMENT;
  const long long limit = kernel->triton != NULL ? INT32_MAX : INT64_C(1) << 32; /* Triton's kernels take 32 bits */
  if (layout->strides[last] != 1) {
    return jitload_fail("ValueError",
                        "%s(): argument '%s' must be contiguous in its last axis for its tensor map, but the stride is "
                        "%lld",
                        kernel->name, argument, (long long)layout->strides[last]);
  }
  for (int32_t i = 0; i < map->rank; ++i) {
    const long long extent = (long long)layout->shape[i], stride = (long long)layout->strides[i];
    if (extent < 1 || extent > limit) {
      return jitload_fail("ValueError",
                          "%s(): argument '%s' must have 1 to %lld elements in axis %d for its tensor map, got %lld",
                          kernel->name, argument, limit, (int)i, extent);
    }
    if (i == last || extent == 1) continue;
    const uint64_t step = (uint64_t)stride * (uint64_t)map->element_bytes;
    if (stride < 0 || step % JITLOAD_TMA_ALIGNMENT != 0 || step >= UINT64_C(1) << 40) {
      return jitload_fail("ValueError",
                          "%s(): argument '%s' must have strides of a multiple of 16 bytes below 2**40 for its tensor "
                          "map, but axis %d has %lld elements of %d bytes",
                          kernel->name, argument, (int)i, stride, (int)map->element_bytes);
    }
  }
  if (layout->address % alignment == 0) return 0;
  return jitload_fail("ValueError",
                      "%s(): argument '%s' must be aligned to %d bytes for its tensor map, but its address is 0x%llx",
                      kernel->name, argument, (int)alignment, (unsigned long long)layout->address);
}

/* The driver takes the axes in reverse order, and strides in bytes except the last axis's. */
int jitload_encode_tensor_map(const jitload_kernel* kernel, const jitload_tensor_map* map, const jitload_layout* layout,
                              void* out) {
  if (jitload_check_layout(kernel, map, layout) != 0) return -1;
  if (map->type < 0) return 0;
  const jitload_driver* driver = jitload_get_driver(kernel->name);
  if (driver == NULL) return -1;
  const int32_t rank = map->rank;
  const uint32_t steps[JITLOAD_MAX_RANK] = {1, 1, 1, 1, 1}; /* no element is left out */
  uint64_t extents[JITLOAD_MAX_RANK], strides[JITLOAD_MAX_RANK];
  for (int32_t i = 0; i < rank; ++i) {
    const int32_t axis = rank - 1 - i;
    extents[i] = (uint64_t)layout->shape[axis] << (i == 0 && map->is_fp4);
    if (i == 0) continue;
    const uint64_t bytes = (uint64_t)layout->strides[axis] * (uint64_t)map->element_bytes;
    /* The stride of an axis with one element is arbitrary, but the driver checks it. */
    strides[i - 1] = (bytes + JITLOAD_TMA_ALIGNMENT - 1) & ~(uint64_t)(JITLOAD_TMA_ALIGNMENT - 1);
  }
  void* address = (void*)(uintptr_t)layout->address;
  const jitload_cu_result code =
      map->is_im2col
          ? driver->encode_im2col(out, map->type, (uint32_t)rank, address, extents, strides, map->lower, map->upper,
                                  map->box[0], map->box[1], steps, 0, map->swizzle, map->promotion, map->fill)
          : driver->encode_tiled(out, map->type, (uint32_t)rank, address, extents, strides, map->box, steps, 0,
                                 map->swizzle, map->promotion, map->fill);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_param* param = &kernel->params[map->tensor];
  char action[256];
  snprintf(action, sizeof action, "the driver cannot make the tensor map of argument '%s' (%s)", param->name,
           param->type);
  return jitload_raise_driver_error(driver, kernel->name, action, code);
}

/* ---- recent maps ----------------------------------------------------------------------------------------------- */

struct jitload_map_cache {
  jitload_recent<(sizeof(jitload_layout) + JITLOAD_MAP_BYTES) / 8> recent[1 << JITLOAD_MAP_SLOT_BITS];
};

int jitload_pass_tensor_maps(jitload_request* request, unsigned char* out) {
  const jitload_kernel* kernel = request->kernel;
  for (int32_t i = 0; i < kernel->map_count; ++i, out += JITLOAD_MAP_BYTES) {
    jitload_tensor_map* map = &kernel->maps[i];
    jitload_layout layout;
    if (jitload_read_layout(kernel, map, &request->args[kernel->params[map->tensor].argument], &layout) != 0) return -1;
    request->params[map->param] = out;
    const auto visit_layout = [&](auto visit) {
      for (size_t n = 0; n < sizeof layout / 8; ++n) {
        if (!visit(((const int64_t*)&layout)[n])) return false;
      }
      return true;
    };
    const auto visit_map = [&](auto visit) {
      for (size_t n = 0; n < JITLOAD_MAP_BYTES / 8; ++n) visit((int64_t*)out + n);
    };
    const uint64_t hash = ((layout.address >> 4) ^ ((uint64_t)layout.shape[0] << 40)) * UINT64_C(0x9E3779B97F4A7C15);
    struct jitload_map_cache* cache = jitload_create_once(&map->cache, [](struct jitload_map_cache*) {});
    auto* recent = cache != NULL ? &cache->recent[hash >> (64 - JITLOAD_MAP_SLOT_BITS)] : NULL;
    if (JITLOAD_LIKELY(recent != NULL && jitload_recall(recent, visit_layout, visit_map))) continue;
    if (jitload_encode_tensor_map(kernel, map, &layout, out) != 0) return -1;
    if (recent != NULL) jitload_keep(recent, visit_layout, visit_map);
  }
  return 0;
}
