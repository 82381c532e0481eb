/* What a call of a host function of plain types leaves for the runtime. */
#pragma once

/* The kinds of results. The first means that the function's types cannot be passed from Python. */
enum __jitload_result_kind {
  __JITLOAD_UNSUPPORTED,
  __JITLOAD_VOID,
  __JITLOAD_INT,
  __JITLOAD_UINT,
  __JITLOAD_FLOAT,
  __JITLOAD_BOOL,
  __JITLOAD_CUDA_ERROR, /* a cudaError_t, which is raised unless it is cudaSuccess */
  __JITLOAD_CONVERTED, /* the function takes or returns an object, which tvm-ffi converts */
};

struct __jitload_result {
  int kind;
  int failed; /* whether `message` is an error. Its kind or CUDA code is in `error`, which is "" for a RuntimeError */
  long long integer;
  double number;
  const void* probe;
  char error[64];
  char message[2048];
};
