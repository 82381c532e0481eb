/* A call of a host function, after the checks that all calls share. */
#include <jitload/host_result.h>

#include "call_steps.h"

static void jitload_set_streams(const jitload_request* request, jitload_cu_stream stream) {
  for (int32_t i = 0; i < request->kernel->param_count; ++i) {
    if (request->kernel->params[i].kind == JITLOAD_STREAM) *(jitload_cu_stream*)request->params[i] = stream;
  }
}

static int jitload_call_host_on_device(const jitload_driver*, const jitload_request* request,
                                       jitload_cu_device device) {
  jitload_set_streams(request, jitload_select_stream(request, device));
  return request->kernel->host(request->params, request->host_result);
}

/* Call a function without tensors on a GPU. A driver is only needed to find the current stream. */
static int jitload_call_host_anywhere(const jitload_request* request) {
  int has_stream = 0;
  for (int32_t i = 0; i < request->kernel->param_count; ++i) {
    has_stream |= request->kernel->params[i].kind == JITLOAD_STREAM;
  }
  if (has_stream && jitload_get_driver(request->kernel->name) != NULL) {
    return jitload_launch_on_device(request, jitload_call_host_on_device);
  }
  TVMFFIObjectHandle error = NULL;
  if (has_stream) TVMFFIErrorMoveFromRaised(&error);
  if (error != NULL) TVMFFIObjectDecRef(error);
  jitload_set_streams(request, request->config->stream);
  return request->kernel->host(request->params, request->host_result);
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
  int failed;
  if (request.device >= 0) {
    failed = jitload_launch_on_device(&request, jitload_call_host_on_device);
  } else {
    failed = jitload_call_host_anywhere(&request);
  }
  if (host_result.kind < 0) return -1;
  if (!failed) return jitload_return(kernel, &host_result, result);
  const char* code = host_result.error;
  const int is_of_cuda = strncmp(code, "cuda", 4) == 0;
  return jitload_fail(is_of_cuda || *code == 0 ? "RuntimeError" : code, "%s(): %s%s%s", kernel->name,
                      is_of_cuda ? code : "", is_of_cuda ? ": " : "", host_result.message);
}
