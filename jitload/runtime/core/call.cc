/* A call of a typed function, from its arguments to the driver's launch.
 *
 * The files of this directory are compiled once, and linked into every library with hidden symbols, so that a generated
 * wrapper is only a page of tables.
 */
#include "call_steps.h"
#include "tensor_map.h"

jitload_cu_result jitload_launch_with_attributes(const jitload_driver* driver, const jitload_request* request,
                                                 jitload_cu_kernel function, jitload_cu_stream stream) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  jitload_cu_config config = {};
  for (int i = 0; i < 3; ++i) {
    config.grid[i] = (uint32_t)plan->grid[i];
    config.block[i] = (uint32_t)plan->block[i];
  }
  config.shared_bytes = (uint32_t)plan->shared_bytes;
  config.stream = stream;
  jitload_cu_attribute* attributes =
      (jitload_cu_attribute*)__builtin_alloca(sizeof(jitload_cu_attribute) * (size_t)kernel->attribute_count);
  memset(attributes, 0, sizeof(jitload_cu_attribute) * (size_t)kernel->attribute_count);
  config.attributes = attributes;
  config.attribute_count = (unsigned)kernel->attribute_count;
  for (int32_t i = 0; i < kernel->attribute_count; ++i) {
    attributes[i].id = kernel->attributes[i].id;
    attributes[i].value.number = kernel->attributes[i].value;
    if (attributes[i].id != JITLOAD_LAUNCH_CLUSTER) continue;
    for (int axis = 0; axis < 3; ++axis) attributes[i].value.extent[axis] = (uint32_t)plan->cluster[axis];
  }
  return driver->launch_ex(&config, function, request->params, NULL);
}

static const jitload_config jitload_as_declared = {};

/* The plan of a recent launch that has passed all checks. */
typedef struct jitload_recent_plan {
  jitload_inputs inputs; /* of the launch expressions and of the checks of accesses */
  jitload_recent<40> recent;
} jitload_recent_plan;

/* Visit what a plan and its checks are computed from: what the call sets itself, where it runs, and its arguments. */
template <class Visit>
static JITLOAD_ALWAYS_INLINE bool jitload_visit_plan_inputs(const jitload_request* request,
                                                            const jitload_recent_plan* recent, Visit visit) {
  const jitload_config* config = request->config;
  const int is_on_cpu = request->device == JITLOAD_CPU_DEVICE; /* where accesses are not checked */
  if (config == &jitload_as_declared) return visit(is_on_cpu) && jitload_visit_inputs(&recent->inputs, request->args, visit);
  if (!visit(is_on_cpu | 2 * !!config->has_grid | 4 * !!config->has_block | 8 * !!config->has_shared_bytes)) return false;
  for (int i = 0; i < 3; ++i) {
    if (config->has_grid && !visit(config->grid[i])) return false;
    if (config->has_block && !visit(config->block[i])) return false;
  }
  if (config->has_shared_bytes && !visit(config->shared_bytes)) return false;
  return jitload_visit_inputs(&recent->inputs, request->args, visit);
}

/* Visit what a plan consists of, with the computed parameters as they are passed to the kernel. */
template <class Visit>
static inline void jitload_visit_plan(jitload_request* request, Visit visit) {
  const jitload_kernel* kernel = request->kernel;
  jitload_plan* plan = &request->plan;
  for (int i = 0; i < 3; ++i) {
    visit(&plan->grid[i]);
    visit(&plan->block[i]);
    if (kernel->flags & JITLOAD_HAS_CLUSTER) visit(&plan->cluster[i]);
  }
  visit(&plan->shared_bytes);
  if (kernel->separate != NULL) visit(&plan->is_separate);
  if (!(kernel->flags & JITLOAD_COMPUTES)) return;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    if (kernel->params[i].argument >= 0 || kernel->params[i].kind == JITLOAD_STREAM) continue;
    visit((int64_t*)&request->values[i]);
  }
}

static __attribute__((noinline)) void jitload_keep_plan(jitload_request* request) {
  jitload_kernel* kernel = (jitload_kernel*)request->kernel;
  jitload_recent_plan* recent = jitload_create_once(&kernel->recent, [kernel](jitload_recent_plan* created) {
    created->recent.misses = 1; /* this one */
    if (kernel->plan != NULL) jitload_note_inputs(kernel, kernel->plan, &created->inputs);
    if (kernel->bounds != NULL) jitload_note_inputs(kernel, kernel->bounds, &created->inputs);
  });
  if (recent == NULL) return;
  const auto visit_inputs = [&](auto visit) { return jitload_visit_plan_inputs(request, recent, visit); };
  jitload_keep(&recent->recent, visit_inputs, [&](auto visit) { jitload_visit_plan(request, visit); });
}

/* Make the plan of a launch, and check it. Return 1 for an empty grid, and -1 with an error. */
static inline int jitload_make_plan(jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  jitload_recent_plan* recent = __atomic_load_n(&kernel->recent, __ATOMIC_ACQUIRE);
  if (JITLOAD_LIKELY(recent != NULL)) {
    const auto visit_inputs = [&](auto visit) { return jitload_visit_plan_inputs(request, recent, visit); };
    const auto visit_results = [&](auto visit) { jitload_visit_plan(request, visit); };
    if (jitload_recall(&recent->recent, visit_inputs, visit_results)) return jitload_has_empty_grid(&request->plan);
  }
  if (jitload_evaluate_plan(request) != 0) return -1;
  const int is_empty = jitload_check_extents(request);
  if (is_empty < 0) return -1;
  if (!is_empty && request->device != JITLOAD_CPU_DEVICE) {
    if (kernel->bounds != NULL && jitload_check_bounds(request) != 0) return -1;
    if ((kernel->flags & JITLOAD_HAS_CLUSTER) && jitload_check_cluster(request) != 0) return -1;
  }
  if (!is_empty && kernel->separate != NULL) {
    jitload_eval eval;
    eval.args = request->args;
    request->plan.is_separate = jitload_evaluate(kernel->bounds, &eval, &request->plan) == JITLOAD_EVAL_OK;
  }
  if (kernel->plan == NULL && kernel->bounds == NULL) return is_empty; /* there was nothing to compute */
  if (recent == NULL || jitload_counts_as_recent(&recent->recent)) jitload_keep_plan(request);
  return is_empty;
}

static inline int jitload_launch_on_current_device(const jitload_driver* driver, const jitload_request* request,
                                                   jitload_cu_device device) {
  jitload_slot* slot = NULL;
  if (jitload_prepare_kernel(driver, request, device, &slot) != 0) return -1;
  const jitload_cu_stream stream = jitload_select_stream(request, device);
  const jitload_cu_result code = jitload_submit(driver, request, slot->kernel, stream);
  if (JITLOAD_LIKELY(code == JITLOAD_CUDA_SUCCESS)) return 0;
  return jitload_raise_launch_error(request, slot, device, code);
}

int jitload_run(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args, int32_t num_args,
                jitload_stream_source_fn stream_source, TVMFFIAny* result) {
  if (__builtin_expect(num_args != kernel->argument_count, 0)) {
    return jitload_raise_argument_error(kernel, args, num_args);
  }
  if (__builtin_expect(kernel->host != NULL, 0)) return jitload_call_host(kernel, config, args, result);
  if (kernel->triton != NULL) return jitload_run_triton(kernel, config, args, stream_source);
  while (__builtin_expect(kernel->flags & JITLOAD_DISPATCHES, 0)) {
    kernel = jitload_choose(kernel, args, NULL);
    if (kernel == NULL) return -1;
  }
  void* memory = __builtin_alloca(jitload_request_bytes(kernel));
  jitload_request request = jitload_make_request(kernel, config, args, stream_source, memory);
  if (jitload_read_arguments(&request) != kernel->param_count) return jitload_raise_argument_error(kernel, args, num_args);
  if (__builtin_expect(kernel->cpu != NULL, 0) && !jitload_choose_device(&request)) {
    return jitload_raise_argument_error(kernel, args, num_args);
  }
  const int is_empty = jitload_make_plan(&request);
  if (is_empty != 0) return is_empty < 0 ? -1 : 0;
  if (__builtin_expect(request.device == JITLOAD_CPU_DEVICE, 0)) return jitload_launch_on_cpu(&request);
  if (__builtin_expect(kernel->map_count != 0, 0)) {
    const size_t bytes = JITLOAD_MAP_BYTES * (size_t)kernel->map_count + JITLOAD_MAP_ALIGNMENT;
    const uintptr_t maps = (uintptr_t)__builtin_alloca(bytes) + JITLOAD_MAP_ALIGNMENT - 1;
    if (jitload_pass_tensor_maps(&request, (unsigned char*)(maps & ~(uintptr_t)(JITLOAD_MAP_ALIGNMENT - 1))) != 0) {
      return -1;
    }
  }
  return jitload_launch_on_device(&request, jitload_launch_on_current_device);
}

extern "C" int jitload_call(intptr_t kernel, const void* args, int32_t num_args, void* result) {
  return jitload_run(&jitload_library_record.module.kernels[kernel], &jitload_as_declared, (const TVMFFIAny*)args, num_args,
                     NULL, (TVMFFIAny*)result);
}

/* Explain a call without launching: write the index of the kernel that it would launch (of Triton's kernels, the
 * position), the threads and the dynamic shared memory of a block, or zeros if the call passes the grid or block, how the
 * kernel was chosen, and the key. args: (module, kernel index, address of 12 64-bit integers, *the call's arguments). */
JITLOAD_LOADER_FUNCTION(explain)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  const jitload_kernel* kernel = &((const jitload_module*)(uintptr_t)args[0].v_int64)->kernels[args[1].v_int64];
  int64_t* out = (int64_t*)(uintptr_t)args[2].v_int64;
  args += 3, num_args -= 3;
  if (num_args != kernel->argument_count) return jitload_raise_argument_error(kernel, args, num_args);
  memset(out, 0, sizeof *out * 12);
  if (kernel->triton != NULL) {
    if (kernel->choice != NULL) out[0] = jitload_find_position(kernel, args, out + 3);
    return out[0] < 0 ? -1 : 0;
  }
  while (kernel->flags & JITLOAD_DISPATCHES) {
    kernel = jitload_choose(kernel, args, out + 3);
    if (kernel == NULL) return -1;
  }
  out[0] = kernel->index;
  void* memory = __builtin_alloca(jitload_request_bytes(kernel));
  jitload_request request = jitload_make_request(kernel, &jitload_as_declared, args, NULL, memory);
  if (jitload_read_arguments(&request) != kernel->param_count) return jitload_raise_argument_error(kernel, args, num_args);
  if (!(kernel->flags & JITLOAD_HAS_GRID) || !(kernel->flags & JITLOAD_HAS_BLOCK)) return 0;
  if (jitload_evaluate_plan(&request) != 0) return -1;
  out[1] = request.plan.block[0] * request.plan.block[1] * request.plan.block[2];
  out[2] = request.plan.shared_bytes;
  return 0;
}
