/* A call of a typed function, from its arguments to the driver: all that happens at a usual launch.
 *
 * With device.cc and explain.cc this is the runtime, compiled once for a compiler and linked into each library with
 * hidden symbols, so that a generated wrapper stays a page of tables.
 */
#include <tvm/ffi/extra/c_env_api.h>

#include "device.h"

/* ---- launch expressions and limits ----------------------------------------------------------------------------- */

/* The limits every CUDA device shares; 1 means a grid without blocks. */
static inline int jitload_check_extents(const jitload_request* request) {
  const int64_t* grid = request->plan.grid;
  const int64_t* block = request->plan.block;
  const jitload_kernel* kernel = request->kernel;
  if ((grid[0] | grid[1] | grid[2]) < 0) return jitload_refuse_extent(kernel, "grid", grid, "must not be negative");
  if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
    return jitload_refuse_extent(kernel, "grid", grid, "is over CUDA's limit of (2147483647, 65535, 65535) blocks");
  }
  if (block[0] < 1 || block[1] < 1 || block[2] < 1) {
    return jitload_refuse_extent(kernel, "block", block, "must be positive");
  }
  if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || block[0] * block[1] * block[2] > 1024) {
    return jitload_refuse_extent(kernel, "block", block, "is over CUDA's limit of (1024, 1024, 64) and 1024 threads in all");
  }
  if (request->plan.shared_bytes < 0 || request->plan.shared_bytes > INT32_MAX) {
    return jitload_fail("ValueError", "%s(): shared_bytes must be from 0 to 2147483647, got %lld", kernel->name,
                        (long long)request->plan.shared_bytes);
  }
  return grid[0] == 0 || grid[1] == 0 || grid[2] == 0;
}

static int jitload_check_cluster(const jitload_request* request) {
  const int64_t* grid = request->plan.grid;
  const int64_t* cluster = request->plan.cluster;
  static const char axes[] = "xyz";
  for (int i = 0; i < 3; ++i) {
    if (cluster[i] < 1) return jitload_refuse_extent(request->kernel, "cluster", cluster, "must be positive");
    if (grid[i] % cluster[i] != 0) {
      return jitload_fail("ValueError", "%s(): grid.%c (%lld) is no multiple of cluster.%c (%lld)",
                          request->kernel->name, axes[i], (long long)grid[i], axes[i], (long long)cluster[i]);
    }
  }
  return 0;
}

/* Run the launch expressions for what the call did not give, and store the computed parameters. */
static int jitload_make_plan(jitload_request* request, const TVMFFIAny* args, uint64_t* values) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_config* config = request->config;
  jitload_plan* plan = &request->plan;
  const int has_grid = config != NULL && config->has_grid;
  const int has_block = config != NULL && config->has_block;
  if (!(has_grid || (kernel->flags & JITLOAD_HAS_GRID)) || !(has_block || (kernel->flags & JITLOAD_HAS_BLOCK))) {
    return jitload_refuse_missing(kernel);
  }
  *plan = jitload_plan{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 0, (int64_t*)values, !has_grid, !has_block, 1};
  if (config != NULL && config->has_shared_bytes) plan->wants_shared_bytes = 0;
  if (kernel->plan != NULL) {
    jitload_eval eval = {};
    eval.args = args;
    kernel->plan(&eval, plan);
    if (eval.error != JITLOAD_EVAL_OK) return jitload_refuse_expression(kernel, &eval);
  }
  if (has_grid) memcpy(plan->grid, config->grid, sizeof plan->grid);
  if (has_block) memcpy(plan->block, config->block, sizeof plan->block);
  if (!plan->wants_shared_bytes) plan->shared_bytes = config->shared_bytes;
  if (kernel->flags & JITLOAD_COMPUTES) {
    for (int32_t i = 0; i < kernel->param_count; ++i) {
      const jitload_param* param = &kernel->params[i];
      if (param->argument >= 0) continue;
      const TVMFFIAny computed = {kTVMFFIInt, {0}, {(int64_t)values[i]}};
      if (!jitload_read_number(param, &computed, &values[i])) return jitload_refuse_range(kernel, param, &computed);
    }
  }
  return 0;
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

static jitload_cu_result jitload_launch_with_attributes(const jitload_driver* driver, const jitload_request* request,
                                                        jitload_cu_kernel function, jitload_cu_stream stream) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  jitload_cu_attribute attributes[4] = {};
  jitload_cu_config config = {};
  for (int i = 0; i < 3; ++i) {
    config.grid[i] = (uint32_t)plan->grid[i];
    config.block[i] = (uint32_t)plan->block[i];
  }
  config.shared_bytes = (uint32_t)plan->shared_bytes;
  config.stream = stream;
  config.attributes = attributes;
  const struct { int32_t flag, id, number; } simple[] = {
      {JITLOAD_IS_COOPERATIVE, JITLOAD_LAUNCH_COOPERATIVE, 1},
      {JITLOAD_IS_PDL, JITLOAD_LAUNCH_PDL, 1},
      {JITLOAD_HAS_PRIORITY, JITLOAD_LAUNCH_PRIORITY, kernel->priority},
  };
  for (const auto& row : simple) {
    if (!(kernel->flags & row.flag)) continue;
    attributes[config.attribute_count].id = row.id;
    attributes[config.attribute_count++].value.number = row.number;
  }
  if (kernel->flags & JITLOAD_HAS_CLUSTER) {
    attributes[config.attribute_count].id = JITLOAD_LAUNCH_CLUSTER;
    for (int i = 0; i < 3; ++i) attributes[config.attribute_count].value.extent[i] = (uint32_t)plan->cluster[i];
    ++config.attribute_count;
  }
  return driver->launch_ex(&config, function, request->params, NULL);
}

static inline jitload_cu_stream jitload_pick_stream(const jitload_request* request, jitload_cu_device device) {
  if (request->config != NULL && request->config->has_stream) return request->config->stream;
  void* given = NULL;
  if (request->stream_source != NULL && request->stream_source(kDLCUDA, device, &given) == 0) return given;
  jitload_cu_stream stream = TVMFFIEnvGetStream(kDLCUDA, device);
  if (stream == NULL && request->device < 0 && jitload_stream_source != NULL) {
    void* current = NULL;
    if (jitload_stream_source(kDLCUDA, device, &current) == 0) stream = current;
  }
  return stream;
}

/* The right context is current. */
static inline int jitload_launch_here(const jitload_driver* driver, const jitload_request* request,
                                      jitload_cu_device device) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  jitload_slot* slot = NULL;
  if (jitload_find_slot(driver, kernel, device, &slot) != 0) return -1;
  if (__builtin_expect(plan->shared_bytes > __atomic_load_n(&slot->dynamic_allowed, __ATOMIC_RELAXED), 0) &&
      jitload_allow_shared(driver, kernel, device, slot, plan->shared_bytes) != 0) {
    return -1;
  }
  const jitload_cu_stream stream = jitload_pick_stream(request, device);
  const int attributes = JITLOAD_HAS_CLUSTER | JITLOAD_IS_COOPERATIVE | JITLOAD_IS_PDL | JITLOAD_HAS_PRIORITY;
  jitload_cu_result code;
  if (JITLOAD_LIKELY((kernel->flags & attributes) == 0)) {
    code = driver->launch(slot->kernel, (unsigned)plan->grid[0], (unsigned)plan->grid[1], (unsigned)plan->grid[2],
                          (unsigned)plan->block[0], (unsigned)plan->block[1], (unsigned)plan->block[2],
                          (unsigned)plan->shared_bytes, stream, request->params, NULL);
  } else {
    code = jitload_launch_with_attributes(driver, request, slot->kernel, stream);
  }
  if (JITLOAD_LIKELY(code == JITLOAD_CUDA_SUCCESS)) return 0;
  return jitload_launch_error(request, slot, device, code);
}

/* Make the device of the tensors current, launch, and restore what was current on every path. A context of the
 * right device, a green or a user's own one, is used as it is. A thread without a context keeps the primary one. */
static inline int jitload_launch(const jitload_request* request) {
  const jitload_driver* driver = jitload_get_driver(request->kernel->name);
  if (driver == NULL) return -1;
  jitload_cu_device current = -1;
  const jitload_cu_result code = driver->context_device(&current);
  if (code != JITLOAD_CUDA_SUCCESS) current = -1;
  const jitload_cu_device device = request->device >= 0 ? request->device : current >= 0 ? current : 0;
  if (JITLOAD_LIKELY(current == device)) return jitload_launch_here(driver, request, device);
  jitload_cu_context before = NULL;
  if (jitload_enter_device(driver, request->kernel->name, device, &before) != 0) {
    if (before != NULL) driver->set_context(before);
    return -1;
  }
  const int failed = jitload_launch_here(driver, request, device);
  if (before != NULL) driver->set_context(before);
  return failed;
}

static inline int jitload_read_arguments(jitload_request* request, const TVMFFIAny* args, uint64_t* values,
                                         unsigned char** structs) {
  const jitload_kernel* kernel = request->kernel;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    request->params[i] = &values[i];
    if (param->argument < 0) continue;
    const TVMFFIAny* value = &args[param->argument];
    if (param->kind == JITLOAD_POINTER) {
      if (!jitload_read_pointer(param, value, &values[i], &request->device)) return 0;
    } else if (param->kind == JITLOAD_STRUCT) {
      ptrdiff_t size;
      if (!jitload_read_struct(value, *structs, param->size, &size)) return 0;
      request->params[i] = *structs;
      *structs += (param->size + 63) & ~(size_t)63;
    } else if (!jitload_read_number(param, value, &values[i])) {
      return 0;
    }
  }
  return 1;
}

extern "C" int jitload_run(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                           int32_t num_args, jitload_stream_source_fn stream_source) {
  if (__builtin_expect(num_args != kernel->argument_count, 0)) return jitload_explain(kernel, args, num_args);
  const size_t count = (size_t)kernel->param_count;
  uint64_t* values = (uint64_t*)__builtin_alloca(8 * count + 8);
  jitload_request request;
  request.kernel = kernel;
  request.config = config;
  request.stream_source = stream_source;
  request.params = (void**)__builtin_alloca(sizeof(void*) * count + 8);
  request.device = -1;
  unsigned char* structs = NULL;
  if (kernel->struct_bytes != 0) structs = (unsigned char*)__builtin_alloca(kernel->struct_bytes);
  if (!jitload_read_arguments(&request, args, values, &structs)) return jitload_explain(kernel, args, num_args);
  if (jitload_make_plan(&request, args, values) != 0) return -1;
  const int extents = jitload_check_extents(&request);
  if (extents != 0) return extents < 0 ? -1 : 0;
  if ((kernel->flags & JITLOAD_HAS_CLUSTER) && jitload_check_cluster(&request) != 0) return -1;
  return jitload_launch(&request);
}

extern "C" int jitload_call(const jitload_kernel* kernel, const TVMFFIAny* args, int32_t num_args) {
  return jitload_run(kernel, NULL, args, num_args, NULL);
}
