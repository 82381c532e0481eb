/* A call of a host function, after the checks that all calls share. */
#include <jitload/host_result.h>

#include "call_steps.h"

static int jitload_call_with_stream(const jitload_request* request, jitload_cu_stream stream) {
  const jitload_kernel* kernel = request->kernel;
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    if (kernel->params[i].kind == JITLOAD_STREAM) *(jitload_cu_stream*)request->params[i] = stream;
  }
  return kernel->host(request->params, request->host_result);
}

static int jitload_call_on_device(const jitload_driver*, const jitload_request* request, jitload_cu_device device) {
  return jitload_call_with_stream(request, jitload_select_stream(request, device));
}

/* Convert what the function returned, in its own type, for tvm-ffi. */
static int jitload_return(const jitload_kernel* kernel, const __jitload_result* from, TVMFFIAny* result) {
  result->zero_padding = 0;
  result->v_int64 = from->integer;
  switch (from->kind) {
    case __JITLOAD_INT: result->type_index = kTVMFFIInt; break;
    case __JITLOAD_UINT:
      if (from->integer < 0) {
        return jitload_fail("ValueError", "%s(): the result %llu is too large: tvm-ffi passes integers as int64",
                            kernel->name, (unsigned long long)from->integer);
      }
      result->type_index = kTVMFFIInt;
      break;
    case __JITLOAD_BOOL: result->type_index = kTVMFFIBool; break;
    case __JITLOAD_FLOAT:
      result->type_index = kTVMFFIFloat;
      result->v_float64 = from->number;
      break;
    default:
      result->type_index = kTVMFFINone;
      result->v_int64 = 0;
  }
  return 0;
}

int jitload_call_host(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                      TVMFFIAny* result) {
  __jitload_result host_result;
  memset(&host_result, 0, offsetof(__jitload_result, message));
  void* memory = __builtin_alloca(jitload_request_bytes(kernel));
  jitload_request request = jitload_make_request(kernel, config, args, NULL, memory);
  request.host_result = &host_result;
  if (jitload_read_arguments(&request) != kernel->param_count) return jitload_raise_argument_error(kernel, args, kernel->argument_count);
  /* A host function has no grid: its launch expressions only compute parameters and check what it requires. */
  if (kernel->plan != NULL && jitload_evaluate_plan(&request) != 0) return -1;
  host_result.kind = -1; /* stays negative if the function is not reached */
  int has_stream = 0;
  for (int32_t i = 0; i < kernel->param_count; ++i) has_stream |= kernel->params[i].kind == JITLOAD_STREAM;
  /* Without tensors, a driver is only needed to find the current stream. */
  const int needs_device = request.device >= 0 || (has_stream && jitload_count_gpus() != 0);
  const int failed = needs_device ? jitload_launch_on_device(&request, jitload_call_on_device)
                                  : jitload_call_with_stream(&request, config->stream);
  if (host_result.kind < 0) return -1;
  if (!failed) return jitload_return(kernel, &host_result, result);
  const char* code = host_result.error;
  const int is_of_cuda = strncmp(code, "cuda", 4) == 0;
  return jitload_fail(is_of_cuda || *code == 0 ? "RuntimeError" : code, "%s(): %s%s%s", kernel->name,
                      is_of_cuda ? code : "", is_of_cuda ? ": " : "", host_result.message);
}
