/* A call of a Triton kernel: select a variant whose assumptions hold, and launch it with its scratch memory. */
#include <jitload/triton.h>
#include <stdio.h>

#include "../core/call_steps.h"
#include "../core/tensor_map.h"

/* ---- tensor descriptors ---------------------------------------------------------------------------------------- */

enum { JITLOAD_TMA_FILL_NAN = 1, JITLOAD_TMA_TF32 = 11 };

/* A tensor descriptor of a call, from which TMA transfers are made. The kernel's parameters point into it. */
typedef struct jitload_tensor_descriptor {
  unsigned char map[JITLOAD_MAP_BYTES]; /* first, because it must be aligned to 64 bytes */
  DLTensor tensor; /* the base tensor of Triton's object */
  jitload_layout layout;
  int64_t block[JITLOAD_MAX_RANK];
  int32_t block_rank; /* 0 if the argument is a plain tensor */
  uint64_t pads_nan;
  uint64_t rounds;
} __attribute__((aligned(64))) jitload_tensor_descriptor;

/* Read a Triton `TensorDescriptor` as loader/direct_calls.py passes it: its base, whether it pads with NaN and rounds to
 * tf32, its shape, strides and block shape. Return 0 for other arguments. */
static int jitload_read_tensor_descriptor(const TVMFFIAny* value, jitload_tensor_descriptor* out) {
  enum { kBase, kPadsNan, kRounds, kSizes };
  const jitload_sequence* sequence = jitload_get_sequence(value);
  if (sequence == NULL || sequence->size <= kSizes) return 0;
  const DLTensor* base = jitload_get_tensor(&sequence->items[kBase]);
  const int64_t rank = (sequence->size - kSizes) / 3;
  if (base == NULL || rank > JITLOAD_MAX_RANK || sequence->size != kSizes + 3 * rank) return 0;
  for (int64_t i = kPadsNan; i < sequence->size; ++i) {
    const int32_t type = sequence->items[i].type_index;
    if (type != kTVMFFIInt && type != kTVMFFIBool) return 0;
  }
  for (int64_t i = 0; i < rank; ++i) {
    const TVMFFIAny* sizes = &sequence->items[kSizes + i];
    out->layout.shape[i] = sizes[0].v_int64;
    out->layout.strides[i] = sizes[rank].v_int64;
    out->block[i] = sizes[2 * rank].v_int64;
  }
  out->pads_nan = sequence->items[kPadsNan].v_int64 != 0;
  out->rounds = sequence->items[kRounds].v_int64 != 0;
  out->block_rank = (int32_t)rank;
  out->tensor = *base;
  out->tensor.ndim = (int32_t)rank;
  out->tensor.shape = out->layout.shape;
  out->tensor.strides = out->layout.strides;
  return 1;
}

/* Return whether the block shape matches the kernel's. True for a plain tensor. */
static int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor) {
  if (descriptor->block_rank == 0) return 1;
  if (descriptor->block_rank != spec->map->rank) return 0;
  for (int32_t i = 0; i < spec->map->rank; ++i) {
    if (descriptor->block[i] != (int64_t)spec->block[i]) return 0;
  }
  return 1;
}

/* Fill in the descriptor of an argument. Return 0, or set an error and return -1. */
static int jitload_make_descriptor(const jitload_kernel* kernel, const jitload_descriptor_spec* spec,
                                   const TVMFFIAny* value, jitload_tensor_descriptor* descriptor) {
  if (jitload_read_layout(kernel, spec->map, value, &descriptor->layout) != 0) return -1;
  jitload_tensor_map map = *spec->map;
  if (descriptor->rounds && map.type >= 0) map.type = JITLOAD_TMA_TF32;
  if (descriptor->pads_nan) map.fill = JITLOAD_TMA_FILL_NAN;
  return jitload_encode_tensor_map(kernel, &map, &descriptor->layout, descriptor->map);
}

/* ---- matching variants ----------------------------------------------------------------------------------------- */

static inline int jitload_is_satisfied(const jitload_assumption* assumption, const TVMFFIAny* value, uint64_t number) {
  switch (assumption->kind) {
    case JITLOAD_MULTIPLE_OF: return (number & (uint64_t)(assumption->value - 1)) == 0;
    case JITLOAD_EQUAL_TO: return (int64_t)number == assumption->value;
    default: return value->type_index == kTVMFFINone || (value->type_index == kTVMFFIOpaquePtr && number == 0);
  }
}

/* Return the first assumption that is violated, or NULL. */
static inline const jitload_assumption* jitload_find_violation(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                               const uint64_t* values) {
  const jitload_triton* triton = kernel->triton;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const jitload_assumption* assumption = &triton->assumptions[i];
    if (!jitload_is_satisfied(assumption, &args[assumption->param], values[assumption->param])) return assumption;
  }
  return NULL;
}

static inline int jitload_blocks_match(const jitload_kernel* kernel, const jitload_tensor_descriptor* descriptors) {
  for (int32_t i = 0; i < kernel->triton->descriptor_count; ++i) {
    if (!jitload_block_matches(&kernel->triton->descriptors[i], &descriptors[i])) return 0;
  }
  return 1;
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* Score how closely a variant matches: negative if an argument cannot be read, otherwise higher for fewer
 * violations. */
static int32_t jitload_match_score(const jitload_kernel* kernel, const TVMFFIAny* args,
                                   const jitload_tensor_descriptor* descriptors, uint64_t* values) {
  const jitload_triton* triton = kernel->triton;
  void* memory = __builtin_alloca(jitload_request_bytes(kernel));
  jitload_request request = jitload_make_request(kernel, NULL, args, NULL, memory);
  const int32_t count = jitload_read_arguments(&request);
  if (count != kernel->param_count) return count - kernel->param_count;
  memcpy(values, request.values, sizeof *values * (size_t)count);
  int32_t satisfied = 0;
  for (int32_t i = 0; i < triton->assumption_count; ++i) {
    const int32_t param = triton->assumptions[i].param;
    satisfied += jitload_is_satisfied(&triton->assumptions[i], &args[param], values[param]);
  }
  return 1000000 - 2 * (triton->assumption_count - satisfied) - !jitload_blocks_match(kernel, descriptors);
}

static int jitload_raise_assumption_error(const jitload_kernel* kernel, const jitload_assumption* assumption,
                                          uint64_t number, const char* advice) {
  const jitload_param* param = &kernel->params[assumption->param];
  const long long expected = (long long)assumption->value;
  if (assumption->kind == JITLOAD_NULL) {
    return jitload_fail("ValueError", "%s(): argument '%s' must be None: the kernel was compiled for that; %s",
                        kernel->name, param->name, advice);
  }
  if (param->kind == JITLOAD_POINTER) {
    return jitload_fail("ValueError",
                        "%s(): argument '%s' (%s) must be aligned to %lld bytes: the kernel was compiled for that, and "
                        "its address is 0x%llx; %s",
                        kernel->name, param->name, param->type, expected, (unsigned long long)number, advice);
  }
  return jitload_fail("ValueError",
                      "%s(): argument '%s' (%s) must be %s%lld: the kernel was compiled for that, got %lld; %s",
                      kernel->name, param->name, param->type,
                      assumption->kind == JITLOAD_MULTIPLE_OF ? "a multiple of " : "", expected, (long long)number, advice);
}

static int jitload_raise_block_error(const jitload_kernel* kernel, const jitload_tensor_descriptor* descriptors,
                                     const char* advice) {
  int32_t i = 0;
  while (jitload_block_matches(&kernel->triton->descriptors[i], &descriptors[i])) ++i;
  const jitload_param* param = &kernel->params[kernel->triton->descriptors[i].param];
  return jitload_fail("ValueError",
                      "%s(): argument '%s' must have the block shape of %s: the kernel was compiled for that; %s",
                      kernel->name, param->name, param->type, advice);
}

/* Set the error of the variant that matches most closely, under the name of the function that was called. */
static __attribute__((cold, noinline)) int jitload_raise_no_variant(const jitload_kernel* called, const TVMFFIAny* args,
                                                                    const jitload_tensor_descriptor* descriptors) {
  uint64_t* values = (uint64_t*)__builtin_alloca(8 * (size_t)called->param_count + 8);
  const jitload_kernel* variants = &called->module->kernels[called->first_variant];
  const jitload_kernel* closest = called->variant_count == 0 ? called : variants;
  int32_t best_score = jitload_match_score(closest, args, descriptors, values);
  for (int32_t i = 1; i < called->variant_count; ++i) {
    const int32_t score = jitload_match_score(&variants[i], args, descriptors, values);
    if (score > best_score) best_score = score, closest = &variants[i];
  }
  jitload_kernel named = *closest;
  named.name = called->name;
  if (jitload_match_score(closest, args, descriptors, values) < 0) {
    return jitload_raise_argument_error(&named, args, named.argument_count);
  }
  const char* advice = called->variant_count == 0 ? "compile it without this assumption, or add a variant without it"
                                                  : "no variant fits, and this one comes closest";
  const jitload_assumption* violated = jitload_find_violation(closest, args, values);
  if (violated != NULL) return jitload_raise_assumption_error(&named, violated, values[violated->param], advice);
  if (!jitload_blocks_match(closest, descriptors)) return jitload_raise_block_error(&named, descriptors, advice);
  return jitload_fail("ValueError", "%s(): a variant fits the arguments, but has no code for their device", called->name);
}

/* ---- scratch memory ------------------------------------------------------------------------------------------- */

/* Scratch memory is released as soon as the launch is queued, so the allocator must order its next use after the
 * launch. A framework's allocator does so on the framework's current stream; on any other stream the driver's pool
 * does. Both may be used while a graph is captured.
 */

/* Memory for one launch, owned by a framework or by the driver's pool. */
typedef struct jitload_scratch {
  struct DLManagedTensorVersioned* managed; /* NULL for memory of the pool */
  jitload_cu_address pool;
  jitload_cu_address address; /* the first aligned address in the memory */
} jitload_scratch;

enum { JITLOAD_REASON_BYTES = 512 };

static void jitload_copy_reason(void* reason, const char*, const char* message) {
  strncpy((char*)reason, message, JITLOAD_REASON_BYTES - 1);
}

static int jitload_raise_scratch_error(const jitload_request* request, jitload_cu_device device, int64_t bytes,
                                       const char* reason) {
  return jitload_fail("RuntimeError",
                      "%s(): cannot allocate the %lld bytes of scratch memory that the kernel needs on cuda:%d: %s",
                      request->kernel->name, (long long)bytes, (int)device, reason);
}

static int jitload_allocate_from_framework(const jitload_request* request, jitload_cu_device device,
                                           DLTensor* prototype,
                                           int64_t bytes, jitload_scratch* out) {
  char reason[JITLOAD_REASON_BYTES] = "";
  if (jitload_allocator(prototype, &out->managed, reason, jitload_copy_reason) != 0) {
    return jitload_raise_scratch_error(request, device, bytes, reason);
  }
  out->address = jitload_tensor_address(&out->managed->dl_tensor);
  return 0;
}

static int jitload_allocate_from_driver(const jitload_driver* driver, const jitload_request* request,
                                        jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                        jitload_scratch* out) {
  const jitload_cu_result code = driver->allocate_async(&out->pool, (size_t)bytes, stream);
  out->address = out->pool;
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  char action[96];
  snprintf(action, sizeof action, "cannot allocate %lld bytes of scratch memory on cuda:%d", (long long)bytes,
           (int)device);
  return jitload_raise_driver_error(driver, request->kernel->name, action, code);
}

/* Whether a framework allocates, and this is its current stream, on which it would next use memory that is freed
 * now. */
static int jitload_is_current(jitload_cu_device device, jitload_cu_stream stream) {
  void* current = NULL;
  return jitload_allocator != NULL && jitload_stream_source != NULL &&
         jitload_stream_source(kDLCUDA, device, &current) == 0 && current == stream;
}

static int jitload_allocate_scratch(const jitload_driver* driver, const jitload_request* request,
                                    jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                    jitload_scratch* out) {
  const int64_t alignment = request->kernel->triton->scratch_alignment;
  int64_t size = 0; /* with room to align: allocators align to 256 bytes or more, but do not promise it */
  if (__builtin_add_overflow(bytes, alignment - 1, &size) || size == INT64_MAX) {
    return jitload_raise_scratch_error(request, device, bytes, "the number does not fit into 64 bits");
  }
  DLTensor prototype = {};
  prototype.device = DLDevice{kDLCUDA, device};
  prototype.ndim = 1;
  prototype.dtype = DLDataType{kDLUInt, 8, 1};
  prototype.shape = &size;
  const int failed = jitload_is_current(device, stream)
                         ? jitload_allocate_from_framework(request, device, &prototype, bytes, out)
                         : jitload_allocate_from_driver(driver, request, device, stream, size, out);
  out->address = (out->address + (uint64_t)alignment - 1) & ~((uint64_t)alignment - 1);
  return failed;
}

static void jitload_free_scratch(const jitload_driver* driver, jitload_cu_stream stream,
                                 const jitload_scratch* scratch) {
  if (scratch->managed != NULL) {
    if (scratch->managed->deleter != NULL) scratch->managed->deleter(scratch->managed);
  } else {
    driver->free_async(scratch->pool, stream);
  }
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

static int jitload_launch_triton_on_current_device(const jitload_driver* driver, const jitload_request* request,
                                                   jitload_cu_device device) {
  const jitload_triton* triton = request->kernel->triton;
  jitload_slot* slot = NULL;
  if (jitload_prepare_kernel(driver, request, device, &slot) != 0) return -1;
  const jitload_cu_stream stream = jitload_select_stream(request, device);
  jitload_scratch scratch = {};
  int64_t bytes = 0;
  if (triton->scratch_bytes != 0) {
    if (__builtin_mul_overflow(request->programs, triton->scratch_bytes, &bytes)) bytes = INT64_MAX;
    if (jitload_allocate_scratch(driver, request, device, stream, bytes, &scratch) != 0) return -1;
    const_cast<jitload_request*>(request)->hidden[0] = scratch.address;
  }
  const jitload_cu_result code = jitload_submit(driver, request, slot->kernel, stream);
  if (bytes != 0) jitload_free_scratch(driver, stream, &scratch);
  if (JITLOAD_LIKELY(code == JITLOAD_CUDA_SUCCESS)) return 0;
  return jitload_raise_launch_error(request, slot, device, code);
}

/* Convert the grid of programs into a grid of blocks. Return 1 for an empty grid, and -1 with an error. */
static inline int jitload_programs_to_blocks(jitload_request* request) {
  const int32_t* grid_multiplier = request->kernel->triton->grid_multiplier;
  int64_t* grid = request->plan.grid;
  const int extents = jitload_check_extents(request);
  if (extents != 0) return extents;
  request->programs = grid[0] * grid[1] * grid[2];
  for (int i = 0; i < 3; ++i) grid[i] *= grid_multiplier[i];
  return jitload_check_extents(request);
}

/* Point the cubin's parameters at parts of the arguments and at the hidden pointers. */
static inline void jitload_bind_parameters(jitload_request* request, jitload_tensor_descriptor* descriptors,
                                           void** params) {
  const jitload_triton* triton = request->kernel->triton;
  for (int32_t i = 0; i < triton->binding_count; ++i) {
    const jitload_binding* binding = &triton->bindings[i];
    jitload_tensor_descriptor* descriptor = &descriptors[binding->descriptor];
    switch (binding->part) {
      case JITLOAD_VALUE: params[i] = request->params[binding->param]; break;
      case JITLOAD_MAP: params[i] = descriptor->map; break;
      case JITLOAD_SHAPE: params[i] = &descriptor->layout.shape[binding->axis]; break;
      case JITLOAD_STRIDE: params[i] = &descriptor->layout.strides[binding->axis]; break;
      case JITLOAD_PADDING: params[i] = &descriptor->pads_nan; break;
      default: params[i] = &descriptor->rounds; break;
    }
  }
  for (int32_t i = 0; i < triton->hidden_pointers; ++i) params[triton->binding_count + i] = &request->hidden[i];
  request->params = params;
}

/* Return 1 if the variant does not match. Otherwise launch it and return 0, or set an error and return -1. */
static int jitload_try_variant(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                               jitload_tensor_descriptor* descriptors, jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  void* memory = __builtin_alloca(jitload_request_bytes(kernel));
  jitload_request request = jitload_make_request(kernel, config, args, stream_source, memory);
  request.hidden[0] = request.hidden[1] = 0;
  if (jitload_read_arguments(&request) != kernel->param_count) return 1;
  if (jitload_find_violation(kernel, args, request.values) != NULL || !jitload_blocks_match(kernel, descriptors)) return 1;
  if (jitload_evaluate_plan(&request) != 0) return -1;
  const int extents = jitload_programs_to_blocks(&request);
  if (extents != 0) return extents < 0 ? -1 : 0;
  for (int32_t i = 0; i < triton->descriptor_count; ++i) {
    const jitload_descriptor_spec* spec = &triton->descriptors[i];
    if (jitload_make_descriptor(kernel, spec, &args[spec->param], &descriptors[i]) != 0) return -1;
    if (descriptors[i].block_rank != 0) request.may_ask_framework = 1;
  }
  void** params = (void**)__builtin_alloca(sizeof(void*) * (size_t)(triton->binding_count + triton->hidden_pointers) + 8);
  jitload_bind_parameters(&request, descriptors, params);
  return jitload_launch_on_device(&request, jitload_launch_triton_on_current_device);
}

/* ---- the call -------------------------------------------------------------------------------------------------- */

/* Whether a library for several architectures has code of this variant for the device. */
static int jitload_has_code(const jitload_kernel* kernel, const jitload_driver* driver, jitload_cu_device device) {
  const jitload_state* state = __atomic_load_n(&kernel->module->state, __ATOMIC_ACQUIRE);
  if (state != NULL && device < state->device_count &&
      __atomic_load_n(&state->slots[kernel->index * state->device_count + device].kernel, __ATOMIC_ACQUIRE) != NULL) {
    return 1;
  }
  return jitload_has_image(driver, kernel, device);
}

static int jitload_dispatch(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                            jitload_tensor_descriptor* descriptors, jitload_stream_source_fn stream_source) {
  const jitload_driver* driver = NULL;
  jitload_cu_device device = 0;
  jitload_slot* slot = NULL;
  if (kernel->triton->has_several_archs) {
    driver = jitload_get_driver(kernel->name);
    if (driver == NULL) return -1;
    device = jitload_find_call_device(kernel, args);
    if (device == JITLOAD_DEVICES) driver = NULL; /* a tensor on the CPU, which all variants reject */
  }
  /* The variant that was chosen for the key comes first, and then the others in their order. */
  const int32_t first = kernel->choice != NULL ? jitload_choose_by_key(kernel, args) : 0;
  if (first < 0) return -1;
  int has_code = driver == NULL;
  const jitload_kernel* variants = &kernel->module->kernels[kernel->first_variant];
  for (int32_t i = 0; i < kernel->variant_count; ++i) {
    const jitload_kernel* variant = &variants[(first + i) % kernel->variant_count];
    if (driver != NULL && !jitload_has_code(variant, driver, device)) continue;
    has_code = 1;
    const int status = jitload_try_variant(variant, config, args, descriptors, stream_source);
    if (JITLOAD_LIKELY(status <= 0)) return status;
  }
  /* Without an image for the device, resolving fails with an error that lists the images. */
  if (!has_code) return jitload_resolve(driver, kernel, device, &slot);
  return jitload_raise_no_variant(kernel, args, descriptors);
}

int jitload_run_triton(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                       jitload_stream_source_fn stream_source) {
  const jitload_triton* triton = kernel->triton;
  jitload_tensor_descriptor* descriptors = NULL;
  if (config->has_block || config->has_shared_bytes) {
    return jitload_fail("TypeError",
                        "%s[…]: the block and the shared memory of a Triton kernel are fixed when it is compiled",
                        kernel->name);
  }
  if (triton->descriptor_count != 0) {
    const size_t bytes = sizeof(jitload_tensor_descriptor) * (size_t)triton->descriptor_count;
    TVMFFIAny* copies = (TVMFFIAny*)__builtin_alloca(sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    descriptors = (jitload_tensor_descriptor*)(((uintptr_t)__builtin_alloca(bytes + 64) + 63) & ~(uintptr_t)63);
    memset(descriptors, 0, bytes);
    memcpy(copies, args, sizeof(TVMFFIAny) * (size_t)kernel->argument_count);
    for (int32_t i = 0; i < triton->descriptor_count; ++i) {
      TVMFFIAny* value = &copies[triton->descriptors[i].param];
      if (!jitload_read_tensor_descriptor(value, &descriptors[i])) continue;
      value->type_index = kTVMFFIDLTensorPtr;
      value->v_ptr = &descriptors[i].tensor;
    }
    args = copies;
  }
  if (kernel->variant_count != 0) return jitload_dispatch(kernel, config, args, descriptors, stream_source);
  const int status = jitload_try_variant(kernel, config, args, descriptors, stream_source);
  if (JITLOAD_LIKELY(status <= 0)) return status;
  return jitload_raise_no_variant(kernel, args, descriptors);
}
