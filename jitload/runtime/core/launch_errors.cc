/* Errors of launches: from launch expressions, from extents and from the driver. */
#include <stdio.h>

#include "runtime.h"

static int jitload_raise_shapes_error(const jitload_kernel* kernel, const jitload_eval* eval, const char* text) {
  char shapes[2][256];
  const int64_t arguments[2] = {eval->left, eval->right};
  for (int i = 0; i < 2; ++i) {
    const DLTensor* tensor = jitload_get_tensor((const TVMFFIAny*)eval->args + arguments[i]);
    jitload_format_extents(tensor->shape, tensor->ndim, shapes[i], sizeof shapes[i]);
  }
  return jitload_fail("ValueError", "%s(): %s, got %s and %s", kernel->name, text, shapes[0], shapes[1]);
}

int jitload_raise_expression_error(const jitload_kernel* kernel, const jitload_eval* eval) {
  const char* text = kernel->expressions[eval->error_expression];
  const long long left = (long long)eval->left, right = (long long)eval->right;
  switch (eval->error) {
    case JITLOAD_EVAL_REQUIREMENT:
      return jitload_fail("ValueError", "%s(): %s, which is false in this call", kernel->name, text);
    case JITLOAD_EVAL_COMPARED:
      return jitload_fail("ValueError", "%s(): %s, got %lld and %lld", kernel->name, text, left, right);
    case JITLOAD_EVAL_COMPARED_SHAPES: return jitload_raise_shapes_error(kernel, eval, text);
    case JITLOAD_EVAL_DIVISION_BY_ZERO:
      return jitload_fail("ValueError", "%s(): %s: division of %lld by zero", kernel->name, text, left);
    case JITLOAD_EVAL_NOT_A_TENSOR:
      return jitload_fail("ValueError", "%s(): %s: argument '%s' is not a tensor in this call, so it has no shape",
                          kernel->name, text, jitload_param_of(kernel, eval->left)->name);
    case JITLOAD_EVAL_AXIS:
      return jitload_fail("ValueError", "%s(): %s: axis %lld is out of range for a tensor of %lld dimension%s",
                          kernel->name, text, left, right, right == 1 ? "" : "s");
    case JITLOAD_EVAL_INTEGER:
      if (((const TVMFFIAny*)eval->args)[eval->left].type_index == kTVMFFIOpaquePyObject) {
        return jitload_fail("TypeError",
                            "%s(): %s: argument '%s' is a NumPy bool, which expressions cannot use; pass bool(…)",
                            kernel->name, text, jitload_param_of(kernel, eval->left)->name);
      }
      return jitload_fail("ValueError", "%s(): %s: argument '%s' is 2**63 or more, too large for an expression",
                          kernel->name, text, jitload_param_of(kernel, eval->left)->name);
    default:
      return jitload_fail("ValueError", "%s(): %s: the result of %lld and %lld does not fit 64 bits", kernel->name,
                          text, left, right);
  }
}

int jitload_raise_outside_error(const jitload_request* request, const jitload_eval* eval) {
  const jitload_kernel* kernel = request->kernel;
  if (eval->step->operand < 0) {
    const int is_dynamic = eval->step->value == 0;
    return jitload_fail("ValueError", "%s(): the kernel would access bytes %lld to %lld of %s, which has %lld bytes: %s",
                        kernel->name, (long long)eval->left, (long long)(eval->right - 1),
                        is_dynamic ? "its dynamic shared memory" : "a __shared__ array",
                        (long long)(is_dynamic ? request->plan.shared_bytes : eval->step->value),
                        is_dynamic ? "pass more shared_bytes, or check the block" : "check the block and the sizes");
  }
  const TVMFFIAny* argument = (const TVMFFIAny*)eval->args + eval->step->operand;
  const char* name = jitload_param_of(kernel, eval->step->operand)->name;
  const DLTensor* tensor = jitload_get_tensor(argument);
  if (tensor == NULL) {
    return jitload_fail("ValueError", "%s(): the kernel would access argument '%s', which is None", kernel->name, name);
  }
  const int64_t size = ((int64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  const int64_t first = eval->left < 0 ? -((size - 1 - eval->left) / size) : eval->left / size;
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return jitload_fail("ValueError", "%s(): the kernel would access elements %lld to %lld of argument '%s', which has "
                      "%lld: pass a larger tensor, or check the sizes and the grid", kernel->name, (long long)first,
                      (long long)((eval->right - 1) / size), name, (long long)count);
}

int jitload_raise_missing_grid(const jitload_kernel* kernel, int has_grid, int has_block) {
  if (kernel->triton != NULL) {
    return jitload_fail("TypeError", "%s() has no grid: call %s[grid](…), or declare it with grid=", kernel->name,
                        kernel->name);
  }
  const char* missing = has_grid ? "block" : has_block ? "grid" : "grid and block";
  return jitload_fail("TypeError", "%s() has no %s: call %s[grid, block](…), or declare %s in its Launch", kernel->name,
                      missing, kernel->name, has_grid || has_block ? "it" : "them");
}

int jitload_raise_extent_error(const jitload_kernel* kernel, const char* field, const int64_t* extent,
                               const char* rule) {
  return jitload_fail("ValueError", "%s(): %s (%lld, %lld, %lld) %s", kernel->name, field, (long long)extent[0],
                      (long long)extent[1], (long long)extent[2], rule);
}

/* ---- the driver's errors --------------------------------------------------------------------------------------- */

/* Whether an earlier kernel caused the error, and the error destroyed the context. */
static int jitload_is_sticky(jitload_cu_result code) {
  switch (code) {
    case JITLOAD_CUDA_ERROR_ILLEGAL_ADDRESS:
    case JITLOAD_CUDA_ERROR_LAUNCH_TIMEOUT:
    case JITLOAD_CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case JITLOAD_CUDA_ERROR_ASSERT:
    case JITLOAD_CUDA_ERROR_TENSOR_MEMORY_LEAK: return 1;
    default: return code >= JITLOAD_CUDA_ERROR_HARDWARE_STACK_ERROR && code <= JITLOAD_CUDA_ERROR_LAUNCH_FAILED;
  }
}

/* Return advice to append to the error's message. */
static const char* jitload_error_hint(jitload_cu_result code) {
  switch (code) {
    case JITLOAD_CUDA_ERROR_OUT_OF_MEMORY: return "; free device memory, or use less of it";
    case JITLOAD_CUDA_ERROR_NOT_INITIALIZED:
      return "; a process that forked after CUDA was initialised cannot use it: start workers with the 'spawn' or "
             "'forkserver' method";
    case JITLOAD_CUDA_ERROR_NO_DEVICE: return "; see nvidia-smi, and the environment variable CUDA_VISIBLE_DEVICES";
    case JITLOAD_CUDA_ERROR_INVALID_DEVICE: return "; see the environment variable CUDA_VISIBLE_DEVICES";
    case JITLOAD_CUDA_ERROR_INVALID_IMAGE:
    case JITLOAD_CUDA_ERROR_NO_BINARY_FOR_GPU:
    case JITLOAD_CUDA_ERROR_INVALID_PTX:
    case JITLOAD_CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "; the code may be newer than the driver: update the driver, or build with an older NVRTC (JITLOAD_NVRTC)";
    case JITLOAD_CUDA_ERROR_INVALID_CONTEXT:
    case JITLOAD_CUDA_ERROR_INVALID_HANDLE:
      return "; a stream or a context may belong to another device, or no longer exist";
    case JITLOAD_CUDA_ERROR_NOT_FOUND: return "; the library may be damaged: build it again";
    case JITLOAD_CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "; use fewer threads per block, or give the kernel __launch_bounds__";
    case JITLOAD_CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
      return "; the blocks of a cooperative launch must all fit the device at once: launch fewer or smaller ones";
    case JITLOAD_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "; the driver's libraries and its kernel module differ in version: restart the machine";
    case JITLOAD_CUDA_ERROR_INVALID_CLUSTER_SIZE: return "; use a smaller cluster or smaller blocks";
    default: return "";
  }
}

static const char* jitload_format_code(const jitload_driver* driver, jitload_cu_result code, char* text, size_t size) {
  const char *name = NULL, *meaning = NULL;
  driver->error_name(code, &name);
  driver->error_string(code, &meaning);
  if (name == NULL) {
    snprintf(text, size, "CUDA error %d, which this driver has no name for", code);
  } else {
    snprintf(text, size, "%s (%s)", name, meaning != NULL ? meaning : "no description");
  }
  return text;
}

int jitload_raise_driver_error(const jitload_driver* driver, const char* function, const char* action,
                               jitload_cu_result code) {
  char text[256];
  jitload_format_code(driver, code, text, sizeof text);
  if (!jitload_is_sticky(code)) {
    return jitload_fail("RuntimeError", "%s(): %s: %s%s", function, action, text, jitload_error_hint(code));
  }
  return jitload_fail("RuntimeError",
                      "%s(): %s: earlier work had failed with %s. The context is lost; run the earlier launches one at a "
                      "time, or with CUDA_LAUNCH_BLOCKING=1, to find which one",
                      function, action, text);
}

/* Format what is wrong with the cluster of a failed launch; `hint` stays empty if nothing is. */
static void jitload_format_cluster_hint(const jitload_driver* driver, const jitload_request* request,
                                        const jitload_slot* slot, jitload_cu_device device, char* hint, size_t size) {
  const jitload_plan* plan = &request->plan;
  int64_t declared[3];
  jitload_declared_cluster(driver, slot->kernel, device, declared);
  const int64_t* cluster = request->kernel->flags & JITLOAD_HAS_CLUSTER ? plan->cluster : declared;
  const int64_t blocks = cluster[0] * cluster[1] * cluster[2];
  if (blocks < 2) return;
  for (int i = 0; i < 3; ++i) {
    if (plan->grid[i] % cluster[i] == 0) continue;
    snprintf(hint, size, "; grid.%c (%lld) is not a multiple of the kernel's own cluster.%c (%lld)", "xyz"[i],
             (long long)plan->grid[i], "xyz"[i], (long long)cluster[i]);
    return;
  }
  jitload_cu_config config = {};
  config.shared_bytes = (uint32_t)plan->shared_bytes;
  for (int i = 0; i < 3; ++i) config.block[i] = (uint32_t)plan->block[i];
  const int64_t limit = jitload_largest_cluster(driver, slot->kernel, &config, (uint64_t)blocks);
  if (limit == 0 || limit >= blocks) return;
  snprintf(hint, size, "; a cluster of (%lld, %lld, %lld), %lld blocks, is not possible here: the limit is %d blocks",
           (long long)cluster[0], (long long)cluster[1], (long long)cluster[2], (long long)blocks, (int)limit);
}

int jitload_raise_launch_error(const jitload_request* request, const jitload_slot* slot, jitload_cu_device device,
                               jitload_cu_result code) {
  const jitload_driver* driver = jitload_loaded_driver;
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  char action[64], text[256], hint[160] = "";
  if (jitload_is_sticky(code)) {
    snprintf(action, sizeof action, "not launched on cuda:%d", (int)device);
    return jitload_raise_driver_error(driver, kernel->name, action, code);
  }
  int max_threads = 0;
  driver->kernel_attribute(&max_threads, JITLOAD_FUNCTION_MAX_THREADS, slot->kernel, device);
  const int64_t threads = plan->block[0] * plan->block[1] * plan->block[2];
  if (max_threads > 0 && threads > max_threads) {
    snprintf(hint, sizeof hint,
             "; a block of this kernel can have at most %d threads (registers or __launch_bounds__), not %lld", max_threads,
             (long long)threads);
  } else {
    jitload_format_cluster_hint(driver, request, slot, device, hint, sizeof hint);
  }
  return jitload_fail("RuntimeError",
                      "%s(): the launch failed: %s; grid (%lld, %lld, %lld), block (%lld, %lld, %lld), %lld bytes of "
                      "dynamic shared memory, cuda:%d%s",
                      kernel->name, jitload_format_code(driver, code, text, sizeof text), (long long)plan->grid[0],
                      (long long)plan->grid[1], (long long)plan->grid[2], (long long)plan->block[0],
                      (long long)plan->block[1], (long long)plan->block[2], (long long)plan->shared_bytes, (int)device,
                      hint[0] != 0 ? hint : jitload_error_hint(code));
}
