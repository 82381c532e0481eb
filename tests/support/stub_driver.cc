// Entry points of the stub libcuda.so.1: start, errors, devices, contexts, streams, memory, libraries, tensor maps.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "stub.h"

namespace {

struct Error {
  int code;
  const char *name, *text;
};
const Error kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int find_error(const char* name, int code, const char* Error::*member, const char** text) {
  return call(name, NEEDS_NOTHING, [&](std::ostream& out) {
    out << " error=" << code;
    const auto error = std::find_if(std::begin(kErrors), std::end(kErrors), [&](auto& e) { return e.code == code; });
    *text = error != std::end(kErrors) ? error->*member : nullptr;
    check(*text != nullptr);
  });
}

void check_device(int device) { check(device >= 0 && device < state.device_count, INVALID_DEVICE); }

// Handles are looked up and never followed, so that a wrong one gets an error instead of a crash.
Library& find_library(const Library* handle) {
  for (Library& library : state.libraries) {
    if (&library == handle && library.is_loaded) return library;
  }
  throw Refusal{INVALID_HANDLE};
}

}  // namespace

Kernel& find_kernel(const void* handle, Function** function) {
  *function = nullptr;
  for (Library& library : state.libraries) {
    if (!library.is_loaded) continue;
    for (Kernel& kernel : library.kernels) {
      if (handle == &kernel) return kernel;
      for (Function& candidate : kernel.functions) {
        if (handle == &candidate) return *function = &candidate, kernel;
      }
    }
  }
  throw Refusal{INVALID_HANDLE};
}

Function& find_function(const void* handle, int device, std::ostream& out) {
  Function* function;
  Kernel& kernel = find_kernel(handle, &function);
  out << " kernel=" << kernel.name << " device=" << device;
  check_device(device);
  if (function == nullptr) function = &kernel.functions[device];
  check(function->device == device, INVALID_HANDLE);
  const int capability = kernel.library->capability;
  auto& attributes = state.attributes[device];
  check(capability / 10 == attributes[75] && capability % 10 <= attributes[76], NO_BINARY_FOR_GPU);
  return *function;
}

API int cuGetErrorName(int code, const char** name) { return find_error("cuGetErrorName", code, &Error::name, name); }
API int cuGetErrorString(int code, const char** text) {
  return find_error("cuGetErrorString", code, &Error::text, text);
}

// ---- start and devices -----------------------------------------------------------------------------------------------

API int cuInit(unsigned) {
  // The file that says that the start has begun, for what happens meanwhile.
  if (const char* slow = getenv("STUB_CUDA_SLOW_START")) {
    fclose(fopen(slow, "w"));
    usleep(700 * 1000);
  }
  return call("cuInit", NEEDS_NOTHING, [](std::ostream&) {
    check(state.device_count != 0, NO_DEVICE);
    mark_initialized();
  });
}

API int cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", NEEDS_NOTHING, [&](std::ostream&) { *version = 13000; });
}

API int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  return call("cuGetProcAddress", NEEDS_NOTHING, [&](std::ostream&) {
    static void* const stub = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    const std::string newer = std::string(name) + "_v2";
    *function = dlsym(stub, newer.c_str()) != nullptr ? dlsym(stub, newer.c_str()) : dlsym(stub, name);
    if (status != nullptr) *status = *function == nullptr;
  });
}

// The driver's private tables. NVRTC asks for one from 12.9 on, in every process that has a libcuda.so.1, and does
// without where there is none.
API int cuGetExportTable(const void** table, const void*) {
  return call("cuGetExportTable", NEEDS_NOTHING, [&](std::ostream&) {
    *table = nullptr;
    throw Refusal{NOT_FOUND};
  });
}

API int cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", NEEDS_INIT, [&](std::ostream&) { *count = state.device_count; });
}

API int cuDeviceGetName(char* name, int size, int device) {
  return call("cuDeviceGetName", NEEDS_INIT, [&](std::ostream&) {
    check_device(device);
    snprintf(name, size, "Stub GPU %d", device);
  });
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return call("cuDeviceGetAttribute", NEEDS_INIT, [&](std::ostream& out) {
    out << " attribute=" << attribute << " device=" << device;
    check_device(device);
    *value = state.attributes[device][attribute];
  });
}

// ---- contexts --------------------------------------------------------------------------------------------------------

API int cuDevicePrimaryCtxRetain(Context** context, int device) {
  return call("cuDevicePrimaryCtxRetain", NEEDS_INIT, [&](std::ostream& out) {
    out << " device=" << device;
    check_device(device);
    *context = &state.primary[device];
    **context = {device, (*context)->references + 1, true};
  });
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
  return call("cuDevicePrimaryCtxRelease", NEEDS_INIT, [&](std::ostream& out) {
    out << " device=" << device;
    check_device(device);
    check(state.primary[device].references != 0, INVALID_CONTEXT);
    state.primary[device].is_active = --state.primary[device].references != 0;
  });
}

API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  return call("cuDevicePrimaryCtxGetState", NEEDS_INIT, [&](std::ostream& out) {
    out << " device=" << device;
    check_device(device);
    *flags = 0, *is_active = state.primary[device].is_active;
  });
}

static void push_context(Context* context) {
  const auto is_known = [&](Context& known) { return &known == context; };
  check(std::any_of(state.primary.begin(), state.primary.begin() + state.device_count, is_known) ||
            std::any_of(state.contexts.begin(), state.contexts.end(), is_known),
        INVALID_CONTEXT);
  this_thread().stack.push_back(context);
}

API int cuCtxGetCurrent(Context** context) {
  return call("cuCtxGetCurrent", NEEDS_INIT, [&](std::ostream&) { *context = current_context(); });
}

// Nothing takes the top away; anything else takes the place of the top.
API int cuCtxSetCurrent(Context* context) {
  return call("cuCtxSetCurrent", NEEDS_INIT, [&](std::ostream&) {
    const bool had_top = current_context() != nullptr;
    if (context != nullptr) push_context(context);
    auto& stack = this_thread().stack;
    if (had_top) stack.erase(stack.end() - (context != nullptr ? 2 : 1));
  });
}

API int cuCtxGetDevice(int* device) {
  return call("cuCtxGetDevice", NEEDS_CONTEXT, [&](std::ostream&) { *device = current_device(); });
}

API int cuCtxPushCurrent_v2(Context* context) {
  return call("cuCtxPushCurrent", NEEDS_INIT, [&](std::ostream&) { push_context(context); });
}

API int cuCtxPopCurrent_v2(Context** context) {
  return call("cuCtxPopCurrent", NEEDS_INIT, [&](std::ostream&) {
    check(current_context() != nullptr, INVALID_CONTEXT);
    *context = current_context();
    this_thread().stack.pop_back();
  });
}

// ---- streams and memory ----------------------------------------------------------------------------------------------

int stream_device(const void* stream) {
  for (const int& device : state.streams) {
    if (stream == &device) return device;
  }
  return -1;
}

API int cuThreadExchangeStreamCaptureMode(int* mode) {
  return call("cuThreadExchangeStreamCaptureMode", NEEDS_INIT, [&](std::ostream& out) {
    out << " mode=" << *mode << " before=" << this_thread().capture_mode;
    std::swap(*mode, this_thread().capture_mode);
  });
}

API int cuStreamGetCtx(const void* stream, Context** context) {
  return call("cuStreamGetCtx", NEEDS_CONTEXT, [&](std::ostream&) {
    const int device = stream_device(stream);
    *context = device >= 0 ? &state.primary[device] : current_context();
  });
}

// Memory is host memory here, aligned as the driver's pools align it.
static void* allocate(size_t size) { return aligned_alloc(256, (size + 255) & ~size_t{255}); }

API int cuMemAllocAsync(void** address, size_t size, const void* stream) {
  return call("cuMemAllocAsync", NEEDS_CONTEXT, [&](std::ostream& out) {
    check(size != 0);
    *address = allocate(size);
    out << " address=" << uintptr_t(*address) << " size=" << size << " stream=" << uintptr_t(stream);
    out << " device=" << current_device();
  });
}

API int cuMemFreeAsync(void* address, const void* stream) {
  return call("cuMemFreeAsync", NEEDS_CONTEXT, [&](std::ostream& out) {
    out << " address=" << uintptr_t(address) << " stream=" << uintptr_t(stream);
    check(address != nullptr);
    free(address);
  });
}

// Unknown addresses are no error, as in the driver: they have no type and no device.
API int cuPointerGetAttributes(unsigned count, const int* attributes, int** values, uint64_t address) {
  return call("cuPointerGetAttributes", NEEDS_INIT, [&](std::ostream&) {
    enum { MEMORY_TYPE = 2, ORDINAL = 9, DEVICE_MEMORY = 2, NO_DEVICE_ORDINAL = -2 };
    int device = NO_DEVICE_ORDINAL;
    for (const Place& place : state.places) {
      if (address - place.address < place.size) device = place.device;
    }
    for (unsigned i = 0; i < count; ++i) {
      check(attributes[i] == MEMORY_TYPE || attributes[i] == ORDINAL);
      *values[i] = attributes[i] == ORDINAL ? device : device >= 0 ? DEVICE_MEMORY : 0;
    }
  });
}

// ---- libraries -------------------------------------------------------------------------------------------------------

// Bytes that are no cubin load too: the driver looks at them when a kernel is asked for.
API int cuLibraryLoadData(Library** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  return call("cuLibraryLoadData", NEEDS_INIT | IS_UNSAFE_IN_CAPTURE, [&](std::ostream& out) {
    *library = &state.libraries.emplace_back();
    read_image(code, **library);
    out << " library=" << uintptr_t(*library) << " size=" << (*library)->image.size();
    out << " capability=" << (*library)->capability;
  });
}

API int cuLibraryUnload(Library* library) {
  return call("cuLibraryUnload", NEEDS_INIT, [&](std::ostream& out) {
    out << " library=" << uintptr_t(library);
    find_library(library).is_loaded = false;
  });
}

API int cuLibraryGetKernel(Kernel** kernel, Library* handle, const char* name) {
  return call("cuLibraryGetKernel", NEEDS_INIT, [&](std::ostream&) {
    Library& library = find_library(handle);
    check(!library.image.empty(), INVALID_IMAGE);
    for (Kernel& candidate : library.kernels) {
      if (candidate.name == name) return void(*kernel = &candidate);
    }
    throw Refusal{NOT_FOUND};
  });
}

API int cuLibraryGetKernelCount(unsigned* count, Library* library) { return *count = library->kernels.size(), 0; }

API int cuLibraryEnumerateKernels(Kernel** kernels, unsigned, Library* library) {
  for (Kernel& kernel : library->kernels) *kernels++ = &kernel;
  return 0;
}

API int cuKernelGetName(const char** name, Kernel* kernel) { return *name = kernel->name.c_str(), 0; }

// Variables exist once a device.
API int cuLibraryGetGlobal(void** address, size_t* size, Library* handle, const char* name) {
  return call("cuLibraryGetGlobal", NEEDS_CONTEXT, [&](std::ostream&) {
    Library& library = find_library(handle);
    check(library.variables.count(name) != 0, NOT_FOUND);
    Variable& variable = library.variables[name];
    void*& copy = variable.copies[current_device()];
    if (copy == nullptr) {
      copy = memset(allocate(variable.size), 0, variable.size);
      memcpy(copy, variable.initial.data(), variable.initial.size());
    }
    *address = copy;
    if (size != nullptr) *size = variable.size;
  });
}

// ---- kernels and functions -------------------------------------------------------------------------------------------

API int cuKernelGetFunction(Function** function, Kernel* kernel) {
  return call("cuKernelGetFunction", NEEDS_CONTEXT | IS_UNSAFE_IN_CAPTURE,
              [&](std::ostream& out) { *function = &find_function(kernel, current_device(), out); });
}

API int cuFuncLoad(const void* function) {
  return call("cuFuncLoad", NEEDS_CONTEXT | IS_UNSAFE_IN_CAPTURE,
              [&](std::ostream& out) { find_function(function, current_device(), out); });
}

enum { MAX_THREADS, STATIC_SHARED, MAX_DYNAMIC_SHARED = 8, CLUSTER_WIDTH = 11, NON_PORTABLE_CLUSTER = 14 };

API int cuKernelGetAttribute(int* value, int attribute, Kernel* handle, int device) {
  return call("cuKernelGetAttribute", NEEDS_INIT, [&](std::ostream& out) {
    const Function& function = find_function(handle, device, out);
    const Kernel& kernel = *function.kernel;
    const std::map<int, int> values = {
        {MAX_THREADS, kernel.max_threads},
        {STATIC_SHARED, kernel.static_shared},
        {MAX_DYNAMIC_SHARED, function.max_dynamic_shared},
        {CLUSTER_WIDTH, kernel.cluster[0]},
        {CLUSTER_WIDTH + 1, kernel.cluster[1]},
        {CLUSTER_WIDTH + 2, kernel.cluster[2]},
    };
    check(values.count(attribute) != 0);
    *value = values.at(attribute);
  });
}

API int cuKernelSetAttribute(int attribute, int value, Kernel* handle, int device) {
  return call("cuKernelSetAttribute", NEEDS_INIT | IS_UNSAFE_IN_CAPTURE, [&](std::ostream& out) {
    out << " attribute=" << attribute << " value=" << value;
    Function& function = find_function(handle, device, out);
    check(attribute == MAX_DYNAMIC_SHARED || attribute == NON_PORTABLE_CLUSTER);
    if (attribute == NON_PORTABLE_CLUSTER) return void(function.allows_non_portable_cluster = value != 0);
    check(value >= 0 && value <= state.attributes[device][97] - function.kernel->static_shared);
    function.max_dynamic_shared = value;
  });
}

API int cuKernelGetParamInfo(Kernel* handle, size_t index, size_t* offset, size_t* size) {
  return call("cuKernelGetParamInfo", NEEDS_INIT, [&](std::ostream&) {
    Function* function;
    const Kernel& kernel = find_kernel(handle, &function);
    check(index < kernel.slots.size());
    *offset = kernel.slots[index].offset;
    if (size != nullptr) *size = kernel.slots[index].size;
  });
}

// ---- tensor maps -----------------------------------------------------------------------------------------------------

// A list of numbers, "4,2".
template <class T>
static std::string listed(const T* numbers, uint32_t count) {
  std::ostringstream out;
  for (uint32_t i = 0; i < count; ++i) out << (i != 0 ? "," : "") << numbers[i];
  return out.str();
}

// Write what both kinds of maps have. The driver's 128 bytes are secret; these hold the address and the rank, so that a
// test knows the map again.
static void encode(std::ostream& out, void* map, uint32_t rank, void* address, const uint64_t* extents,
                   const uint64_t* strides, const uint32_t* steps) {
  check(uintptr_t(map) % 64 == 0 && uintptr_t(address) % 16 == 0 && rank >= 1 && rank <= 5);
  const uint64_t words[16] = {uintptr_t(address), rank};
  memcpy(map, words, sizeof words);
  out << " rank=" << rank << " address=" << uintptr_t(address) << " extents=" << listed(extents, rank);
  out << " strides=" << listed(strides, rank - 1) << " steps=" << listed(steps, rank);
}

API int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                               const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                               int swizzle, int promotion, int fill) {
  return call("cuTensorMapEncodeTiled", NEEDS_INIT, [&](std::ostream& out) {
    encode(out, map, rank, address, extents, strides, steps);
    out << " type=" << type << " box=" << listed(box, rank) << " interleave=" << interleave << " swizzle=" << swizzle;
    out << " promotion=" << promotion << " fill=" << fill;
  });
}

// The corners are of the axes between the first and the last one.
API int cuTensorMapEncodeIm2col(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                                const uint64_t* strides, const int* lower, const int* upper, uint32_t channels,
                                uint32_t pixels, const uint32_t* steps, int interleave, int swizzle, int promotion,
                                int fill) {
  return call("cuTensorMapEncodeIm2col", NEEDS_INIT, [&](std::ostream& out) {
    check(rank >= 3);
    encode(out, map, rank, address, extents, strides, steps);
    out << " type=" << type << " lower=" << listed(lower, rank - 2) << " upper=" << listed(upper, rank - 2);
    out << " channels=" << channels << " pixels=" << pixels << " interleave=" << interleave << " swizzle=" << swizzle;
    out << " promotion=" << promotion << " fill=" << fill;
  });
}

// ---- what Triton's own launcher is linked with, and what it needs of that ---------------------------------------------

#define NOTHING(name) \
  API int name() { return 0; }
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetLimit)
NOTHING(cuDeviceGet)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuMemAlloc_v2)
NOTHING(cuMemFree_v2)
NOTHING(cuMemcpyDtoHAsync_v2)
NOTHING(cuMemcpyHtoD_v2)
NOTHING(cuMemsetD32Async)
NOTHING(cuMemsetD8Async)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuStreamIsCapturing)
NOTHING(cuStreamSynchronize)
API int cuPointerGetAttribute(uint64_t* out, int, uint64_t address) { return *out = address, 0; }
