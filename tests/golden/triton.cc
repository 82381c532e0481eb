// ops: typed functions around Triton kernels.
#include <jitload/expression.h>
#include <jitload/triton.h>

TVM_FFI_EMBED_CUBIN(kernel0_sm_90a);
JITLOAD_EMBED(kernel0_sm_90a, "kernel0_sm_90a.cubin");

extern const jitload_kernel kernels[1];

// softmax_kernel(*bf16 out, *bf16 x, None mask, i32 n)
static const jitload_param params_softmax[] = {
    {"out", "*bf16", 0, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_BFLOAT, 16, NULL},
    {"x", "*bf16", 1, 8, 1, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_BFLOAT, 16, NULL},
    {"mask", "None", 2, 8, 1, JITLOAD_POINTER, JITLOAD_NULLABLE | JITLOAD_STRIDED, 0, 0, NULL},
    {"n", "i32", 3, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_softmax[] = {
    "grid[0] = ceil_div(n, BLOCK)",
    "grid[1] = x.shape[0]",
    "block = 256",
    "shared_bytes = 65536",
};
static void plan_softmax(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_grid) {
    e->expression = 0;
    plan->grid[0] = jitload_ceil_div(e, jitload_int(e, 3), 1024);
    e->expression = 1;
    plan->grid[1] = jitload_size(e, 1, 0);
  }
  if (plan->needs_block) {
    e->expression = 2;
    plan->block[0] = 256;
  }
  if (plan->needs_shared_bytes) {
    e->expression = 3;
    plan->shared_bytes = 65536;
  }
}
static const jitload_assumption assumptions_softmax[] = {
    {0, JITLOAD_MULTIPLE_OF, 16},
    {1, JITLOAD_MULTIPLE_OF, 16},
    {2, JITLOAD_NULL, 0},
};
static const jitload_binding bindings_softmax[] = {
    {0, JITLOAD_VALUE, 0, 0},
    {1, JITLOAD_VALUE, 0, 0},
    {3, JITLOAD_VALUE, 0, 0},
};
static const jitload_triton triton_softmax = {
    jitload_run_triton, assumptions_softmax, bindings_softmax, NULL, NULL,
    3, 3, 0, 0,
    {1, 1, 1}, 2, 0, 1};

static const jitload_image images_softmax[] = {
    {90, 'a', __tvm_ffi__cubin_kernel0_sm_90a},
};
static jitload_state* state_softmax;
static const jitload_module module_softmax = {
    "softmax", images_softmax, &kernels[0], NULL, "", &state_softmax, 1, 1, NULL};

const jitload_kernel kernels[1] = {
    {"softmax", "softmax_kernel", &module_softmax, params_softmax,
     plan_softmax, expressions_softmax, 0, 4, 4,
     JITLOAD_HAS_GRID | JITLOAD_HAS_BLOCK | JITLOAD_IS_PDL, 0, 0, &triton_softmax, NULL, 0, 0,
"{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "The kernel softmax.", 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "ops", NULL, kernels, NULL,
    "{\"name\":\"ops\",\"archs\":[\"sm_90a\"],\"functions\":[{\"name\":\"softmax\",\"doc\":\"The kernel softmax.\",\"signature\":\"softmax(*bf16 out, *bf16 x, None mask, i32 n)\",\"arguments\":[{\"name\":\"out\",\"kind\":\"pointer\",\"type\":\"*bf16\",\"strided\":true},{\"name\":\"x\",\"kind\":\"pointer\",\"type\":\"*bf16\",\"strided\":true},{\"name\":\"mask\",\"kind\":\"pointer\",\"type\":\"None\",\"nullable\":true,\"strided\":true},{\"name\":\"n\",\"kind\":\"int\",\"type\":\"i32\"}],\"kernel\":{\"name\":\"softmax_kernel\",\"symbol\":\"softmax_kernel\",\"parameters\":[{\"name\":\"out\",\"type\":\"*bf16\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"bfloat16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"x\",\"type\":\"*bf16\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"bfloat16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"n\",\"type\":\"i32\",\"kind\":\"int\",\"size\":4,\"offset\":0,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":0,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"dynamic_shared\":\"65536\",\"triton\":{\"num_warps\":8,\"num_ctas\":1,\"shared_bytes\":65536,\"constexprs\":{\"BLOCK\":1024,\"CAUSAL\":false,\"SCALE\":0.5,\"MODE\":\"mean\"},\"tuples\":{},\"version\":\"3.6.0\",\"variants\":[\"softmax\"]}}],\"variables\":[]}",
    &state, 0, 1, NULL};

JITLOAD_EXPORT(softmax, 0)
