// vec: typed functions around its kernels, from sm_90a.cubin.
#include <jitload/launch.h>

TVM_FFI_EMBED_CUBIN(vec_sm_90a);
JITLOAD_EMBED(vec_sm_90a, "sm_90a.cubin");

static const jitload_image images[] = {
    {90, 'a', __tvm_ffi__cubin_vec_sm_90a},
};

// every(const float* f, __half* h, __nv_bfloat16* b, const __nv_fp8_e4m3* e, unsigned int* u, bool* flags, void* any, const float4* v, float2* c, Params* p, bool flag, char i8, short i16, int i32, long long i64, unsigned int u32, unsigned long long u64, float f32, double f64, __half f16, Params by_value, Empty nothing)
static const jitload_param params_every[] = {
    {"f", "const float*", 0, 8, 1, JITLOAD_POINTER, JITLOAD_NULLABLE | JITLOAD_STRIDED, JITLOAD_DL_FLOAT, 32, NULL},
    {"h", "__half*", 1, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT, 16, NULL},
    {"b", "__nv_bfloat16*", 2, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_BFLOAT, 16, NULL},
    {"e", "const __nv_fp8_e4m3*", 3, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_FLOAT8_E4M3FN, 8, NULL},
    {"u", "unsigned int*", 4, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_UINT, 32, NULL},
    {"flags", "bool*", 5, 8, 1, JITLOAD_POINTER, 0, JITLOAD_DL_BOOL, 8, NULL},
    {"any", "void*", 6, 8, 1, JITLOAD_POINTER, JITLOAD_RAW, 0, 0, NULL},
    {"v", "const float4*", 7, 8, 16, JITLOAD_POINTER, JITLOAD_STRIDED, JITLOAD_DL_FLOAT, 32, NULL},
    {"c", "float2*", 8, 8, 8, JITLOAD_POINTER, JITLOAD_COMPLEX, JITLOAD_DL_FLOAT, 32, NULL},
    {"p", "Params*", 9, 8, 1, JITLOAD_POINTER, JITLOAD_NULLABLE, 0, 0, NULL},
    {"flag", "bool", 10, 1, 1, JITLOAD_BOOL, 0, 0, 0, NULL},
    {"i8", "char", 11, 1, 1, JITLOAD_INT, 0, 0, 0, NULL},
    {"i16", "short", 12, 2, 1, JITLOAD_INT, 0, 0, 0, NULL},
    {"i32", "int", 13, 4, 1, JITLOAD_INT, 0, 0, 0, NULL},
    {"i64", "long long", 14, 8, 1, JITLOAD_INT, 0, 0, 0, NULL},
    {"u32", "unsigned int", 15, 4, 1, JITLOAD_UINT, 0, 0, 0, NULL},
    {"u64", "unsigned long long", 16, 8, 1, JITLOAD_UINT, 0, 0, 0, NULL},
    {"f32", "float", 17, 4, 1, JITLOAD_FLOAT, 0, JITLOAD_DL_FLOAT, 32, NULL},
    {"f64", "double", 18, 8, 1, JITLOAD_FLOAT, 0, JITLOAD_DL_FLOAT, 64, NULL},
    {"f16", "__half", 19, 2, 1, JITLOAD_FLOAT, 0, JITLOAD_DL_FLOAT, 16, NULL},
    {"by_value", "Params", 20, 12, 1, JITLOAD_STRUCT, 0, 0, 0, NULL},
    {"nothing", "Empty", 21, 1, 1, JITLOAD_STRUCT, 0, 0, 0, NULL},
};

static const jitload_kernel kernels[] = {
    {"every", "_Z5every", &jitload_library, params_every,
     NULL, NULL, 0, 22, 22,
     0, 0, 192, NULL, NULL, 0, 0,
     "{\"type_schema\": \"{\\\"type\\\": \\\"ffi.Function\\\", \\\"args\\\": [{\\\"type\\\": \\\"None\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"DLTensor*\\\"}, {\\\"type\\\": \\\"bool\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"int\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"float\\\"}, {\\\"type\\\": \\\"ffi.Bytes\\\"}, {\\\"type\\\": \\\"ffi.Bytes\\\"}]}\"}", "All of them.", 0, 0, NULL},
};

static jitload_state* state;
const jitload_module jitload_library = {
    "vec", images, kernels, NULL,
    "{\"name\":\"vec\",\"archs\":[\"sm_90a\"],\"functions\":[{\"name\":\"every\",\"doc\":\"All of them.\",\"signature\":\"every(const float* f, __half* h, __nv_bfloat16* b, const __nv_fp8_e4m3* e, unsigned int* u, bool* flags, void* any, const float4* v, float2* c, Params* p, bool flag, char i8, short i16, int i32, long long i64, unsigned int u32, unsigned long long u64, float f32, double f64, __half f16, Params by_value, Empty nothing)\",\"arguments\":[{\"name\":\"f\",\"kind\":\"pointer\",\"type\":\"const float*\",\"nullable\":true,\"strided\":true},{\"name\":\"h\",\"kind\":\"pointer\",\"type\":\"__half*\"},{\"name\":\"b\",\"kind\":\"pointer\",\"type\":\"__nv_bfloat16*\"},{\"name\":\"e\",\"kind\":\"pointer\",\"type\":\"const __nv_fp8_e4m3*\"},{\"name\":\"u\",\"kind\":\"pointer\",\"type\":\"unsigned int*\"},{\"name\":\"flags\",\"kind\":\"pointer\",\"type\":\"bool*\"},{\"name\":\"any\",\"kind\":\"pointer\",\"type\":\"void*\",\"raw\":true},{\"name\":\"v\",\"kind\":\"pointer\",\"type\":\"const float4*\",\"strided\":true},{\"name\":\"c\",\"kind\":\"pointer\",\"type\":\"float2*\"},{\"name\":\"p\",\"kind\":\"pointer\",\"type\":\"Params*\",\"nullable\":true},{\"name\":\"flag\",\"kind\":\"bool\",\"type\":\"bool\"},{\"name\":\"i8\",\"kind\":\"int\",\"type\":\"char\"},{\"name\":\"i16\",\"kind\":\"int\",\"type\":\"short\"},{\"name\":\"i32\",\"kind\":\"int\",\"type\":\"int\"},{\"name\":\"i64\",\"kind\":\"int\",\"type\":\"long long\"},{\"name\":\"u32\",\"kind\":\"uint\",\"type\":\"unsigned int\"},{\"name\":\"u64\",\"kind\":\"uint\",\"type\":\"unsigned long long\"},{\"name\":\"f32\",\"kind\":\"float\",\"type\":\"float\"},{\"name\":\"f64\",\"kind\":\"float\",\"type\":\"double\"},{\"name\":\"f16\",\"kind\":\"float\",\"type\":\"__half\"},{\"name\":\"by_value\",\"kind\":\"struct\",\"type\":\"Params\"},{\"name\":\"nothing\",\"kind\":\"struct\",\"type\":\"Empty\"}],\"kernel\":{\"name\":\"every\",\"symbol\":\"_Z5every\",\"parameters\":[{\"name\":\"f\",\"type\":\"const float*\",\"kind\":\"pointer\",\"size\":8,\"offset\":0,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"h\",\"type\":\"__half*\",\"kind\":\"pointer\",\"size\":8,\"offset\":8,\"dtype\":\"float16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"b\",\"type\":\"__nv_bfloat16*\",\"kind\":\"pointer\",\"size\":8,\"offset\":16,\"dtype\":\"bfloat16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"e\",\"type\":\"const __nv_fp8_e4m3*\",\"kind\":\"pointer\",\"size\":8,\"offset\":24,\"dtype\":\"float8_e4m3fn\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"u\",\"type\":\"unsigned int*\",\"kind\":\"pointer\",\"size\":8,\"offset\":32,\"dtype\":\"uint32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"flags\",\"type\":\"bool*\",\"kind\":\"pointer\",\"size\":8,\"offset\":40,\"dtype\":\"bool\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"any\",\"type\":\"void*\",\"kind\":\"pointer\",\"size\":8,\"offset\":48,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"v\",\"type\":\"const float4*\",\"kind\":\"pointer\",\"size\":8,\"offset\":56,\"dtype\":\"float32\",\"alignment\":16,\"layout\":\"\"},{\"name\":\"c\",\"type\":\"float2*\",\"kind\":\"pointer\",\"size\":8,\"offset\":64,\"dtype\":\"float32\",\"alignment\":8,\"layout\":\"\"},{\"name\":\"p\",\"type\":\"Params*\",\"kind\":\"pointer\",\"size\":8,\"offset\":72,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"flag\",\"type\":\"bool\",\"kind\":\"bool\",\"size\":1,\"offset\":80,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"i8\",\"type\":\"char\",\"kind\":\"int\",\"size\":1,\"offset\":81,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"i16\",\"type\":\"short\",\"kind\":\"int\",\"size\":2,\"offset\":82,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"i32\",\"type\":\"int\",\"kind\":\"int\",\"size\":4,\"offset\":84,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"i64\",\"type\":\"long long\",\"kind\":\"int\",\"size\":8,\"offset\":88,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"u32\",\"type\":\"unsigned int\",\"kind\":\"uint\",\"size\":4,\"offset\":96,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"u64\",\"type\":\"unsigned long long\",\"kind\":\"uint\",\"size\":8,\"offset\":104,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"f32\",\"type\":\"float\",\"kind\":\"float\",\"size\":4,\"offset\":112,\"dtype\":\"float32\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"f64\",\"type\":\"double\",\"kind\":\"float\",\"size\":8,\"offset\":120,\"dtype\":\"float64\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"f16\",\"type\":\"__half\",\"kind\":\"float\",\"size\":2,\"offset\":128,\"dtype\":\"float16\",\"alignment\":1,\"layout\":\"\"},{\"name\":\"by_value\",\"type\":\"Params\",\"kind\":\"struct\",\"size\":12,\"offset\":132,\"dtype\":null,\"alignment\":1,\"layout\":\"\"},{\"name\":\"nothing\",\"type\":\"Empty\",\"kind\":\"struct\",\"size\":1,\"offset\":144,\"dtype\":null,\"alignment\":1,\"layout\":\"\"}],\"registers\":16,\"shared_bytes\":0,\"local_bytes\":0,\"max_threads\":1024,\"spill_bytes\":null},\"needs\":[\"grid\",\"block\"]}],\"variables\":[]}",
    &state, 1, 1, NULL};

JITLOAD_EXPORT(every, 0)
