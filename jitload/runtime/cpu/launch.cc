/* A call of a typed function on CPU tensors, after the checks that all launches share. */
#include <dlfcn.h>

#include <jitload/cpu.h>

#include "../core/runtime.h"

int jitload_count_gpus(void) {
  static int cached_count = -1;
  if (cached_count >= 0) return cached_count;
  int (*init)(unsigned) = NULL;
  int (*count_devices)(int*) = NULL;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library != NULL) {
    *(void**)&init = dlsym(library, "cuInit");
    *(void**)&count_devices = dlsym(library, "cuDeviceGetCount");
  }
  int count = 0;
  const int works = init != NULL && count_devices != NULL && init(0) == 0 && count_devices(&count) == 0;
  return cached_count = works ? count : 0;
}

int jitload_choose_device(jitload_request* request) {
  const int has_images = request->kernel->module->image_count != 0;
  if (request->device < 0 && (!has_images || jitload_count_gpus() == 0)) request->device = JITLOAD_CPU_DEVICE;
  return has_images || request->device == JITLOAD_CPU_DEVICE;
}

/* Reject what only GPUs can do. `pdl` and `priority` are hints that change no results. */
static int jitload_check_cpu_launch(const jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  const int64_t* cluster = request->plan.cluster;
  if ((kernel->flags & JITLOAD_HAS_CLUSTER) && (cluster[0] != 1 || cluster[1] != 1 || cluster[2] != 1)) {
    return jitload_raise_extent_error(kernel, "cluster", cluster,
                                      "must be (1, 1, 1) on the CPU; clusters are GPU only");
  }
  for (int32_t i = 0; i < kernel->attribute_count; ++i) {
    if (kernel->attributes[i].id != JITLOAD_LAUNCH_COOPERATIVE) continue;
    return jitload_fail("RuntimeError", "%s(): a cooperative launch is GPU only: on the CPU the blocks of a grid do "
                        "not run at the same time, so they cannot wait for each other", kernel->name);
  }
  const int64_t* block = request->plan.block;
  const int64_t threads = block[0] * block[1] * block[2];
  if (threads > kernel->max_threads) {
    return jitload_fail("RuntimeError", "%s(): a block of this kernel can have at most %d threads (__launch_bounds__), "
                        "not %lld", kernel->name, kernel->max_threads, (long long)threads);
  }
  if (request->plan.shared_bytes > JITLOAD_MOST_SHARED) {
    return jitload_fail("ValueError", "%s(): shared_bytes is %lld, and no GPU gives a block more than %d", kernel->name,
                        (long long)request->plan.shared_bytes, JITLOAD_MOST_SHARED);
  }
  return 0;
}

/* Return the memory of the parameters and of the array of their addresses. */
static jitload_cpu_region jitload_param_memory(const jitload_request* request) {
  const int32_t count = request->kernel->param_count;
  jitload_cpu_region all = {"", (uintptr_t)request->params, (uintptr_t)(request->params + count)};
  for (int32_t i = 0; i < count; ++i) {
    const uintptr_t begin = (uintptr_t)request->params[i], end = begin + request->kernel->params[i].size;
    if (begin < all.begin) all.begin = begin;
    if (end > all.end) all.end = end;
  }
  return all;
}

/* Run the grid to its end. */
int jitload_launch_on_cpu(const jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  if (jitload_check_cpu_launch(request) != 0) return -1;
  jitload_cpu_launch launch = {};
  launch.kernel = kernel->cpu;
  launch.name = kernel->name;
  launch.mode = kernel->cpu_mode;
  launch.params = request->params;
  for (int i = 0; i < 3; ++i) {
    launch.block.grid_dim[i] = (uint32_t)plan->grid[i];
    launch.block.block_dim[i] = (uint32_t)plan->block[i];
  }
  launch.block.shared_bytes = (uint32_t)plan->shared_bytes;
  const size_t size = sizeof(jitload_cpu_region) * (size_t)kernel->param_count + 1;
  jitload_cpu_region* tensors = (jitload_cpu_region*)__builtin_alloca(size);
  bool is_separate = kernel->separate != NULL && plan->is_separate;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->argument < 0) continue;
    const DLTensor* tensor = param->kind == JITLOAD_POINTER ? jitload_get_tensor(&request->args[param->argument]) : NULL;
    if (tensor != NULL) {
      const uintptr_t first = (uintptr_t)jitload_tensor_address(tensor);
      int64_t begin, end;
      jitload_find_memory(tensor, &begin, &end);
      const int is_const = (param->flags & JITLOAD_READ_ONLY) != 0;
      const jitload_cpu_region region = {param->name, first + (uintptr_t)begin, first + (uintptr_t)end, is_const};
      is_separate = is_separate && begin == 0; /* without negative strides */
      for (int k = 0; k < launch.tensor_count; ++k) {
        is_separate = is_separate && (region.begin >= tensors[k].end || tensors[k].begin >= region.end);
      }
      tensors[launch.tensor_count++] = region;
    }
    const bool is_none = request->args[param->argument].type_index == kTVMFFINone;
    const bool is_address = param->kind == JITLOAD_POINTER && tensor == NULL && !is_none;
    if (is_address || (param->flags & JITLOAD_ADDRESSES)) launch.has_addresses = 1;
  }
  launch.tensors = tensors;
  if (is_separate && !launch.has_addresses) launch.kernel = kernel->separate, launch.is_unchecked = 1;
  launch.param_memory = jitload_param_memory(request);
  const char* error = NULL;
  const int code = jitload_cpu_run(&launch, &error);
  if (code == -1) return jitload_fail("RuntimeError", "%s", error);
  /* Some callers go through tvm-ffi. Before 0.1.9 it reads only the code; since then it also reads the error. */
  if (code == JITLOAD_CPU_INTERRUPTED) jitload_fail("EnvErrorAlreadySet", "%s", "");
  return code;
}
