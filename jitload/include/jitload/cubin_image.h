/* What can be said of a cubin before the driver has it: cuLibraryLoadData takes garbage, and only fails later. */
#ifndef JITLOAD_CUBIN_IMAGE_H_
#define JITLOAD_CUBIN_IMAGE_H_

#include <elf.h>

#include <type_traits>

#include "driver_table.h"

namespace jitload {
inline namespace v1 {

inline constexpr size_t kUnknownSize = ~size_t{0};

struct Image {
  const unsigned char* data;
  size_t size; /* kUnknownSize where all that a caller has is an address */
  bool may_be_fatbin;
};

/* Bytes of an array, of a pointer, or of whatever has data() and size(). */
template <class Source>
JITLOAD_HIDDEN Image ImageOf(const Source& source) {
  if constexpr (std::is_array_v<Source>) {
    const size_t size = std::extent_v<Source>;
    return {reinterpret_cast<const unsigned char*>(&source[0]), size != 0 ? size * sizeof(source[0]) : kUnknownSize, true};
  } else if constexpr (std::is_pointer_v<Source>) {
    return {reinterpret_cast<const unsigned char*>(source), kUnknownSize, true};
  } else {
    return {reinterpret_cast<const unsigned char*>(source.data()), source.size() * sizeof(*source.data()), true};
  }
}

/* Tables of a cubin need not be aligned, so they are copied out. */
template <class Record>
JITLOAD_HIDDEN Record ReadAt(const Image& image, size_t offset) {
  Record record;
  memcpy(&record, image.data + offset, sizeof record);
  return record;
}

/* Compares as far as the bytes go: a text of unknown size ends with its zero. */
JITLOAD_COLD inline bool BeginsWith(const Image& image, const char* text, size_t size) {
  if (size > image.size) return false;
  for (size_t i = 0; i < size; ++i) {
    if (image.data[i] != static_cast<unsigned char>(text[i])) return false;
  }
  return true;
}

JITLOAD_COLD inline bool IsPtx(const Image& image) {
  return BeginsWith(image, ".version", 8) || BeginsWith(image, "//", 2) || BeginsWith(image, "\n//", 3) ||
         BeginsWith(image, "\n.version", 9);
}

JITLOAD_COLD inline bool IsFatbin(const Image& image) { return BeginsWith(image, "\x50\xed\x55\xba", 4); }

/* Where the image ends by its own headers, which need not be true. */
JITLOAD_COLD inline size_t EndOfImage(const Image& image, const Elf64_Ehdr& header) {
  if (header.e_shoff > image.size || header.e_phoff > image.size) return header.e_shoff | header.e_phoff;
  size_t end = header.e_shoff + size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const size_t segments_end = header.e_phoff + size_t{header.e_phnum} * header.e_phentsize;
  if (segments_end > end) end = segments_end;
  if (end > image.size) return end;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = ReadAt<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (section.sh_offset > image.size || section.sh_size > image.size) return section.sh_offset | section.sh_size;
    if (section.sh_offset + section.sh_size > end) end = section.sh_offset + section.sh_size;
  }
  return end;
}

/* Why the bytes are no cubin that a driver could take; empty where they are one. */
JITLOAD_COLD inline std::string FindFault(const Image& image) {
  enum { CUDA_MACHINE = 190 };
  if (image.data == nullptr) return "the address of the cubin is null";
  if (image.size == 0) return "the cubin is empty";
  if (IsFatbin(image)) {
    if (image.may_be_fatbin) return "";
    return "the bytes are a fatbin, not a cubin: compile with `nvcc -cubin`, or take a cubin out with `cuobjdump -xelf`";
  }
  if (IsPtx(image)) {
    return "the bytes are PTX, not a cubin: compile it for a GPU first, with jitload.compile_cubin(ptx) or ptxas";
  }
  if (!BeginsWith(image, ELFMAG, SELFMAG)) {
    if (image.size < SELFMAG) return Format("the bytes are no cubin: there are only %zu of them", image.size);
    return Format("the bytes are no cubin: they begin with %02x %02x %02x %02x and not with an ELF header", image.data[0],
                  image.data[1], image.data[2], image.data[3]);
  }
  if (image.size < sizeof(Elf64_Ehdr)) return Format("the cubin is truncated: %zu bytes of it are left", image.size);
  const auto header = ReadAt<Elf64_Ehdr>(image, 0);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != CUDA_MACHINE) {
    return Format("the bytes are no cubin: they are a %d-bit ELF file for machine %d, and CUDA is 64-bit, machine %d",
                  header.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32, int{header.e_machine}, int{CUDA_MACHINE});
  }
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0) return "the cubin has no sections";
  const size_t end = image.size == kUnknownSize ? 0 : EndOfImage(image, header);
  if (end > image.size) {
    return Format("the cubin is truncated: its headers speak of %zu bytes, and there are %zu", end, image.size);
  }
  return "";
}

/* 90 for sm_90; from version 8 of the ABI on, it stands one byte higher. 0 for a fatbin. */
JITLOAD_COLD inline int CapabilityOf(const Image& image) {
  if (IsFatbin(image)) return 0;
  const auto header = ReadAt<Elf64_Ehdr>(image, 0);
  return static_cast<int>(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
}

/* The names of a checked cubin's kernels, "add_one, scale"; the driver itself can list them only from 12.4 on. */
JITLOAD_COLD inline std::string ListKernels(const Image& image) {
  enum { ENTRY_POINT = 0x10 };
  std::string names;
  if (IsFatbin(image)) return names;
  const auto header = ReadAt<Elf64_Ehdr>(image, 0);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto table = ReadAt<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header.e_shnum) continue;
    const auto texts = ReadAt<Elf64_Shdr>(image, header.e_shoff + table.sh_link * sizeof(Elf64_Shdr));
    for (size_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = ReadAt<Elf64_Sym>(image, table.sh_offset + at);
      const bool is_kernel = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & ENTRY_POINT) != 0;
      if (!is_kernel || symbol.st_shndx == SHN_UNDEF || symbol.st_name >= texts.sh_size) continue;
      const char* name = reinterpret_cast<const char*>(image.data) + texts.sh_offset + symbol.st_name;
      names += (names.empty() ? "" : ", ") + std::string(name, strnlen(name, texts.sh_size - symbol.st_name));
    }
  }
  return names;
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_CUBIN_IMAGE_H_ */
