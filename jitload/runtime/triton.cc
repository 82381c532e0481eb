/* A call of a Triton kernel: what its machine code was specialised for is checked, then it is launched as compiled. */
#include <stdio.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "descriptor.cc"
#include "launch_steps.h"
#include "triton_call.h"

/* ---- does a variant fit? --------------------------------------------------------------------------------------- */

static inline int jitload_holds(const jitload_assumption* assumption, const TVMFFIAny* value, uint64_t number) {
  switch (assumption->kind) {
    case JITLOAD_MULTIPLE_OF: return (number & (uint64_t)(assumption->value - 1)) == 0;
    case JITLOAD_EQUAL_TO: return (int64_t)number == assumption->value;
    default: return value->type_index == kTVMFFINone || (value->type_index == kTVMFFIOpaquePtr && number == 0);
  }
}

/* The first assumption that does not hold, or NULL. */
static inline const jitload_assumption* jitload_find_broken(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                            const uint64_t* values) {
  const jitload_triton* triton = kernel->triton;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const jitload_assumption* assumption = &triton->assumptions[i];
    if (!jitload_holds(assumption, &args[assumption->param], values[assumption->param])) return assumption;
  }
  return NULL;
}

/* The first small float that was finite and has become infinite, or NULL. */
static inline const jitload_param* jitload_find_infinite(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                         const uint64_t* values) {
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (!(param->flags & JITLOAD_FINITE)) continue;
    const uint64_t infinity = param->dtype_code == kDLBfloat ? 0x7f80 : 0x7c00;
    const int was_finite = args[i].type_index != kTVMFFIFloat || __builtin_isfinite(args[i].v_float64);
    if ((values[i] & 0x7fff) == infinity && was_finite) return param;
  }
  return NULL;
}

static inline int jitload_blocks_fit(const jitload_kernel* kernel, const jitload_described* described) {
  for (int32_t i = 0; i < kernel->triton->descriptor_count; ++i) {
    if (!jitload_block_fits(&kernel->triton->descriptors[i], &described[i])) return 0;
  }
  return 1;
}

/* ---- why none fits --------------------------------------------------------------------------------------------- */

/* How near a variant came: the argument that could not be read, or else how few assumptions are broken. */
static int32_t jitload_nearness(const jitload_kernel* kernel, const TVMFFIAny* args,
                                const jitload_described* described, uint64_t* values) {
  const jitload_triton* triton = kernel->triton;
  int32_t device = -1;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    ptrdiff_t size;
    const int is_read = param->kind == JITLOAD_POINTER  ? jitload_read_pointer(param, &args[i], &values[i], &device)
                        : param->kind == JITLOAD_STRUCT ? jitload_read_struct(&args[i], NULL, param->size, &size)
                                                        : jitload_read_number(param, &args[i], &values[i]);
    if (!is_read) return i - kernel->param_count;
  }
  int32_t held = 0;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const int32_t param = triton->assumptions[i].param;
    held += jitload_holds(&triton->assumptions[i], &args[param], values[param]);
  }
  return 1000000 - 2 * (triton->assumption_count - held) - !jitload_blocks_fit(kernel, described);
}

static int jitload_refuse_assumption(const jitload_kernel* kernel, const jitload_assumption* assumption,
                                     uint64_t number, const char* instead) {
  const jitload_param* param = &kernel->params[assumption->param];
  const long long wanted = (long long)assumption->value;
  if (assumption->kind == JITLOAD_NULL) {
    return jitload_fail("ValueError", "%s(): argument '%s' must be None: the kernel was compiled for that; %s",
                        kernel->name, param->name, instead);
  }
  if (param->kind == JITLOAD_POINTER) {
    return jitload_fail("ValueError",
                        "%s(): argument '%s' (%s) must be aligned to %lld bytes: the kernel was compiled for that, and "
                        "its address is 0x%llx; %s",
                        kernel->name, param->name, param->type, wanted, (unsigned long long)number, instead);
  }
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) must be %s%lld: the kernel was compiled for that, got %lld; %s",
                      kernel->name, param->name, param->type,
                      assumption->kind == JITLOAD_MULTIPLE_OF ? "a multiple of " : "", wanted, (long long)number, instead);
}

static int jitload_refuse_block(const jitload_kernel* kernel, const jitload_described* described, const char* instead) {
  int32_t i = 0;
  while (jitload_block_fits(&kernel->triton->descriptors[i], &described[i])) ++i;
  const jitload_param* param = &kernel->params[kernel->triton->descriptors[i].param];
  return jitload_fail("ValueError", "%s(): argument '%s' must have the block shape of %s: the kernel was compiled for that; %s",
                      kernel->name, param->name, param->type, instead);
}

/* Set the error that the variant which came nearest gives, in the name of the function that was called. */
static __attribute__((cold, noinline)) int jitload_refuse_variants(const jitload_kernel* called, const TVMFFIAny* args,
                                                                   const jitload_described* described) {
  const jitload_triton* triton = called->triton;
  uint64_t* values = (uint64_t*)__builtin_alloca(8 * (size_t)called->param_count + 8);
  const jitload_kernel* nearest = triton->variant_count == 0 ? called : triton->variants[0];
  int32_t best = jitload_nearness(nearest, args, described, values);
  for (int32_t i = 1; i < triton->variant_count; ++i) {
    const int32_t nearness = jitload_nearness(triton->variants[i], args, described, values);
    if (nearness > best) best = nearness, nearest = triton->variants[i];
  }
  jitload_kernel named = *nearest;
  named.name = called->name;
  if (jitload_nearness(nearest, args, described, values) < 0) return jitload_explain(&named, args, named.argument_count);
  const char* instead = triton->variant_count == 0 ? "compile it without that, or add a variant that is"
                                                   : "none of the variants fits, and this one comes nearest";
  const jitload_assumption* broken = jitload_find_broken(nearest, args, values);
  if (broken != NULL) return jitload_refuse_assumption(&named, broken, values[broken->param], instead);
  if (!jitload_blocks_fit(nearest, described)) return jitload_refuse_block(&named, described, instead);
  const jitload_param* infinite = jitload_find_infinite(nearest, args, values);
  if (infinite == NULL) {
    return jitload_fail("ValueError", "%s(): a variant fits the arguments, but has no code for their device", called->name);
  }
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) is too large for its type", called->name, infinite->name,
                      infinite->type);
}

/* ---- scratch memory ------------------------------------------------------------------------------------------- */

/* Scratch memory is released as soon as the launch is queued, so the allocator must order its next use after the launch.
 * A framework's allocator does so on the framework's current stream; on any other stream the driver's pool does. Both
 * may be used while a graph is captured.
 */

/* What an allocator says of a failure. */
typedef struct jitload_reason {
  char text[512];
} jitload_reason;

static void jitload_keep_reason(void* context, const char* kind, const char* message) {
  (void)kind;
  jitload_reason* reason = (jitload_reason*)context;
  strncpy(reason->text, message, sizeof reason->text - 1);
}

static int jitload_refuse_scratch(const jitload_request* request, jitload_cu_device device, int64_t bytes,
                                  const char* reason) {
  return jitload_fail("RuntimeError", "%s(): the kernel needs %lld bytes of scratch memory on cuda:%d, which it does not get: %s",
                      request->kernel->name, (long long)bytes, (int)device, reason);
}

/* The allocator of the framework whose tensors are among the arguments, as tvm-ffi has noted it for this call. */
static int jitload_take_from_caller(const jitload_request* request, jitload_cu_device device, DLTensor* prototype,
                                    int64_t bytes, jitload_scratch* out) {
  if (TVMFFIEnvTensorAlloc(prototype, &out->tensor) == 0) {
    out->address = jitload_address((const DLTensor*)((const char*)out->tensor + sizeof(TVMFFIObject)));
    return 0;
  }
  TVMFFIObjectHandle error = NULL;
  jitload_reason reason = {};
  TVMFFIErrorMoveFromRaised(&error);
  if (error != NULL) {
    const TVMFFIByteArray message = ((const TVMFFIErrorCell*)((const char*)error + sizeof(TVMFFIObject)))->message;
    const size_t size = message.size < sizeof reason.text ? message.size : sizeof reason.text - 1;
    memcpy(reason.text, message.data, size);
    TVMFFIObjectDecRef(error);
  }
  if (strncmp(reason.text, "TVMFFIEnvTensorAlloc", 20) == 0) { /* tvm-ffi's own words: there is no allocator */
    return jitload_refuse_scratch(request, device, bytes,
                                  "no framework offers an allocator in this call; import torch 2.10 or newer before "
                                  "loading, or pass tensors of a framework with DLPack's exchange API");
  }
  return jitload_refuse_scratch(request, device, bytes, reason.text);
}

static int jitload_take_from_framework(const jitload_request* request, jitload_cu_device device, DLTensor* prototype,
                                       int64_t bytes, jitload_scratch* out) {
  jitload_reason reason = {};
  if (jitload_allocator(prototype, &out->managed, &reason, jitload_keep_reason) != 0) {
    return jitload_refuse_scratch(request, device, bytes, reason.text);
  }
  out->address = jitload_address(&out->managed->dl_tensor);
  return 0;
}

static int jitload_take_from_driver(const jitload_driver* driver, const jitload_request* request,
                                    jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                    jitload_scratch* out) {
  const jitload_cu_result code = driver->allocate_async(&out->pool, (size_t)bytes, stream);
  out->address = out->pool;
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  char what[96];
  snprintf(what, sizeof what, "the kernel does not get its %lld bytes of scratch memory on cuda:%d", (long long)bytes, (int)device);
  return jitload_driver_error(driver, request->kernel->name, what, code);
}

/* Whether the memory that torch frees now is used next on this stream. */
static int jitload_is_current(jitload_cu_device device, jitload_cu_stream stream) {
  void* current = NULL;
  return jitload_stream_source != NULL && jitload_stream_source(kDLCUDA, device, &current) == 0 && current == stream;
}

extern "C" int jitload_take_scratch(const jitload_driver* driver, const jitload_request* request,
                                    jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                    jitload_scratch* out) {
  const int64_t alignment = request->kernel->triton->scratch_alignment;
  int64_t size = 0; /* allocators align to 256 bytes or more, but that is nowhere promised */
  if (__builtin_add_overflow(bytes, alignment - 1, &size) || size == INT64_MAX) {
    return jitload_refuse_scratch(request, device, bytes, "that is more than 64 bits count");
  }
  DLTensor prototype = {};
  prototype.device = DLDevice{kDLCUDA, device};
  prototype.ndim = 1;
  prototype.dtype = DLDataType{kDLUInt, 8, 1};
  prototype.shape = &size;
  const int is_given = request->config != NULL && request->config->has_stream;
  int failed;
  if (jitload_allocator != NULL) {
    failed = jitload_is_current(device, stream)
                 ? jitload_take_from_framework(request, device, &prototype, bytes, out)
                 : jitload_take_from_driver(driver, request, device, stream, size, out);
  } else if (is_given && stream != TVMFFIEnvGetStream(kDLCUDA, device)) {
    failed = jitload_take_from_driver(driver, request, device, stream, size, out);
  } else {
    failed = jitload_take_from_caller(request, device, &prototype, bytes, out);
  }
  out->address = (out->address + (uint64_t)alignment - 1) & ~((uint64_t)alignment - 1);
  return failed;
}

extern "C" void jitload_drop_scratch(const jitload_driver* driver, jitload_cu_stream stream,
                                     const jitload_scratch* scratch) {
  if (scratch->managed != NULL) {
    if (scratch->managed->deleter != NULL) scratch->managed->deleter(scratch->managed);
  } else if (scratch->tensor != NULL) {
    TVMFFIObjectDecRef(scratch->tensor);
  } else {
    driver->free_async(scratch->pool, stream);
  }
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

typedef struct jitload_triton_request {
  jitload_request base; /* first, so that the steps all launches share take it */
  int64_t programs;
  uint64_t hidden[2];
  int32_t asks_framework; /* for the stream, where tvm-ffi has none set */
} jitload_triton_request;

/* The right context is current. */
static int jitload_launch_triton_here(const jitload_driver* driver, const jitload_request* base,
                                      jitload_cu_device device) {
  jitload_triton_request* request = (jitload_triton_request*)base;
  const jitload_triton* triton = base->kernel->triton;
  jitload_slot* slot = NULL;
  if (jitload_prepare(driver, base, device, &slot) != 0) return -1;
  const jitload_cu_stream stream = jitload_pick_stream(base, device, request->asks_framework);
  jitload_scratch scratch = {};
  int64_t bytes = 0;
  if (triton->scratch_bytes != 0) {
    if (__builtin_mul_overflow(request->programs, triton->scratch_bytes, &bytes)) bytes = INT64_MAX;
    if (jitload_take_scratch(driver, base, device, stream, bytes, &scratch) != 0) return -1;
    request->hidden[0] = scratch.address;
  }
  const jitload_cu_result code = jitload_submit(driver, base, slot->kernel, stream);
  if (bytes != 0) jitload_drop_scratch(driver, stream, &scratch);
  if (JITLOAD_LIKELY(code == JITLOAD_CUDA_SUCCESS)) return 0;
  return jitload_launch_error(base, slot, device, code);
}

/* Turn the grid of programs into one of blocks; 1 means that there are none. */
static inline int jitload_make_blocks(jitload_triton_request* request) {
  const int32_t* multiply = request->base.kernel->triton->multiply;
  int64_t* grid = request->base.plan.grid;
  const int extents = jitload_check_extents(&request->base);
  if (extents != 0) return extents;
  request->programs = grid[0] * grid[1] * grid[2];
  for (int i = 0; i < 3; ++i) grid[i] *= multiply[i];
  return jitload_check_extents(&request->base);
}

/* Point the kernel's parameters at the arguments' parts and at the hidden pointers. */
static inline void jitload_place_parameters(jitload_triton_request* request, jitload_described* described,
                                            void** params) {
  const jitload_triton* triton = request->base.kernel->triton;
  for (int32_t i = 0; i < triton->place_count; ++i) {
    const jitload_place* place = &triton->places[i];
    jitload_described* one = &described[place->descriptor];
    switch (place->part) {
      case JITLOAD_VALUE: params[i] = request->base.params[place->param]; break;
      case JITLOAD_MAP: params[i] = one->map; break;
      case JITLOAD_SHAPE: params[i] = &one->shape[place->axis]; break;
      case JITLOAD_STRIDE: params[i] = &one->strides[place->axis]; break;
      case JITLOAD_PADDING: params[i] = &one->pads_nan; break;
      default: params[i] = &one->rounds; break;
    }
  }
  for (int32_t i = 0; i < triton->hidden_pointers; ++i) params[triton->place_count + i] = &request->hidden[i];
  request->base.params = params;
}

static int jitload_refuse_grid(const jitload_kernel* kernel) {
  return jitload_fail("TypeError", "%s() is not told its grid: call %s[grid](…), or declare it with grid=", kernel->name,
                      kernel->name);
}

/* 1: the variant does not fit; 0: it is launched, or there is nothing to launch; -1: the error is set. */
static int jitload_try_variant(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                               jitload_described* described, jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  const size_t count = (size_t)kernel->param_count;
  uint64_t* values = (uint64_t*)__builtin_alloca(8 * count + 8);
  jitload_triton_request request;
  request.base.kernel = kernel;
  request.base.config = config;
  request.base.stream_source = stream_source;
  request.base.params = (void**)__builtin_alloca(sizeof(void*) * count + 8);
  request.base.device = -1;
  request.hidden[0] = request.hidden[1] = 0;
  unsigned char* structs = NULL;
  if (kernel->struct_bytes != 0) structs = (unsigned char*)__builtin_alloca(kernel->struct_bytes);
  if (!jitload_read_arguments(&request.base, args, values, &structs)) return 1;
  if (jitload_find_broken(kernel, args, values) != NULL || !jitload_blocks_fit(kernel, described) ||
      jitload_find_infinite(kernel, args, values) != NULL) {
    return 1;
  }
  if (!(kernel->flags & JITLOAD_HAS_GRID) && (config == NULL || !config->has_grid)) return jitload_refuse_grid(kernel);
  if (jitload_make_plan(&request.base, args, values) != 0) return -1;
  const int extents = jitload_make_blocks(&request);
  if (extents != 0) return extents < 0 ? -1 : 0;
  request.asks_framework = request.base.device < 0;
  for (int32_t i = 0; i < triton->descriptor_count; ++i) {
    const jitload_descriptor* descriptor = &triton->descriptors[i];
    const jitload_driver* driver = descriptor->type >= 0 ? jitload_get_driver(kernel->name) : NULL;
    if (descriptor->type >= 0 && driver == NULL) return -1;
    if (jitload_make_descriptor(driver, kernel, descriptor, &args[descriptor->param], &described[i]) != 0) return -1;
    if (described[i].block_rank != 0) request.asks_framework = 1;
  }
  void** params = (void**)__builtin_alloca(sizeof(void*) * (size_t)(triton->place_count + triton->hidden_pointers) + 8);
  jitload_place_parameters(&request, described, params);
  return jitload_on_device(&request.base, jitload_launch_triton_here);
}

/* ---- the call -------------------------------------------------------------------------------------------------- */

/* The device that a call's tensors are on, or the current one. */
static jitload_cu_device jitload_device_of(const jitload_driver* driver, const jitload_kernel* kernel,
                                           const TVMFFIAny* args) {
  jitload_cu_device current = 0;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const DLTensor* tensor = jitload_tensor_of(&args[i]);
    if (tensor != NULL && jitload_is_cuda(tensor->device)) return tensor->device.device_id;
  }
  return driver->context_device(&current) == JITLOAD_CUDA_SUCCESS ? current : 0;
}

/* Whether a library for several architectures has this variant for the device. */
static int jitload_has_code(const jitload_kernel* kernel, const jitload_driver* driver, jitload_cu_device device) {
  const jitload_state* state = __atomic_load_n(kernel->module->state, __ATOMIC_ACQUIRE);
  if (state != NULL && device < state->device_count &&
      __atomic_load_n(&state->slots[kernel->index * state->device_count + device].kernel, __ATOMIC_ACQUIRE) != NULL) {
    return 1;
  }
  return jitload_suits(driver, kernel, device);
}

static int jitload_dispatch(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                            jitload_described* described, jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  const jitload_driver* driver = NULL;
  jitload_cu_device device = 0;
  jitload_slot* slot = NULL;
  if (kernel->module->image_count > 1) {
    driver = jitload_get_driver(kernel->name);
    if (driver == NULL) return -1;
    device = jitload_device_of(driver, kernel, args);
  }
  int has_code = driver == NULL;
  for (int32_t i = 0; i < triton->variant_count; ++i) {
    const jitload_kernel* variant = triton->variants[i];
    if (driver != NULL && !jitload_has_code(variant, driver, device)) continue;
    has_code = 1;
    const int tried = jitload_try_variant(variant, config, args, described, stream_source);
    if (JITLOAD_LIKELY(tried <= 0)) return tried;
  }
  /* Where no image suits the device, looking for one says which there are. */
  if (!has_code) return jitload_resolve(driver, kernel, device, &slot);
  return jitload_refuse_variants(kernel, args, described);
}

extern "C" int jitload_run_triton(const jitload_kernel* kernel, const jitload_config* config, const void* given,
                                  jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  const TVMFFIAny* args = (const TVMFFIAny*)given;
  jitload_described* described = NULL;
  if (config != NULL && (config->has_block || config->has_shared_bytes)) {
    return jitload_fail("TypeError", "%s[…]: block and shared memory of a Triton kernel are fixed when it is compiled",
                        kernel->name);
  }
  if (triton->descriptor_count != 0) {
    const size_t bytes = sizeof(jitload_described) * (size_t)triton->descriptor_count;
    TVMFFIAny* copies = (TVMFFIAny*)__builtin_alloca(sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    described = (jitload_described*)(((uintptr_t)__builtin_alloca(bytes + 64) + 63) & ~(uintptr_t)63);
    memset(described, 0, bytes);
    memcpy(copies, args, sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    for (int32_t i = 0; i < triton->descriptor_count; ++i) {
      TVMFFIAny* value = &copies[triton->descriptors[i].param];
      if (value->type_index != kTVMFFIOpaquePyObject || !jitload_read_described(value, &described[i])) continue;
      value->type_index = kTVMFFIDLTensorPtr;
      value->v_ptr = &described[i].tensor;
      if (stream_source == NULL) stream_source = described[i].stream_source;
    }
    args = copies;
  }
  if (triton->variant_count != 0) return jitload_dispatch(kernel, config, args, described, stream_source);
  const int tried = jitload_try_variant(kernel, config, args, described, stream_source);
  if (JITLOAD_LIKELY(tried <= 0)) return tried;
  return jitload_refuse_variants(kernel, args, described);
}
