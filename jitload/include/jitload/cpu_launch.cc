/* A call of a typed function on CPU tensors: what a GPU's launch would refuse, too, and the grid is run. */
#include <dlfcn.h>

#include "cpu.h"
#include "device.h"

extern "C" int jitload_count_gpus(void) {
  static int known = -1;
  if (known >= 0) return known;
  int (*init)(unsigned) = NULL;
  int (*count_devices)(int*) = NULL;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library != NULL) {
    *(void**)&init = dlsym(library, "cuInit");
    *(void**)&count_devices = dlsym(library, "cuDeviceGetCount");
  }
  int count = 0;
  const int works = init != NULL && count_devices != NULL && init(0) == 0 && count_devices(&count) == 0;
  return known = works ? count : 0;
}

extern "C" int jitload_choose_place(jitload_request* request) {
  const int has_images = request->kernel->module->image_count != 0;
  if (request->device < 0 && (!has_images || jitload_count_gpus() == 0)) request->device = JITLOAD_CPU_DEVICE;
  return has_images || request->device == JITLOAD_CPU_DEVICE;
}

/* What only a GPU does. That a kernel may start early (pdl) and its priority are hints, which change no result. */
static int jitload_refuse_on_cpu(const jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  const int64_t* cluster = request->plan.cluster;
  if ((kernel->flags & JITLOAD_HAS_CLUSTER) && (cluster[0] != 1 || cluster[1] != 1 || cluster[2] != 1)) {
    return jitload_refuse_extent(kernel, "cluster", cluster, "must be (1, 1, 1) on the CPU; clusters are GPU only");
  }
  if (kernel->flags & JITLOAD_IS_COOPERATIVE) {
    return jitload_fail("RuntimeError", "%s(): a cooperative launch is GPU only: on the CPU the blocks of a grid do not run "
                        "at the same time, so they cannot wait for each other", kernel->name);
  }
  if (request->plan.shared_bytes > JITLOAD_MOST_SHARED) {
    return jitload_fail("ValueError", "%s(): shared_bytes is %lld, and no GPU gives a block more than %d", kernel->name,
                        (long long)request->plan.shared_bytes, JITLOAD_MOST_SHARED);
  }
  return 0;
}

/* Where a tensor's elements lie, strides of either sign included. */
static jitload_cpu_region jitload_region_of(const char* name, const DLTensor* tensor) {
  const uintptr_t bytes = ((uintptr_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  intptr_t low = 0, high = 0;
  int64_t step = 1;
  for (int32_t axis = tensor->ndim - 1; axis >= 0; --axis) {
    const int64_t reach = (tensor->shape[axis] - 1) * (tensor->strides != NULL ? tensor->strides[axis] : step);
    *(reach < 0 ? &low : &high) += reach;
    step *= tensor->shape[axis];
  }
  const uintptr_t first = (uintptr_t)jitload_address(tensor);
  const uintptr_t end = jitload_is_empty(tensor) ? first : first + (uintptr_t)(high + 1) * bytes;
  return {name, first + (uintptr_t)low * bytes, end};
}

/* Where the parameters lie, and the addresses of them. */
static jitload_cpu_region jitload_values_of(const jitload_request* request) {
  const int32_t count = request->kernel->param_count;
  jitload_cpu_region all = {"", (uintptr_t)request->params, (uintptr_t)(request->params + count)};
  for (int32_t i = 0; i < count; ++i) {
    const uintptr_t begin = (uintptr_t)request->params[i], end = begin + request->kernel->params[i].size;
    if (begin < all.begin) all.begin = begin;
    if (end > all.end) all.end = end;
  }
  return all;
}

/* The work is done when the call returns. */
extern "C" int jitload_launch_on_cpu(const jitload_request* request) {
  const jitload_kernel* kernel = request->kernel;
  const jitload_plan* plan = &request->plan;
  if (jitload_refuse_on_cpu(request) != 0) return -1;
  jitload_cpu_launch launch = {};
  launch.kernel = kernel->cpu;
  launch.name = kernel->name;
  launch.can_wait = kernel->can_wait;
  launch.params = request->params;
  for (int i = 0; i < 3; ++i) {
    launch.place.grid[i] = (uint32_t)plan->grid[i];
    launch.place.block[i] = (uint32_t)plan->block[i];
  }
  launch.place.shared_bytes = (uint32_t)plan->shared_bytes;
  jitload_cpu_region* regions = (jitload_cpu_region*)__builtin_alloca(sizeof *regions * (size_t)kernel->param_count + 1);
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->argument < 0) continue;
    const DLTensor* tensor = param->kind == JITLOAD_POINTER ? jitload_tensor_of(&request->args[param->argument]) : NULL;
    if (tensor != NULL) regions[launch.region_count++] = jitload_region_of(param->name, tensor);
    const int type = request->args[param->argument].type_index;
    if (tensor == NULL && (param->kind == JITLOAD_STRUCT || (param->kind == JITLOAD_POINTER && type != kTVMFFINone))) {
      launch.has_addresses = 1;
    }
  }
  launch.regions = regions;
  launch.values = jitload_values_of(request);
  const char* error = NULL;
  const int code = kernel->module->cpu_run(&launch, &error);
  if (code == -1) return jitload_fail("RuntimeError", "%s", error);
  /* For tvm-ffi's own road: from 0.1.9 it asks for this beside the code, before that the code is all. */
  if (code == JITLOAD_CPU_INTERRUPTED) TVMFFIErrorSetRaisedFromCStr("EnvErrorAlreadySet", "");
  return code;
}
