// ops: typed functions around Triton kernels.
#include <jitload/expression.h>
#include <jitload/triton.h>

TVM_FFI_EMBED_CUBIN(kernel0_sm_80);
JITLOAD_EMBED(kernel0_sm_80, "kernel0_sm_80.cubin");
TVM_FFI_EMBED_CUBIN(kernel0_sm_90a);
JITLOAD_EMBED(kernel0_sm_90a, "kernel0_sm_90a.cubin");
TVM_FFI_EMBED_CUBIN(kernel1_sm_90a);
JITLOAD_EMBED(kernel1_sm_90a, "kernel1_sm_90a.cubin");

extern const jitload_kernel kernels[5];

// matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
static const jitload_param params_matmul__one[] = {
    {"a", "tensordesc<fp16[128, 64]>", 0, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED | JITLOAD_DESCRIBED, JITLOAD_DL_FLOAT, 16, NULL},
    {"c", "*fp32", 1, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_FLOAT, 32, NULL},
    {"alpha", "fp16", 2, 2, 1, JITLOAD_FLOAT, JITLOAD_FINITE, JITLOAD_DL_FLOAT, 16, NULL},
    {"k", "i32", 3, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_matmul__one[] = {
    "block = 384",
    "cluster[0] = 2",
    "cluster[1] = 1",
    "cluster[2] = 1",
};
static void plan_matmul__one(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_block) {
    e->expression = 0;
    plan->block[0] = 384;
  }
  e->expression = 1;
  plan->cluster[0] = 2;
  e->expression = 2;
  plan->cluster[1] = 1;
  e->expression = 3;
  plan->cluster[2] = 1;
}
static const jitload_assumption assumptions_matmul__one[] = {
    {3, JITLOAD_EQUAL_TO, 1},
};
static const jitload_descriptor_spec descriptors_matmul__one[] = {
    {0, 2, 6, 2, 2, 0, {128, 64}, {128, 32}},
};
static const jitload_binding bindings_matmul__one[] = {
    {0, JITLOAD_MAP, 0, 0},
    {0, JITLOAD_SHAPE, 0, 0},
    {0, JITLOAD_SHAPE, 1, 0},
    {0, JITLOAD_STRIDE, 0, 0},
    {0, JITLOAD_STRIDE, 1, 0},
    {1, JITLOAD_VALUE, 0, 0},
    {2, JITLOAD_VALUE, 0, 0},
};
static const jitload_triton triton_matmul__one = {
    jitload_run_triton, assumptions_matmul__one, bindings_matmul__one, descriptors_matmul__one, NULL,
    1, 7, 1, 0,
    {2, 1, 1}, 2, 768, 128};

// matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
static const jitload_param params_matmul__fast_sm_90a[] = {
    {"a", "tensordesc<fp16[128, 64]>", 0, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED | JITLOAD_DESCRIBED, JITLOAD_DL_FLOAT, 16, NULL},
    {"c", "*fp32", 1, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_FLOAT, 32, NULL},
    {"alpha", "fp16", 2, 2, 1, JITLOAD_FLOAT, JITLOAD_FINITE, JITLOAD_DL_FLOAT, 16, NULL},
    {"k", "i32", 3, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_matmul__fast_sm_90a[] = {
    "block = 384",
    "cluster[0] = 2",
    "cluster[1] = 1",
    "cluster[2] = 1",
};
static void plan_matmul__fast_sm_90a(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_block) {
    e->expression = 0;
    plan->block[0] = 384;
  }
  e->expression = 1;
  plan->cluster[0] = 2;
  e->expression = 2;
  plan->cluster[1] = 1;
  e->expression = 3;
  plan->cluster[2] = 1;
}
static const jitload_assumption assumptions_matmul__fast_sm_90a[] = {
    {1, JITLOAD_MULTIPLE_OF, 16},
    {3, JITLOAD_MULTIPLE_OF, 16},
};
static const jitload_descriptor_spec descriptors_matmul__fast_sm_90a[] = {
    {0, 2, 6, 2, 2, 0, {128, 64}, {128, 32}},
};
static const jitload_binding bindings_matmul__fast_sm_90a[] = {
    {0, JITLOAD_MAP, 0, 0},
    {0, JITLOAD_SHAPE, 0, 0},
    {0, JITLOAD_SHAPE, 1, 0},
    {0, JITLOAD_STRIDE, 0, 0},
    {0, JITLOAD_STRIDE, 1, 0},
    {1, JITLOAD_VALUE, 0, 0},
    {2, JITLOAD_VALUE, 0, 0},
    {3, JITLOAD_VALUE, 0, 0},
};
static const jitload_triton triton_matmul__fast_sm_90a = {
    jitload_run_triton, assumptions_matmul__fast_sm_90a, bindings_matmul__fast_sm_90a, descriptors_matmul__fast_sm_90a, NULL,
    2, 8, 1, 0,
    {2, 1, 1}, 2, 768, 128};

// matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)
static const jitload_param params_matmul__fast_sm_80[] = {
    {"a", "tensordesc<fp16[128, 64]>", 0, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED | JITLOAD_DESCRIBED, JITLOAD_DL_FLOAT, 16, NULL},
    {"c", "*fp32", 1, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_FLOAT, 32, NULL},
    {"alpha", "fp16", 2, 2, 1, JITLOAD_FLOAT, JITLOAD_FINITE, JITLOAD_DL_FLOAT, 16, NULL},
    {"k", "i32", 3, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_matmul__fast_sm_80[] = {
    "block = 128",
};
static void plan_matmul__fast_sm_80(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_block) {
    e->expression = 0;
    plan->block[0] = 128;
  }
}
static const jitload_assumption assumptions_matmul__fast_sm_80[] = {
    {1, JITLOAD_MULTIPLE_OF, 16},
    {3, JITLOAD_MULTIPLE_OF, 16},
};
static const jitload_descriptor_spec descriptors_matmul__fast_sm_80[] = {
    {0, 2, -1, 2, 2, 0, {128, 64}, {128, 64}},
};
static const jitload_binding bindings_matmul__fast_sm_80[] = {
    {0, JITLOAD_VALUE, 0, 0},
    {0, JITLOAD_SHAPE, 0, 0},
    {0, JITLOAD_SHAPE, 1, 0},
    {0, JITLOAD_STRIDE, 0, 0},
    {0, JITLOAD_STRIDE, 1, 0},
    {0, JITLOAD_PADDING, 0, 0},
    {0, JITLOAD_SHAPE, 0, 0},
    {0, JITLOAD_SHAPE, 1, 0},
    {0, JITLOAD_STRIDE, 0, 0},
    {0, JITLOAD_STRIDE, 1, 0},
    {1, JITLOAD_VALUE, 0, 0},
    {2, JITLOAD_VALUE, 0, 0},
    {3, JITLOAD_VALUE, 0, 0},
};
static const jitload_triton triton_matmul__fast_sm_80 = {
    jitload_run_triton, assumptions_matmul__fast_sm_80, bindings_matmul__fast_sm_80, descriptors_matmul__fast_sm_80, NULL,
    2, 13, 1, 0,
    {1, 1, 1}, 2, 0, 1};

// matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k): the first of 3 variants that fits.
static const jitload_kernel* const variants_matmul[] = {
    &kernels[3],
    &kernels[4],
    &kernels[2],
};
static const jitload_triton triton_matmul = {
    jitload_run_triton, NULL, NULL, descriptors_matmul__fast_sm_90a, variants_matmul,
    0, 0, 1, 3,
    {1, 1, 1}, 0, 0, 1};

// matmul_kernel(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k): the first of 2 variants that fits.
static const jitload_kernel* const variants_matmul__fast[] = {
    &kernels[3],
    &kernels[4],
};
static const jitload_triton triton_matmul__fast = {
    jitload_run_triton, NULL, NULL, descriptors_matmul__fast_sm_90a, variants_matmul__fast,
    0, 0, 1, 2,
    {1, 1, 1}, 0, 0, 1};

static const jitload_image images_matmul[] = {
    {80, 0, __tvm_ffi__cubin_kernel0_sm_80},
    {90, 'a', __tvm_ffi__cubin_kernel1_sm_90a},
};
static jitload_state* state_matmul;
static const jitload_module module_matmul = {
    "matmul", images_matmul, &kernels[0], NULL, "", &state_matmul, 2, 1, NULL};

static const jitload_image images_matmul__fast[] = {
    {80, 0, __tvm_ffi__cubin_kernel0_sm_80},
    {90, 'a', __tvm_ffi__cubin_kernel0_sm_90a},
};
static jitload_state* state_matmul__fast;
static const jitload_module module_matmul__fast = {
    "matmul__fast", images_matmul__fast, &kernels[1], NULL, "", &state_matmul__fast, 2, 1, NULL};

static const jitload_image images_matmul__one[] = {
    {90, 'a', __tvm_ffi__cubin_kernel1_sm_90a},
};
static jitload_state* state_matmul__one;
static const jitload_module module_matmul__one = {
    "matmul__one", images_matmul__one, &kernels[2], NULL, "", &state_matmul__one, 1, 1, NULL};

static const jitload_image images_matmul__fast_sm_90a[] = {
    {90, 'a', __tvm_ffi__cubin_kernel0_sm_90a},
};
static jitload_state* state_matmul__fast_sm_90a;
static const jitload_module module_matmul__fast_sm_90a = {
    "matmul__fast", images_matmul__fast_sm_90a, &kernels[3], NULL, "", &state_matmul__fast_sm_90a, 1, 1, NULL};

static const jitload_image images_matmul__fast_sm_80[] = {
    {80, 0, __tvm_ffi__cubin_kernel0_sm_80},
};
static jitload_state* state_matmul__fast_sm_80;
static const jitload_module module_matmul__fast_sm_80 = {
    "matmul__fast", images_matmul__fast_sm_80, &kernels[4], NULL, "", &state_matmul__fast_sm_80, 1, 1, NULL};

const jitload_kernel kernels[5] = {
    {"matmul", NULL, &module_matmul, params_matmul__fast_sm_90a,
     NULL, NULL, 0, 4, 4,
     0, 0, 0, &triton_matmul, NULL, 0, 0,
"{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "The kernel matmul.", 0, 0, NULL},
    {"matmul__fast", NULL, &module_matmul__fast, params_matmul__fast_sm_90a,
     NULL, NULL, 0, 4, 4,
     0, 0, 0, &triton_matmul__fast, NULL, 0, 0,
"{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "The kernel matmul.", 0, 0, NULL},
    {"matmul__one", "matmul_kernel", &module_matmul__one, params_matmul__one,
     plan_matmul__one, expressions_matmul__one, 0, 4, 4,
     JITLOAD_HAS_BLOCK | JITLOAD_HAS_CLUSTER | JITLOAD_SPREADS, 0, 0, &triton_matmul__one, NULL, 0, 0,
"{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "The kernel matmul.", 0, 0, NULL},
    {"matmul__fast", "matmul_kernel", &module_matmul__fast_sm_90a, params_matmul__fast_sm_90a,
     plan_matmul__fast_sm_90a, expressions_matmul__fast_sm_90a, 0, 4, 4,
     JITLOAD_HAS_BLOCK | JITLOAD_HAS_CLUSTER | JITLOAD_SPREADS, 0, 0, &triton_matmul__fast_sm_90a, NULL, 0, 0,
NULL, NULL, 0, 0, NULL},
    {"matmul__fast", "matmul_kernel", &module_matmul__fast_sm_80, params_matmul__fast_sm_80,
     plan_matmul__fast_sm_80, expressions_matmul__fast_sm_80, 0, 4, 4,
     JITLOAD_HAS_BLOCK, 0, 0, &triton_matmul__fast_sm_80, NULL, 0, 0,
NULL, NULL, 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "ops", NULL, kernels, NULL,
    "{\"name\":\"ops\",\"archs\":[\"sm_80\",\"sm_90a\"],\"functions\":[{\"name\":\"matmul\",\"doc\":\"The kernel matmul.\",\"signature\":\"matmul(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)\",\"arguments\":[{\"name\":\"a\",\"kind\":\"pointer\",\"type\":\"tensordesc<fp16[128, 64]>\",\"strided\":true},{\"name\":\"c\",\"kind\":\"pointer\",\"type\":\"*fp32\",\"strided\":true},{\"name\":\"alpha\",\"kind\":\"float\",\"type\":\"fp16\"},{\"name\":\"k\",\"kind\":\"int\",\"type\":\"i32\"}],\"kernel\":{\"name\":\"matmul_kernel\",\"symbol\":\"matmul_kernel\",\"parameters\":[{\"name\":\"a\",\"type\":\"nvTmaDesc\",\"kind\":\"struct\",\"size\":128,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape0\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape1\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride0\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride1\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"c\",\"type\":\"*fp32\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"alpha\",\"type\":\"fp16\",\"kind\":\"float\",\"size\":2,\"offset\":0,\"dtype\":\"float16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"k\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"needs\":[\"grid\"],\"builds\":{\"sm_90a\":{\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"sm_80\":{\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null}},\"triton\":{\"num_warps\":12,\"num_ctas\":2,\"shared_bytes\":0,\"constexprs\":{},\"tuples\":{},\"version\":\"3.6.0\",\"variants\":[\"matmul__fast\",\"matmul__one\"]}},{\"name\":\"matmul__fast\",\"doc\":\"The kernel matmul.\",\"signature\":\"matmul__fast(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)\",\"arguments\":[{\"name\":\"a\",\"kind\":\"pointer\",\"type\":\"tensordesc<fp16[128, 64]>\",\"strided\":true},{\"name\":\"c\",\"kind\":\"pointer\",\"type\":\"*fp32\",\"strided\":true},{\"name\":\"alpha\",\"kind\":\"float\",\"type\":\"fp16\"},{\"name\":\"k\",\"kind\":\"int\",\"type\":\"i32\"}],\"kernel\":{\"name\":\"matmul_kernel\",\"symbol\":\"matmul_kernel\",\"parameters\":[{\"name\":\"a\",\"type\":\"nvTmaDesc\",\"kind\":\"struct\",\"size\":128,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape0\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape1\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride0\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride1\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"c\",\"type\":\"*fp32\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"alpha\",\"type\":\"fp16\",\"kind\":\"float\",\"size\":2,\"offset\":0,\"dtype\":\"float16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"k\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"needs\":[\"grid\"],\"builds\":{\"sm_90a\":{\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"sm_80\":{\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null}},\"triton\":{\"num_warps\":12,\"num_ctas\":2,\"shared_bytes\":0,\"constexprs\":{},\"tuples\":{},\"version\":\"3.6.0\",\"variants\":[\"matmul__fast\"]}},{\"name\":\"matmul__one\",\"doc\":\"The kernel matmul.\",\"signature\":\"matmul__one(tensordesc<fp16[128, 64]> a, *fp32 c, fp16 alpha, i32 k)\",\"arguments\":[{\"name\":\"a\",\"kind\":\"pointer\",\"type\":\"tensordesc<fp16[128, 64]>\",\"strided\":true},{\"name\":\"c\",\"kind\":\"pointer\",\"type\":\"*fp32\",\"strided\":true},{\"name\":\"alpha\",\"kind\":\"float\",\"type\":\"fp16\"},{\"name\":\"k\",\"kind\":\"int\",\"type\":\"i32\"}],\"kernel\":{\"name\":\"matmul_kernel\",\"symbol\":\"matmul_kernel\",\"parameters\":[{\"name\":\"a\",\"type\":\"nvTmaDesc\",\"kind\":\"struct\",\"size\":128,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape0\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.shape1\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride0\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"a.stride1\",\"type\":\"i64\",\"kind\":\"int\",\"size\":8,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"c\",\"type\":\"*fp32\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"alpha\",\"type\":\"fp16\",\"kind\":\"float\",\"size\":2,\"offset\":0,\"dtype\":\"float16\",\"alignment\":1,\"layout\":\"\"}],\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"needs\":[\"grid\"],\"triton\":{\"num_warps\":12,\"num_ctas\":2,\"shared_bytes\":0,\"constexprs\":{},\"tuples\":{},\"version\":\"3.6.0\",\"variants\":[\"matmul__one\"]}}],\"variables\":[]}",
    &state, 0, 5, NULL};

JITLOAD_EXPORT(matmul, 0)
JITLOAD_EXPORT(matmul__fast, 1)
JITLOAD_EXPORT(matmul__one, 2)
