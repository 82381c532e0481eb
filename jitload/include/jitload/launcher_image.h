/* Checks of cubins and fatbins before the driver loads them: cuLibraryLoadData accepts garbage, and fails later. */
#pragma once

#include <elf.h>

#include "launcher_driver.h"

namespace jitload {
inline namespace v1 {

/* What a fatbin begins with: machine code and PTX for several architectures. */
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size; /* bytes after the header */
};

enum { kCudaMachine = 190 };

/* A text of unknown size ends with a null byte. */
JITLOAD_LAUNCHER bool BeginsWith(const Image* image, const char* text) {
  for (size_t i = 0; text[i] != 0; ++i) {
    if (i >= image->size || static_cast<char>(image->data[i]) != text[i]) return false;
  }
  return true;
}

JITLOAD_LAUNCHER bool IsPtx(const Image* image) {
  return BeginsWith(image, "//") || BeginsWith(image, "\n//") || BeginsWith(image, ".version") ||
         BeginsWith(image, "\n.version");
}

JITLOAD_LAUNCHER bool IsFatbin(const Image* image) { return BeginsWith(image, "\x50\xed\x55\xba"); }

JITLOAD_LAUNCHER size_t SaturatingSum(uint64_t offset, uint64_t size) {
  const uint64_t limit = uint64_t{1} << 48; /* the sum of two smaller numbers cannot overflow */
  return offset > limit ? offset : size > limit ? size : offset + size;
}

/* Return the size of a cubin, which ends with its tables of sections and segments. The header may be wrong. */
JITLOAD_LAUNCHER size_t ComputeImageEnd(const Elf64_Ehdr* header) {
  const size_t segments = SaturatingSum(header->e_phoff, uint64_t{header->e_phnum} * header->e_phentsize);
  const size_t sections = SaturatingSum(header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr));
  return segments > sections ? segments : sections;
}

#define JITLOAD_RAISE_BAD_IMAGE_(...) Raise("RuntimeError", "CubinModule: " __VA_ARGS__)

JITLOAD_LAUNCHER int CheckElf(const Image* image, Elf64_Ehdr* header) {
  const unsigned char* data = image->data;
  if (!BeginsWith(image, ELFMAG)) {
    if (image->size < SELFMAG) {
      return JITLOAD_RAISE_BAD_IMAGE_("the bytes are not a cubin: there are only %zu of them", image->size);
    }
    return JITLOAD_RAISE_BAD_IMAGE_("the bytes are not a cubin: they begin with %02x %02x %02x %02x and not with an "
                                    "ELF header",
                                    data[0], data[1], data[2], data[3]);
  }
  if (image->size < sizeof *header) {
    return JITLOAD_RAISE_BAD_IMAGE_("the cubin is truncated: it has %zu bytes", image->size);
  }
  memcpy(header, data, sizeof *header);
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != kCudaMachine) {
    return JITLOAD_RAISE_BAD_IMAGE_(
        "the bytes are not a cubin: they are a %d-bit ELF file for machine %d, and CUDA is 64-bit, "
        "machine %d",
        header->e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32, header->e_machine, kCudaMachine);
  }
  if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum == 0) {
    return JITLOAD_RAISE_BAD_IMAGE_("the cubin has no sections");
  }
  const size_t end = image->size == kUnknownSize ? 0 : ComputeImageEnd(header);
  if (end <= image->size) return 0;
  return JITLOAD_RAISE_BAD_IMAGE_("the cubin is truncated: its headers describe %zu bytes, but it has %zu", end,
                                  image->size);
}

JITLOAD_LAUNCHER int CheckFatbin(const Image* image) {
  FatbinHeader header = {};
  if (image->size >= sizeof header) memcpy(&header, image->data, sizeof header);
  const size_t end = header.size == 0 ? sizeof header : SaturatingSum(header.header_size, header.size);
  if (header.size != 0 && end <= image->size) return 0;
  return JITLOAD_RAISE_BAD_IMAGE_("the fatbin is damaged or truncated: it should have %zu bytes, but it has %zu", end,
                                  image->size);
}

/* Set an error unless the bytes look like a cubin or a fatbin. `*header` becomes that of a cubin. */
JITLOAD_LAUNCHER int CheckImage(const Image* image, Elf64_Ehdr* header) {
  if (image->data == nullptr) return JITLOAD_RAISE_BAD_IMAGE_("the address of the cubin is null");
  if (image->size == 0) return JITLOAD_RAISE_BAD_IMAGE_("the cubin is empty");
  if (IsPtx(image)) {
    return JITLOAD_RAISE_BAD_IMAGE_(
        "the bytes are PTX, not a cubin: compile it for a GPU first, with jitload.compile_cubin(ptx) "
        "or ptxas");
  }
  return IsFatbin(image) ? CheckFatbin(image) : CheckElf(image, header);
}

JITLOAD_LAUNCHER int LoadBytes(const Driver* driver, const void* bytes, jitload_cu_library* library) {
  const jitload_relaxed_capture relaxed(driver);
  return driver->library_load(library, bytes, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

JITLOAD_LAUNCHER int LoadImage(const Image* image, Library* library) {
  Elf64_Ehdr header = {};
  if (CheckImage(image, &header) != 0) return -1;
  const Driver* driver = OpenDriver();
  if (driver == nullptr) return -1;
  const int code = LoadBytes(driver, image->data, &library->handle);
  if (code != JITLOAD_CUDA_SUCCESS) {
    return RaiseCode(IsFatbin(image) ? "CubinModule: the driver cannot load the fatbin"
                                     : "CubinModule: the driver cannot load the cubin",
                     code);
  }
  library->is_fatbin = IsFatbin(image);
  if (!library->is_fatbin) /* before version 8 of the ABI, the architecture is in the first byte of the flags */
    library->capability =
        static_cast<int>(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
  return 0;
}

JITLOAD_LAUNCHER void Unload(Library* library) {
  if (library->handle != nullptr && driver_table.process == getpid()) { /* a forked child cannot call the driver */
    const jitload_relaxed_capture relaxed(&driver_table);
    driver_table.library_unload(library->handle);
  }
  *library = {};
}

}  // namespace v1
}  // namespace jitload
