/* What can be said of a fatbin before the driver has it: machine code and PTX for several architectures. */
#ifndef JITLOAD_LAUNCHER_FATBIN_H_
#define JITLOAD_LAUNCHER_FATBIN_H_

#include "launcher_driver.h"

namespace jitload {
inline namespace v1 {

enum : uint16_t { kFatbinPtx = 1, kFatbinCode = 2 };

struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size; /* of what follows */
};

struct FatbinEntry {
  uint16_t kind, version;
  uint32_t header_size;
  uint64_t size; /* of what follows */
  uint32_t packed_size, options;
  uint16_t minor, major;
  uint32_t arch, name_offset, name_size; /* 90; the name of its source */
  uint64_t flags;
};
enum : uint64_t { kAccelerated = 0x100000 }; /* sm_90a */

/* Sets an error; the numbers are what a damaged file can be told by. */
JITLOAD_LAUNCHER int RaiseFatbin(uint64_t end, size_t size) {
  const auto told = static_cast<unsigned long long>(end);
  return Raise("RuntimeError",
               "CubinModule: the fatbin is damaged or truncated: it speaks of %llu bytes, and it has %zu", told, size);
}

/* Give each image to `see`, which may set an error; of a fatbin of unknown size none is looked at. */
template <class See>
JITLOAD_LAUNCHER int ForEachImage(const Image* image, See see) {
  FatbinHeader header;
  if (image->size < sizeof header) return RaiseFatbin(sizeof header, image->size);
  memcpy(&header, image->data, sizeof header);
  if (header.header_size < sizeof header || header.size == 0)
    return Raise("RuntimeError", "CubinModule: the fatbin is damaged: it has no image");
  if (image->size == kUnknownSize) return 0;
  if (header.header_size > image->size || header.size > image->size - header.header_size)
    return RaiseFatbin(header.header_size + header.size, image->size);
  const uint64_t end = header.header_size + header.size;
  for (uint64_t at = header.header_size; at < end;) {
    FatbinEntry entry;
    if (end - at < sizeof entry) return RaiseFatbin(at + sizeof entry, end);
    memcpy(&entry, image->data + at, sizeof entry);
    if (entry.header_size < sizeof entry || entry.header_size > end - at || entry.size > end - at - entry.header_size)
      return RaiseFatbin(at + entry.header_size + entry.size, end);
    at += entry.header_size;
    if (see(&entry, Image{image->data + at, static_cast<size_t>(entry.size)}) != 0) return -1;
    at += entry.size;
  }
  return 0;
}

/* "sm_80, sm_90, compute_90", from malloc; NULL where that is not known. */
JITLOAD_LAUNCHER char* ListImages(const Image* image) {
  enum : size_t { kMost = 512 }; /* a dozen images and more */
  char* text = static_cast<char*>(calloc(1, kMost));
  size_t used = 0;
  if (text == nullptr) return nullptr;
  ForEachImage(image, [&](const FatbinEntry* entry, const Image&) {
    const char* kind = entry->kind == kFatbinCode ? "sm_" : entry->kind == kFatbinPtx ? "compute_" : nullptr;
    if (kind == nullptr || used + 32 > kMost) return 0;
    const int more = snprintf(text + used, kMost - used, "%s%s%u%s", used != 0 ? ", " : "", kind, entry->arch,
                              (entry->flags & kAccelerated) != 0 ? "a" : "");
    used += static_cast<size_t>(more);
    return 0;
  });
  if (used != 0) return text;
  free(text);
  return nullptr;
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_FATBIN_H_ */
