// vec: typed functions around its kernels, from sm_80.cubin, sm_90a.cubin, sm_100f.cubin.
#include <jitload/expression.h>
#include <jitload/launch.h>

TVM_FFI_EMBED_CUBIN(vec_sm_80);
JITLOAD_EMBED(vec_sm_80, "sm_80.cubin");
TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");
TVM_FFI_EMBED_CUBIN(vec_sm_100f);
JITLOAD_EMBED(vec_sm_100f, "sm_100f.cubin");

static const jitload_image images[] = {
    {80, 0, __tvm_ffi__cubin_vec_sm_80},
    {90, 'a', __tvm_ffi__cubin_vec_sm_90a},
    {100, 'f', __tvm_ffi__cubin_vec_sm_100f},
};

static const jitload_variable variables[] = {
    {"ns::coeffs", "_ZN2ns6coeffsE", NULL},
    {"n", "n", NULL},
};

// add(const float* x, float* y, int n)
static const jitload_param params_add[] = {
    {"x", "const float*", 0, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"y", "float*", 1, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"n", "int", 2, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};
static const char* const expressions_add[] = {
    "grid = 4",
    "block = 64",
    "cluster[0] = 2",
    "cluster[1] = 1",
};
static void plan_add(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_grid) {
    e->expression = 0;
    plan->grid[0] = 4;
  }
  if (plan->needs_block) {
    e->expression = 1;
    plan->block[0] = 64;
  }
  e->expression = 2;
  plan->cluster[0] = 2;
  e->expression = 3;
  plan->cluster[1] = 1;
}

// none()
static const char* const expressions_none[] = {
    "grid = 1",
    "block = 1",
    "shared_bytes = 1024",
};
static void plan_none(jitload_eval* e, jitload_plan* plan) {
  if (plan->needs_grid) {
    e->expression = 0;
    plan->grid[0] = 1;
  }
  if (plan->needs_block) {
    e->expression = 1;
    plan->block[0] = 1;
  }
  if (plan->needs_shared_bytes) {
    e->expression = 2;
    plan->shared_bytes = 1024;
  }
}

static const jitload_kernel kernels[] = {
    {"add", "_Z3add", &jitload_library, params_add,
     plan_add, expressions_add, 0, 3, 3,
     JITLOAD_HAS_GRID | JITLOAD_HAS_BLOCK | JITLOAD_HAS_CLUSTER | JITLOAD_IS_COOPERATIVE | JITLOAD_IS_PDL | JITLOAD_HAS_PRIORITY, -2, 0, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "", 0, 0, NULL},
    {"none", "_Z4none", &jitload_library, NULL,
     plan_none, expressions_none, 1, 0, 0,
     JITLOAD_HAS_GRID | JITLOAD_HAS_BLOCK, 0, 0, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}]}\"}", "", 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "vec", images, kernels, variables,
    "{\"name\":\"vec\",\"archs\":[\"sm_80\",\"sm_90a\",\"sm_100f\"],\"functions\":[{\"name\":\"add\",\"doc\":\"\",\"signature\":\"add(const float* x, float* y, int n)\",\"arguments\":[{\"name\":\"x\",\"kind\":\"pointer\",\"type\":\"const float*\"},{\"name\":\"y\",\"kind\":\"pointer\",\"type\":\"float*\"},{\"name\":\"n\",\"kind\":\"int\",\"type\":\"int\"}],\"kernel\":{\"name\":\"add\",\"symbol\":\"_Z3add\",\"parameters\":[{\"name\":\"x\",\"type\":\"const float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"y\",\"type\":\"float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":8,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"n\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":16,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null}},{\"name\":\"none\",\"doc\":\"\",\"signature\":\"none()\",\"arguments\":[],\"kernel\":{\"name\":\"none\",\"symbol\":\"_Z4none\",\"parameters\":[],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"dynamic_shared\":\"1024\"}],\"variables\":[{\"name\":\"ns::coeffs\",\"symbol\":\"_ZN2ns6coeffsE\",\"size\":64,\"dtype\":null},{\"name\":\"n\",\"symbol\":\"n\",\"size\":4,\"dtype\":null}]}",
    &state, 3, 2, NULL};

JITLOAD_EXPORT(add, 0)
JITLOAD_EXPORT(none, 1)
