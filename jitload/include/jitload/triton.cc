/* Calls of Triton kernels: check what the machine code was specialized for, and launch it as it was compiled. */
#include "launching.h"
#include "triton_call.h"

/* ---- does a variant fit? --------------------------------------------------------------------------------------- */

static inline int jitload_assumption_holds(const jitload_assumption* assumption, const TVMFFIAny* value,
                                           uint64_t number) {
  switch (assumption->kind) {
    case JITLOAD_MULTIPLE_OF: return (number & (uint64_t)(assumption->value - 1)) == 0;
    case JITLOAD_EQUAL_TO: return (int64_t)number == assumption->value;
    default: return value->type_index == kTVMFFINone || (value->type_index == kTVMFFIOpaquePtr && number == 0);
  }
}

/* Return the first assumption that does not hold, or NULL. */
static inline const jitload_assumption* jitload_find_violated(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                              const uint64_t* values) {
  const jitload_triton* triton = kernel->triton;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const jitload_assumption* assumption = &triton->assumptions[i];
    if (!jitload_assumption_holds(assumption, &args[assumption->param], values[assumption->param])) return assumption;
  }
  return NULL;
}

/* Return the first 16-bit float that became infinite when a finite number was rounded to it, or NULL. */
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

static inline int jitload_blocks_fit(const jitload_kernel* kernel, const jitload_host_descriptor* host_descriptors) {
  for (int32_t i = 0; i < kernel->triton->descriptor_count; ++i) {
    if (!jitload_block_fits(&kernel->triton->descriptors[i], &host_descriptors[i])) return 0;
  }
  return 1;
}

/* ---- errors if no variant fits --------------------------------------------------------------------------------- */

/* Return how well a variant fits. If an argument cannot be read, this is negative, and closer to 0 the later that
 * argument comes; otherwise it is the higher, the fewer assumptions are violated. */
static int32_t jitload_match_score(const jitload_kernel* kernel, const TVMFFIAny* args,
                                   const jitload_host_descriptor* host_descriptors, uint64_t* values) {
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
  int32_t violated = 0;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const int32_t param = triton->assumptions[i].param;
    violated += !jitload_assumption_holds(&triton->assumptions[i], &args[param], values[param]);
  }
  return 1000000 - 2 * violated - !jitload_blocks_fit(kernel, host_descriptors);
}

static int jitload_refuse_assumption(const jitload_kernel* kernel, const jitload_assumption* assumption,
                                     uint64_t number, const char* note) {
  const jitload_param* param = &kernel->params[assumption->param];
  const long long value = (long long)assumption->value;
  if (assumption->kind == JITLOAD_NULL) {
    return jitload_fail("ValueError", "%s(): argument '%s' must be None: the kernel was compiled for that; %s",
                        kernel->name, param->name, note);
  }
  if (param->kind == JITLOAD_POINTER) {
    return jitload_fail("ValueError",
                        "%s(): argument '%s' (%s) must be aligned to %lld bytes: the kernel was compiled for that, and "
                        "its address is 0x%llx; %s",
                        kernel->name, param->name, param->type, value, (unsigned long long)number, note);
  }
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) must be %s%lld: the kernel was compiled for that, got %lld; %s",
                      kernel->name, param->name, param->type,
                      assumption->kind == JITLOAD_MULTIPLE_OF ? "a multiple of " : "", value, (long long)number, note);
}

static int jitload_refuse_block(const jitload_kernel* kernel, const jitload_host_descriptor* host_descriptors,
                                const char* note) {
  int32_t i = 0;
  while (jitload_block_fits(&kernel->triton->descriptors[i], &host_descriptors[i])) ++i;
  const jitload_param* param = &kernel->params[kernel->triton->descriptors[i].param];
  return jitload_fail("ValueError", "%s(): argument '%s' must have the block shape of %s: the kernel was compiled for that; %s",
                      kernel->name, param->name, param->type, note);
}

/* Set the error of the variant that fits best, with the name of the function that was called. */
static __attribute__((cold, noinline)) int jitload_refuse_variants(const jitload_kernel* called, const TVMFFIAny* args,
                                                                   const jitload_host_descriptor* host_descriptors) {
  const jitload_triton* triton = called->triton;
  uint64_t* values = (uint64_t*)__builtin_alloca(8 * (size_t)called->param_count + 8);
  const jitload_kernel* best = triton->variant_count == 0 ? called : triton->variants[0];
  int32_t best_score = jitload_match_score(best, args, host_descriptors, values);
  for (int32_t i = 1; i < triton->variant_count; ++i) {
    const int32_t score = jitload_match_score(triton->variants[i], args, host_descriptors, values);
    if (score > best_score) best_score = score, best = triton->variants[i];
  }
  jitload_kernel named = *best;
  named.name = called->name;
  if (jitload_match_score(best, args, host_descriptors, values) < 0) {
    return jitload_explain(&named, args, named.argument_count);
  }
  const char* note = triton->variant_count == 0 ? "compile it without this assumption, or add a variant without it"
                                                : "no variant fits, and this one comes closest";
  const jitload_assumption* violated = jitload_find_violated(best, args, values);
  if (violated != NULL) return jitload_refuse_assumption(&named, violated, values[violated->param], note);
  if (!jitload_blocks_fit(best, host_descriptors)) return jitload_refuse_block(&named, host_descriptors, note);
  const jitload_param* infinite = jitload_find_infinite(best, args, values);
  if (infinite == NULL) {
    return jitload_fail("ValueError", "%s(): a variant fits the arguments, but has no code for their device", called->name);
  }
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) is too large for its type", called->name, infinite->name,
                      infinite->type);
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

typedef struct jitload_triton_request {
  jitload_request base; /* first, because the functions for all launches take a pointer to it */
  int64_t programs;
  uint64_t hidden[2];
  int32_t asks_framework; /* for the stream, if none is set in tvm-ffi */
} jitload_triton_request;

/* Launch in the current context, which is the right one. */
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
    if (jitload_allocate_scratch(driver, base, device, stream, bytes, &scratch) != 0) return -1;
    request->hidden[0] = scratch.address;
  }
  const jitload_cu_result code = jitload_submit(driver, base, slot->kernel, stream);
  if (bytes != 0) jitload_free_scratch(driver, stream, &scratch);
  if (JITLOAD_LIKELY(code == JITLOAD_CUDA_SUCCESS)) return 0;
  return jitload_launch_error(base, slot, device, code);
}

/* Convert the grid from programs to blocks. Return 1 if it is empty, or set the error and return -1. */
static inline int jitload_make_blocks(jitload_triton_request* request) {
  const int32_t* multiply = request->base.kernel->triton->multiply;
  int64_t* grid = request->base.plan.grid;
  const int extents = jitload_check_extents(&request->base);
  if (extents != 0) return extents;
  request->programs = grid[0] * grid[1] * grid[2];
  for (int i = 0; i < 3; ++i) grid[i] *= multiply[i];
  return jitload_check_extents(&request->base);
}

/* Point the kernel's parameters at the parts of the arguments and at the hidden pointers. */
static inline void jitload_bind_parameters(jitload_triton_request* request,
                                           jitload_host_descriptor* host_descriptors, void** params) {
  const jitload_triton* triton = request->base.kernel->triton;
  for (int32_t i = 0; i < triton->binding_count; ++i) {
    const jitload_binding* binding = &triton->bindings[i];
    jitload_host_descriptor* descriptor = &host_descriptors[binding->descriptor];
    switch (binding->part) {
      case JITLOAD_VALUE: params[i] = request->base.params[binding->param]; break;
      case JITLOAD_MAP: params[i] = descriptor->map; break;
      case JITLOAD_SHAPE: params[i] = &descriptor->shape[binding->axis]; break;
      case JITLOAD_STRIDE: params[i] = &descriptor->strides[binding->axis]; break;
      case JITLOAD_PADDING: params[i] = &descriptor->pads_nan; break;
      default: params[i] = &descriptor->rounds; break;
    }
  }
  for (int32_t i = 0; i < triton->hidden_pointers; ++i) params[triton->binding_count + i] = &request->hidden[i];
  request->base.params = params;
}

static int jitload_refuse_grid(const jitload_kernel* kernel) {
  return jitload_fail("TypeError", "%s() has no grid: call %s[grid](…), or declare it with grid=", kernel->name,
                      kernel->name);
}

/* Launch a variant, unless its grid is empty. Return 1 if it does not fit, or set the error and return -1. */
static int jitload_try_variant(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                               jitload_host_descriptor* host_descriptors, jitload_stream_source_fn stream_source) {
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
  if (jitload_find_violated(kernel, args, values) != NULL || !jitload_blocks_fit(kernel, host_descriptors) ||
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
    if (jitload_make_descriptor(driver, kernel, descriptor, &args[descriptor->param], &host_descriptors[i]) != 0) return -1;
    if (host_descriptors[i].block_rank != 0) request.asks_framework = 1;
  }
  const int32_t cubin_param_count = triton->binding_count + triton->hidden_pointers;
  void** params = (void**)__builtin_alloca(sizeof(void*) * (size_t)cubin_param_count + 8);
  jitload_bind_parameters(&request, host_descriptors, params);
  return jitload_on_device(&request.base, jitload_launch_triton_here);
}

/* ---- the call -------------------------------------------------------------------------------------------------- */

/* Return the device that the tensors of a call are on, or the current one. */
static jitload_cu_device jitload_device_of(const jitload_driver* driver, const jitload_kernel* kernel,
                                           const TVMFFIAny* args) {
  jitload_cu_device current = 0;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const DLTensor* tensor = jitload_tensor_of(&args[i]);
    if (tensor != NULL && jitload_is_cuda(tensor->device)) return tensor->device.device_id;
  }
  return driver->context_device(&current) == JITLOAD_CUDA_SUCCESS ? current : 0;
}

/* Whether the library has this variant for the device. */
static int jitload_has_code(const jitload_kernel* kernel, const jitload_driver* driver, jitload_cu_device device) {
  const jitload_state* state = __atomic_load_n(kernel->module->state, __ATOMIC_ACQUIRE);
  if (state != NULL && device < state->device_count &&
      __atomic_load_n(&state->slots[kernel->index * state->device_count + device].kernel, __ATOMIC_ACQUIRE) != NULL) {
    return 1;
  }
  return jitload_suits(driver, kernel, device);
}

static int jitload_dispatch(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                            jitload_host_descriptor* host_descriptors, jitload_stream_source_fn stream_source) {
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
    const int tried = jitload_try_variant(variant, config, args, host_descriptors, stream_source);
    if (JITLOAD_LIKELY(tried <= 0)) return tried;
  }
  /* No image suits the device: this sets the error, which lists the images. */
  if (!has_code) return jitload_resolve(driver, kernel, device, &slot);
  return jitload_refuse_variants(kernel, args, host_descriptors);
}

extern "C" int jitload_run_triton(const jitload_kernel* kernel, const jitload_config* config, const void* arguments,
                                  jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  const TVMFFIAny* args = (const TVMFFIAny*)arguments;
  jitload_host_descriptor* host_descriptors = NULL;
  if (config != NULL && (config->has_block || config->has_shared_bytes)) {
    return jitload_fail("TypeError",
                        "%s[…]: the block and the shared memory of a Triton kernel are fixed when it is compiled",
                        kernel->name);
  }
  if (triton->descriptor_count != 0) {
    const size_t bytes = sizeof(jitload_host_descriptor) * (size_t)triton->descriptor_count;
    TVMFFIAny* copies = (TVMFFIAny*)__builtin_alloca(sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    host_descriptors = (jitload_host_descriptor*)(((uintptr_t)__builtin_alloca(bytes + 64) + 63) & ~(uintptr_t)63);
    memset(host_descriptors, 0, bytes);
    memcpy(copies, args, sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    for (int32_t i = 0; i < triton->descriptor_count; ++i) {
      TVMFFIAny* value = &copies[triton->descriptors[i].param];
      if (value->type_index != kTVMFFIOpaquePyObject) continue;
      if (!jitload_read_descriptor_object(value, &host_descriptors[i])) continue;
      value->type_index = kTVMFFIDLTensorPtr;
      value->v_ptr = &host_descriptors[i].tensor;
      if (stream_source == NULL) stream_source = host_descriptors[i].stream_source;
    }
    args = copies;
  }
  if (triton->variant_count != 0) return jitload_dispatch(kernel, config, args, host_descriptors, stream_source);
  const int tried = jitload_try_variant(kernel, config, args, host_descriptors, stream_source);
  if (JITLOAD_LIKELY(tried <= 0)) return tried;
  return jitload_refuse_variants(kernel, args, host_descriptors);
}
