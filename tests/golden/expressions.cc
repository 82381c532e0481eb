// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/expression.h>
#include <jitload/launch.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

static const jitload_image images[] = {
    {90, 'a', __tvm_ffi__cubin_vec_sm_90a},
};

// ns::matmul<float, 4>(const float* a, float* b, int rows, int columns)
static const jitload_param params_matmul[] = {
    {"a", "const float*", 0, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"b", "float*", 1, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"rows", "int", -1, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
    {"columns", "int", -1, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_matmul[] = {
    "columns = a.size(1)",
    "rows = a.numel() // columns",
    "grid[0] = ceil_div(columns, 32)",
    "grid[1] = ceil_div(a.shape[0], 32) if rows > 0 else 0",
    "block[0] = 32",
    "block[1] = min(rows, 8)",
    "shared_bytes = 4 * rows * (columns + 1)",
};
static void plan_matmul(jitload_eval* e, jitload_plan* plan) {
  e->expression = 0;
  plan->values[3] = jitload_size(e, 0, 1);
  e->expression = 1;
  plan->values[2] = jitload_floordiv(e, jitload_numel(e, 0), plan->values[3]);
  if (plan->needs_grid) {
    e->expression = 2;
    plan->grid[0] = jitload_ceil_div(e, plan->values[3], 32);
    e->expression = 3;
    plan->grid[1] = (plan->values[2] > 0) ? jitload_ceil_div(e, jitload_size(e, 0, 0), 32) : 0;
  }
  if (plan->needs_block) {
    e->expression = 4;
    plan->block[0] = 32;
    e->expression = 5;
    plan->block[1] = jitload_min(plan->values[2], 8);
  }
  if (plan->needs_shared_bytes) {
    e->expression = 6;
    plan->shared_bytes = jitload_mul(e, jitload_mul(e, 4, plan->values[2]), jitload_add(e, plan->values[3], 1));
  }
}

// add(const float* x, float* y, int n)
static const jitload_param params_add[] = {
    {"x", "const float*", 0, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"y", "float*", 1, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"n", "int", -1, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_add[] = {
    "n = x.numel()",
    "grid = next_power_of_2(n)",
    "block = 256",
};
static void plan_add(jitload_eval* e, jitload_plan* plan) {
  e->expression = 0;
  plan->values[2] = jitload_numel(e, 0);
  if (plan->needs_grid) {
    e->expression = 1;
    plan->grid[0] = jitload_next_power_of_2(e, plan->values[2]);
  }
  if (plan->needs_block) {
    e->expression = 2;
    plan->block[0] = 256;
  }
}

static const jitload_kernel kernels[] = {
    {"matmul", "_Z20ns::matmul<float, 4>", &jitload_library, params_matmul,
     plan_matmul, expressions_matmul, 0, 4, 2,
     JITLOAD_HAS_GRID | JITLOAD_HAS_BLOCK | JITLOAD_COMPUTES, 0, 0, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}]}\"}", "", 0, 0, NULL},
    {"add", "_Z3add", &jitload_library, params_add,
     plan_add, expressions_add, 1, 3, 2,
     JITLOAD_HAS_GRID | JITLOAD_HAS_BLOCK | JITLOAD_COMPUTES, 0, 0, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}]}\"}", "", 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "vec", images, kernels, NULL,
    "{\"name\":\"vec\",\"archs\":[\"sm_90a\"],\"functions\":[{\"name\":\"matmul\",\"doc\":\"\",\"signature\":\"matmul(const float* a, float* b)\",\"arguments\":[{\"name\":\"a\",\"kind\":\"pointer\",\"type\":\"const float*\"},{\"name\":\"b\",\"kind\":\"pointer\",\"type\":\"float*\"}],\"kernel\":{\"name\":\"ns::matmul<float, 4>\",\"symbol\":\"_Z20ns::matmul<float, 4>\",\"parameters\":[{\"name\":\"a\",\"type\":\"const float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"b\",\"type\":\"float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":8,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"rows\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":16,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"columns\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":20,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"dynamic_shared\":\"4 * rows * (columns + 1)\"},{\"name\":\"add\",\"doc\":\"\",\"signature\":\"add(const float* x, float* y)\",\"arguments\":[{\"name\":\"x\",\"kind\":\"pointer\",\"type\":\"const float*\"},{\"name\":\"y\",\"kind\":\"pointer\",\"type\":\"float*\"}],\"kernel\":{\"name\":\"add\",\"symbol\":\"_Z3add\",\"parameters\":[{\"name\":\"x\",\"type\":\"const float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"y\",\"type\":\"float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":8,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"n\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":16,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null}}],\"variables\":[]}",
    &state, 1, 2, NULL};

JITLOAD_EXPORT(matmul, 0)
JITLOAD_EXPORT(add, 1)
