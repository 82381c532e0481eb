// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/launch.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

static const jitload_image images[] = {
    {90, 'a', __tvm_ffi__cubin_vec_sm_90a},
};

// add(const float* x, float* y, int n)
static const jitload_param params_add[] = {
    {"x", "const float*", 0, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"y", "float*", 1, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"n", "int", 2, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
};

static const jitload_kernel kernels[] = {
    {"add", "_Z3add", &jitload_library, params_add,
     NULL, NULL, 0, 3, 3,
     0, 0, 0, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"int\\\"}]}\"}", "", 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "vec", images, kernels, NULL,
    "{\"name\":\"vec\",\"archs\":[\"sm_90a\"],\"functions\":[{\"name\":\"add\",\"doc\":\"\",\"signature\":\"add(const float* x, float* y, int n)\",\"arguments\":[{\"name\":\"x\",\"kind\":\"pointer\",\"type\":\"const float*\"},{\"name\":\"y\",\"kind\":\"pointer\",\"type\":\"float*\"},{\"name\":\"n\",\"kind\":\"int\",\"type\":\"int\"}],\"kernel\":{\"name\":\"add\",\"symbol\":\"_Z3add\",\"parameters\":[{\"name\":\"x\",\"type\":\"const float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"y\",\"type\":\"float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":8,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"n\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":16,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"needs\":[\"grid\",\"block\"]}],\"variables\":[]}",
    &state, 1, 1, NULL};

JITLOAD_EXPORT(add, 0)
