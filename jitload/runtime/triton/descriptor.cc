/* Tensor descriptors: reading them, and encoding their tensor maps. */
#include "descriptor.h"

int jitload_read_tensor_descriptor(const TVMFFIAny* value, jitload_tensor_descriptor* out) {
  enum { kBase, kPadsNan, kRounds, kSizes };
  const jitload_sequence* sequence = jitload_get_sequence(value);
  if (sequence == NULL || sequence->size <= kSizes) return 0;
  const DLTensor* base = jitload_get_tensor(&sequence->items[kBase]);
  const int64_t rank = (sequence->size - kSizes) / 3;
  if (base == NULL || rank > JITLOAD_MAX_RANK || sequence->size != kSizes + 3 * rank) return 0;
  for (int64_t i = kPadsNan; i < sequence->size; ++i) {
    const int32_t type = sequence->items[i].type_index;
    if (type != kTVMFFIInt && type != kTVMFFIBool) return 0;
  }
  for (int64_t i = 0; i < rank; ++i) {
    const TVMFFIAny* sizes = &sequence->items[kSizes + i];
    out->layout.shape[i] = sizes[0].v_int64;
    out->layout.strides[i] = sizes[rank].v_int64;
    out->block[i] = sizes[2 * rank].v_int64;
  }
  out->pads_nan = sequence->items[kPadsNan].v_int64 != 0;
  out->rounds = sequence->items[kRounds].v_int64 != 0;
  out->block_rank = (int32_t)rank;
  out->tensor = *base;
  out->tensor.ndim = (int32_t)rank;
  out->tensor.shape = out->layout.shape;
  out->tensor.strides = out->layout.strides;
  return 1;
}

/* ---- tensor maps ----------------------------------------------------------------------------------------------- */

enum { JITLOAD_TMA_FILL_NAN = 1, JITLOAD_TMA_TF32 = 11 };

int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor) {
  if (descriptor->block_rank == 0) return 1;
  if (descriptor->block_rank != spec->map->rank) return 0;
  for (int32_t i = 0; i < spec->map->rank; ++i) {
    if (descriptor->block[i] != (int64_t)spec->block[i]) return 0;
  }
  return 1;
}

int jitload_make_descriptor(const jitload_kernel* kernel, const jitload_descriptor_spec* spec, const TVMFFIAny* value,
                            jitload_tensor_descriptor* descriptor) {
  if (jitload_read_layout(kernel, spec->map, value, &descriptor->layout) != 0) return -1;
  jitload_tensor_map map = *spec->map;
  if (descriptor->rounds && map.type >= 0) map.type = JITLOAD_TMA_TF32;
  if (descriptor->pads_nan) map.fill = JITLOAD_TMA_FILL_NAN;
  return jitload_encode_tensor_map(kernel, &map, &descriptor->layout, descriptor->map);
}
