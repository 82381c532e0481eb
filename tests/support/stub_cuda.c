/* Entry points of the stub libcuda.so.1 beside libraries and launches: start, errors, devices, contexts, streams. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

/* ---- errors ---------------------------------------------------------------------------------------------------- */

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult find_error(CUresult error, int wants_text, const char** found) {
  if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
  *found = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i) {
    if (errors[i].code == error) *found = wants_text ? errors[i].text : errors[i].name;
  }
  return *found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STUB_API CUresult cuGetErrorName(CUresult error, const char** name) {
  CUresult result = stub_begin("cuGetErrorName", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS) result = find_error(error, 0, name);
  return stub_end(result, "error=%d", error);
}

STUB_API CUresult cuGetErrorString(CUresult error, const char** text) {
  CUresult result = stub_begin("cuGetErrorString", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS) result = find_error(error, 1, text);
  return stub_end(result, "error=%d", error);
}

/* ---- start ----------------------------------------------------------------------------------------------------- */

STUB_API CUresult cuInit(unsigned flags) {
  const char* slow = getenv("STUB_CUDA_SLOW_START"); /* the file that says that it has begun, for what happens meanwhile */
  if (slow != NULL) {
    fclose(fopen(slow, "w"));
    usleep(700 * 1000);
  }
  CUresult result = stub_begin("cuInit", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS && flags != 0) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && stub_config.device_count == 0) result = CUDA_ERROR_NO_DEVICE;
  if (result == CUDA_SUCCESS) stub_mark_initialized();
  return stub_end(result, "flags=%u", flags);
}

static CUresult give_int(int* out, int value) {
  if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

STUB_API CUresult cuDriverGetVersion(int* version) {
  CUresult result = stub_begin("cuDriverGetVersion", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS) result = give_int(version, stub_config.driver_version);
  return stub_end(result, "version=%d", stub_config.driver_version);
}

static CUresult find_symbol(const char* name, void** function, int version, int* status) {
  enum { FOUND, NOT_FOUND, VERSION_NOT_SUFFICIENT };
  if (name == NULL || function == NULL || version > stub_config.driver_version) return CUDA_ERROR_INVALID_VALUE;
  const stub_symbol* symbol = stub_symbols;
  while (symbol->name != NULL && strcmp(symbol->name, name) != 0) ++symbol;
  const int answer = symbol->name == NULL ? NOT_FOUND : version < symbol->since ? VERSION_NOT_SUFFICIENT : FOUND;
  *function = answer == FOUND ? symbol->address : NULL;
  if (status != NULL) *status = answer;
  return CUDA_SUCCESS;
}

STUB_API CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  CUresult result = stub_begin("cuGetProcAddress", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS) result = find_symbol(name, function, version, status);
  return stub_end(result, "name=%s version=%d flags=%llu", stub_quote(name), version,
                  (unsigned long long)flags);
}

/* The driver's private tables. NVRTC asks for one from 12.9 on, in every process that has a libcuda.so.1, and does
 * without where there is none. */
STUB_API CUresult cuGetExportTable(const void** table, const void* id) {
  CUresult result = stub_begin("cuGetExportTable", NEEDS_NOTHING);
  if (result == CUDA_SUCCESS) result = table == NULL || id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
  if (table != NULL) *table = NULL;
  return stub_end(result, "id=%p", id);
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

static CUresult check_device(CUdevice device) {
  return device >= 0 && device < stub_config.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

STUB_API CUresult cuDeviceGetCount(int* count) {
  CUresult result = stub_begin("cuDeviceGetCount", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = give_int(count, stub_config.device_count);
  return stub_end(result, "count=%d", stub_config.device_count);
}

STUB_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  CUresult result = stub_begin("cuDeviceGet", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(ordinal);
  if (result == CUDA_SUCCESS) result = give_int(device, ordinal);
  return stub_end(result, "ordinal=%d", ordinal);
}

STUB_API CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  CUresult result = stub_begin("cuDeviceGetName", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(device);
  if (result == CUDA_SUCCESS && (name == NULL || size < 1)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) snprintf(name, (size_t)size, "Stub GPU %d", device);
  return stub_end(result, "device=%d", device);
}

STUB_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  CUresult result = stub_begin("cuDeviceGetAttribute", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(device);
  if (result == CUDA_SUCCESS && (attribute < 1 || attribute >= DEVICE_ATTRIBUTE_COUNT)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS) result = give_int(value, stub_config.attributes[device][attribute]);
  return stub_end(result, "attribute=%d device=%d", attribute, device);
}

STUB_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  CUresult result = stub_begin("cuDevicePrimaryCtxRetain", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(device);
  if (result == CUDA_SUCCESS && context == NULL) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *context = &stub_primary[device];
    ++stub_primary[device].references;
    stub_primary[device].is_active = 1;
  }
  return stub_end(result, "device=%d", device);
}

STUB_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult result = stub_begin("cuDevicePrimaryCtxRelease", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(device);
  if (result == CUDA_SUCCESS && stub_primary[device].references == 0) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS && --stub_primary[device].references == 0) stub_primary[device].is_active = 0;
  return stub_end(result, "device=%d", device);
}

STUB_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  CUresult result = stub_begin("cuDevicePrimaryCtxGetState", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = check_device(device);
  if (result == CUDA_SUCCESS && flags == NULL) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = give_int(is_active, stub_primary[device].is_active);
  if (result == CUDA_SUCCESS) *flags = 0;
  return stub_end(result, "device=%d", device);
}

/* ---- the current context --------------------------------------------------------------------------------------- */

static void push_context(stub_thread* thread, CUcontext context) {
  const int room = (int)(sizeof thread->stack / sizeof *thread->stack);
  if (thread->depth < room) thread->stack[thread->depth++] = context;
}

/* NULL takes the top away; anything else takes the place of the top. */
static CUresult set_current(CUcontext context) {
  stub_thread* thread = stub_this_thread();
  if (context != NULL && !stub_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (thread->depth > 0) --thread->depth;
  if (context != NULL) push_context(thread, context);
  return CUDA_SUCCESS;
}

STUB_API CUresult cuCtxGetCurrent(CUcontext* context) {
  CUresult result = stub_begin("cuCtxGetCurrent", NEEDS_INIT);
  if (result == CUDA_SUCCESS && context == NULL) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) *context = stub_current();
  return stub_end(result, "device=%d", stub_device_of_current());
}

STUB_API CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = stub_begin("cuCtxSetCurrent", NEEDS_INIT);
  if (result == CUDA_SUCCESS) result = set_current(context);
  return stub_end(result, "context=%p device=%d", (void*)context, stub_device_of_current());
}

STUB_API CUresult cuCtxGetDevice(CUdevice* device) {
  CUresult result = stub_begin("cuCtxGetDevice", NEEDS_CONTEXT);
  if (result == CUDA_SUCCESS) result = give_int(device, stub_device_of_current());
  return stub_end(result, "device=%d", stub_device_of_current());
}

STUB_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult result = stub_begin("cuCtxPushCurrent", NEEDS_INIT);
  if (result == CUDA_SUCCESS && !stub_is_context(context)) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS) push_context(stub_this_thread(), context);
  return stub_end(result, "context=%p device=%d", (void*)context, stub_device_of_current());
}

STUB_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  CUresult result = stub_begin("cuCtxPopCurrent", NEEDS_INIT);
  const CUcontext top = stub_current();
  if (result == CUDA_SUCCESS && top == NULL) result = CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_SUCCESS) {
    if (context != NULL) *context = top;
    --stub_this_thread()->depth;
  }
  return stub_end(result, "context=%p device=%d", (void*)top, stub_device_of_current());
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* The capture is on every stream but the two default ones. */
static int is_captured(CUstream stream) { return stub_config.is_capturing && (uintptr_t)stream > 1; }

STUB_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  CUresult result = stub_begin("cuThreadExchangeStreamCaptureMode", NEEDS_INIT);
  const int before = stub_this_thread()->capture_mode, wanted = mode != NULL ? *mode : -1;
  if (result == CUDA_SUCCESS && (wanted < CAPTURE_GLOBAL || wanted > CAPTURE_RELAXED)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS) {
    stub_this_thread()->capture_mode = wanted;
    *mode = before;
  }
  return stub_end(result, "mode=%d before=%d", wanted, before);
}

STUB_API CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  CUresult result = stub_begin("cuStreamIsCapturing", NEEDS_CONTEXT);
  if (result == CUDA_SUCCESS) result = give_int(status, is_captured(stream));
  return stub_end(result, "stream=%p", stream);
}

STUB_API CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  CUresult result = stub_begin("cuStreamGetCtx", NEEDS_CONTEXT);
  const int device = stub_stream_device(stream);
  if (result == CUDA_SUCCESS && context == NULL) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) *context = device >= 0 ? &stub_primary[device] : stub_current();
  return stub_end(result, "stream=%p", stream);
}
