/* Entry points of the stub libcuda.so.1 for addresses: tests say on which device a piece of memory lies. */
#include "stub.h"

enum { POINTER_MEMORY_TYPE = 2, POINTER_ORDINAL = 9 };
enum { MEMORY_NONE = 0, MEMORY_DEVICE = 2, NO_DEVICE = -2, MAX_PLACES = 64 };

static struct {
  CUdeviceptr address;
  size_t size;
  int device;
} places[MAX_PLACES];
static int place_count;

/* Memory at an address belongs to a device from now on, and until a later call says something else. */
STUB_API int stub_place(CUdeviceptr address, size_t size, int device) {
  stub_begin("stub_place", NEEDS_NOTHING);
  const int has_room = place_count < MAX_PLACES;
  if (has_room) {
    places[place_count].address = address;
    places[place_count].size = size;
    places[place_count++].device = device;
  }
  stub_end(CUDA_SUCCESS, "address=%#llx device=%d", (unsigned long long)address, device);
  return has_room ? 0 : -1;
}

/* Unknown addresses are no error here, as in the driver: they have no type and no device. */
STUB_API CUresult cuPointerGetAttributes(unsigned count, int* attributes, void** values, CUdeviceptr address) {
  CUresult result = stub_begin("cuPointerGetAttributes", NEEDS_INIT);
  int device = NO_DEVICE;
  for (int i = 0; i < place_count; ++i) {
    if (address - places[i].address < places[i].size) device = places[i].device;
  }
  if (result == CUDA_SUCCESS && (attributes == NULL || values == NULL)) result = CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < count; ++i) {
    const int is_type = attributes[i] == POINTER_MEMORY_TYPE;
    if (!is_type && attributes[i] != POINTER_ORDINAL) result = CUDA_ERROR_INVALID_VALUE;
    *(int*)values[i] = !is_type ? device : device >= 0 ? MEMORY_DEVICE : MEMORY_NONE;
  }
  return stub_end(result, "address=%#llx device=%d", (unsigned long long)address, device);
}
