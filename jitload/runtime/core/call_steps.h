/* The steps from arguments to the driver that all launches share: inline functions of call.cc,
 * host_call.cc and triton/call.cc. */
#pragma once

#include <tvm/ffi/extra/c_env_api.h>

#include "choice.h"

/* The bytes that a request needs on the caller's stack, for its parameters and for structures. */
static inline size_t jitload_request_bytes(const jitload_kernel* kernel) {
  return (sizeof(void*) + sizeof(uint64_t)) * (size_t)kernel->param_count + (size_t)kernel->struct_bytes + 8;
}

static inline jitload_request jitload_make_request(const jitload_kernel* kernel, const jitload_config* config,
                                                   const TVMFFIAny* args, jitload_stream_source_fn stream_source,
                                                   void* memory) {
  jitload_request request;
  request.kernel = kernel;
  request.config = config;
  request.args = args;
  request.stream_source = stream_source;
  request.device = -1;
  request.may_ask_framework = 0;
  request.params = (void**)memory;
  request.values = (uint64_t*)(request.params + kernel->param_count);
  return request;
}

/* Return the index of the first parameter that does not accept its argument, or the number of parameters. */
static inline int32_t jitload_read_arguments(jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  unsigned char* structs = (unsigned char*)(((uintptr_t)(request->values + kernel->param_count) + 63) & ~(uintptr_t)63);
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    uint64_t* number = &request->values[i];
    request->params[i] = number;
    if (param->argument < 0) continue;
    const TVMFFIAny* value = &request->args[param->argument];
    if (param->kind == JITLOAD_POINTER) {
      if (!jitload_read_pointer(param, value, number, &request->device)) return i;
    } else if (param->kind == JITLOAD_STRUCT) {
      ptrdiff_t size;
      if (!jitload_read_struct(param, value, structs, &size)) return i;
      request->params[i] = structs;
      structs += (param->size + 63) & ~(size_t)63;
    } else if (!jitload_read_number(param, value, number)) {
      return i;
    }
  }
  return kernel->param_count;
}

/* ---- launch expressions and limits ----------------------------------------------------------------------------- */

static inline int jitload_has_empty_grid(const jitload_plan* plan) {
  return plan->grid[0] == 0 || plan->grid[1] == 0 || plan->grid[2] == 0;
}

/* Check the limits that all CUDA devices share. Return 1 for an empty grid, and -1 with an error. */
static inline int jitload_check_extents(const jitload_request* request) {
  const int64_t* grid = request->plan.grid;
  const int64_t* block = request->plan.block;
  const jitload_kernel* kernel = request->kernel;
  if ((grid[0] | grid[1] | grid[2]) < 0) {
    return jitload_raise_extent_error(kernel, "grid", grid, "must not be negative");
  }
  if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
    return jitload_raise_extent_error(kernel, "grid", grid,
                                      "is over CUDA's limit of (2147483647, 65535, 65535) blocks");
  }
  if (block[0] < 1 || block[1] < 1 || block[2] < 1) {
    return jitload_raise_extent_error(kernel, "block", block, "must be positive");
  }
  if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || block[0] * block[1] * block[2] > 1024) {
    return jitload_raise_extent_error(kernel, "block", block,
                                      "is over CUDA's limit of (1024, 1024, 64) and 1024 threads in all");
  }
  if (request->plan.shared_bytes < 0 || request->plan.shared_bytes > INT32_MAX) {
    return jitload_fail("ValueError", "%s(): shared_bytes must be from 0 to 2147483647, got %lld", kernel->name,
                        (long long)request->plan.shared_bytes);
  }
  return jitload_has_empty_grid(&request->plan);
}

/* Check the accesses that a launch is certain to make. A check whose numbers do not fit 64 bits is left out. */
static inline int jitload_check_bounds(const jitload_request* request) {
  jitload_eval eval;
  eval.args = request->args;
  jitload_plan* plan = const_cast<jitload_plan*>(&request->plan); /* which checks only read */
  const jitload_op* check = request->kernel->bounds;
  while (__builtin_expect(jitload_evaluate(check, &eval, plan) != JITLOAD_EVAL_OK, 0)) {
    if (eval.error == JITLOAD_EVAL_OUTSIDE) return jitload_raise_outside_error(request, &eval);
    for (check = eval.step; check->code != JITLOAD_OP_OUTSIDE; ++check) continue;
    ++check;
  }
  return 0;
}

static inline int jitload_check_cluster(const jitload_request* request) {
  const int64_t* grid = request->plan.grid;
  const int64_t* cluster = request->plan.cluster;
  static const char axes[] = "xyz";
  for (int i = 0; i < 3; ++i) {
    if (cluster[i] < 1) return jitload_raise_extent_error(request->kernel, "cluster", cluster, "must be positive");
    if (grid[i] % cluster[i] != 0) {
      return jitload_fail("ValueError", "%s(): grid.%c (%lld) is not a multiple of cluster.%c (%lld)",
                          request->kernel->name, axes[i], (long long)grid[i], axes[i], (long long)cluster[i]);
    }
  }
  return 0;
}

/* Evaluate the launch expressions, let the call's configuration override them, and encode the computed parameters. */
static int jitload_evaluate_plan(jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_config* config = request->config;
  jitload_plan* plan = &request->plan;
  const int is_grid_known = config->has_grid || (kernel->flags & JITLOAD_HAS_GRID);
  const int is_block_known = config->has_block || (kernel->flags & JITLOAD_HAS_BLOCK);
  if (!is_grid_known || !is_block_known) return jitload_raise_missing_grid(kernel, is_grid_known, is_block_known);
  *plan = jitload_plan{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 0, (int64_t*)request->values,
                       !config->has_grid, !config->has_block, !config->has_shared_bytes};
  if (kernel->plan != NULL) {
    jitload_eval eval;
    eval.args = request->args;
    if (jitload_evaluate(kernel->plan, &eval, plan) != JITLOAD_EVAL_OK) {
      return jitload_raise_expression_error(kernel, &eval);
    }
  }
  if (config->has_grid) memcpy(plan->grid, config->grid, sizeof plan->grid);
  if (config->has_block) memcpy(plan->block, config->block, sizeof plan->block);
  if (config->has_shared_bytes) plan->shared_bytes = config->shared_bytes;
  if (kernel->flags & JITLOAD_COMPUTES) {
    for (int32_t i = 0; i < kernel->param_count; ++i) {
      const jitload_param* param = &kernel->params[i];
      if (param->argument >= 0 || param->kind == JITLOAD_STREAM) continue;
      const TVMFFIAny computed = {kTVMFFIInt, {0}, {(int64_t)request->values[i]}};
      if (!jitload_read_number(param, &computed, &request->values[i])) {
        return jitload_raise_range_error(kernel, param, &computed);
      }
    }
  }
  return 0;
}

/* ---- the launch ------------------------------------------------------------------------------------------------ */

/* Select the stream of a call. In a call without tensors, tvm-ffi does not know any framework's stream. Then torch's
 * current stream is used. Nor does it know that of tensors in Triton's descriptors. */
static inline jitload_cu_stream jitload_select_stream(const jitload_request* request, jitload_cu_device device) {
  if (request->config->has_stream) return request->config->stream;
  void* current = NULL;
  if (request->stream_source != NULL && request->stream_source(kDLCUDA, device, &current) == 0) return current;
  jitload_cu_stream stream = TVMFFIEnvGetStream(kDLCUDA, device);
  if (stream == NULL && (request->device < 0 || request->may_ask_framework) && jitload_stream_source != NULL) {
    if (jitload_stream_source(kDLCUDA, device, &current) == 0) stream = current;
  }
  return stream;
}

static inline jitload_cu_result jitload_submit(const jitload_driver* driver, const jitload_request* request,
                                               jitload_cu_kernel function, jitload_cu_stream stream) {
  const jitload_plan* plan = &request->plan;
  if (JITLOAD_LIKELY(request->kernel->attribute_count == 0)) {
    return driver->launch(function, (unsigned)plan->grid[0], (unsigned)plan->grid[1], (unsigned)plan->grid[2],
                          (unsigned)plan->block[0], (unsigned)plan->block[1], (unsigned)plan->block[2],
                          (unsigned)plan->shared_bytes, stream, request->params, NULL);
  }
  return jitload_launch_with_attributes(driver, request, function, stream);
}

/* Find the kernel on the device, and allow it the launch's dynamic shared memory. */
static inline int jitload_prepare_kernel(const jitload_driver* driver, const jitload_request* request,
                                         jitload_cu_device device,
                                         jitload_slot** slot) {
  if (jitload_get_slot(driver, request->kernel, device, slot) != 0) return -1;
  const int64_t bytes = request->plan.shared_bytes;
  if (JITLOAD_LIKELY(bytes <= __atomic_load_n(&(*slot)->dynamic_shared_limit, __ATOMIC_RELAXED))) return 0;
  return jitload_increase_shared_limit(driver, request->kernel, device, *slot, bytes);
}

typedef int (*jitload_launch_fn)(const jitload_driver*, const jitload_request*, jitload_cu_device);

/* Make the tensors' device current, call `launch`, and restore the previous context. Any context of the right device is
 * used as it is, so that green contexts work. A thread without a context keeps the primary one. */
static inline int jitload_launch_on_device(const jitload_request* request, jitload_launch_fn launch) {
  const jitload_driver* driver = jitload_get_driver(request->kernel->name);
  if (driver == NULL) return -1;
  jitload_cu_device current = -1;
  const jitload_cu_result code = driver->context_device(&current);
  if (code != JITLOAD_CUDA_SUCCESS) current = -1;
  const jitload_cu_device device = request->device >= 0 ? request->device : current >= 0 ? current : 0;
  if (JITLOAD_LIKELY(current == device)) return launch(driver, request, device);
  jitload_cu_context before = NULL;
  if (jitload_enter_device(driver, request->kernel->name, device, &before) != 0) {
    if (before != NULL) driver->set_context(before);
    return -1;
  }
  const int failed = launch(driver, request, device);
  if (before != NULL) driver->set_context(before);
  return failed;
}
