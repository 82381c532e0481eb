/* What can be said of a cubin before the driver has it: cuLibraryLoadData takes garbage, and only fails later. */
#ifndef JITLOAD_LAUNCHER_IMAGE_H_
#define JITLOAD_LAUNCHER_IMAGE_H_

#include <elf.h>

#include "launcher_driver.h"

namespace jitload {
inline namespace v1 {

/* ---- fatbins: machine code and PTX for several architectures --------------------------------------------------- */

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
               "CubinModule: the fatbin is damaged or truncated: it should have %llu bytes, but it has %zu", told, size);
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
  enum : size_t { kMaxText = 512 }; /* a dozen images and more */
  char* text = static_cast<char*>(calloc(1, kMaxText));
  size_t used = 0;
  if (text == nullptr) return nullptr;
  ForEachImage(image, [&](const FatbinEntry* entry, const Image&) {
    const char* kind = entry->kind == kFatbinCode ? "sm_" : entry->kind == kFatbinPtx ? "compute_" : nullptr;
    if (kind == nullptr || used + 32 > kMaxText) return 0;
    const int more = snprintf(text + used, kMaxText - used, "%s%s%u%s", used != 0 ? ", " : "", kind, entry->arch,
                              (entry->flags & kAccelerated) != 0 ? "a" : "");
    used += static_cast<size_t>(more);
    return 0;
  });
  if (used != 0) return text;
  free(text);
  return nullptr;
}

/* ---- cubins ---------------------------------------------------------------------------------------------------- */

enum { kCudaMachine = 190, kEntryPoint = 0x10 };

/* Compares as far as the bytes go: a text of unknown size ends with its zero. */
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

/* Tables of a cubin need not be aligned, so they are copied out. */
JITLOAD_LAUNCHER Elf64_Shdr ReadSection(const Image* image, const Elf64_Ehdr* header, unsigned index) {
  Elf64_Shdr section;
  memcpy(&section, image->data + header->e_shoff + index * sizeof section, sizeof section);
  return section;
}

JITLOAD_LAUNCHER size_t SaturatingSum(uint64_t offset, uint64_t size) {
  const uint64_t sane = uint64_t{1} << 48; /* sums of less cannot overflow */
  return offset > sane ? offset : size > sane ? size : offset + size;
}

/* Where the image ends by its own headers, which need not be true. */
JITLOAD_LAUNCHER size_t ComputeImageEnd(const Image* image, const Elf64_Ehdr* header) {
  const size_t segments = SaturatingSum(header->e_phoff, uint64_t{header->e_phnum} * header->e_phentsize);
  size_t end = SaturatingSum(header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr));
  if (segments > end) end = segments;
  for (unsigned i = 0; end <= image->size && i < header->e_shnum; ++i) {
    const Elf64_Shdr section = ReadSection(image, header, i);
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    const size_t section_end = SaturatingSum(section.sh_offset, section.sh_size);
    if (section_end > end) end = section_end;
  }
  return end;
}

#define JITLOAD_RAISE_BAD_IMAGE_(...) Raise("RuntimeError", "CubinModule: " __VA_ARGS__)

JITLOAD_LAUNCHER int CheckElf(const Image* image, Elf64_Ehdr* header) {
  const unsigned char* data = image->data;
  if (!BeginsWith(image, ELFMAG)) {
    if (image->size < SELFMAG)
      return JITLOAD_RAISE_BAD_IMAGE_("the bytes are not a cubin: there are only %zu of them", image->size);
    return JITLOAD_RAISE_BAD_IMAGE_("the bytes are not a cubin: they begin with %02x %02x %02x %02x and not with an ELF header",
                             data[0], data[1], data[2], data[3]);
  }
  if (image->size < sizeof *header) return JITLOAD_RAISE_BAD_IMAGE_("the cubin is truncated: it has %zu bytes", image->size);
  memcpy(header, data, sizeof *header);
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != kCudaMachine) {
    return JITLOAD_RAISE_BAD_IMAGE_(
        "the bytes are not a cubin: they are a %d-bit ELF file for machine %d, and CUDA is 64-bit, "
        "machine %d",
        header->e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32, header->e_machine, kCudaMachine);
  }
  if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum == 0)
    return JITLOAD_RAISE_BAD_IMAGE_("the cubin has no sections");
  const size_t end = image->size == kUnknownSize ? 0 : ComputeImageEnd(image, header);
  if (end <= image->size) return 0;
  return JITLOAD_RAISE_BAD_IMAGE_("the cubin is truncated: its headers describe %zu bytes, but it has %zu", end, image->size);
}

/* Sets an error unless the fatbin is whole; gives the first machine code in it that is not compressed. */
JITLOAD_LAUNCHER int CheckFatbin(const Image* image, Image* code, Elf64_Ehdr* header) {
  return ForEachImage(image, [&](const FatbinEntry* entry, const Image& inner) {
    if (entry->kind != kFatbinCode || !BeginsWith(&inner, ELFMAG)) return 0;
    Elf64_Ehdr its = {};
    if (CheckElf(&inner, &its) != 0) return -1;
    if (code->data == nullptr) *code = inner, *header = its;
    return 0;
  });
}

/* Sets an error unless the bytes are something that a driver could take; gives the machine code that can be looked at,
 * if there is any, and its header. */
JITLOAD_LAUNCHER int CheckImage(const Image* image, Image* code, Elf64_Ehdr* header) {
  if (image->data == nullptr) return JITLOAD_RAISE_BAD_IMAGE_("the address of the cubin is null");
  if (image->size == 0) return JITLOAD_RAISE_BAD_IMAGE_("the cubin is empty");
  if (IsPtx(image)) {
    return JITLOAD_RAISE_BAD_IMAGE_(
        "the bytes are PTX, not a cubin: compile it for a GPU first, with jitload.compile_cubin(ptx) "
        "or ptxas");
  }
  if (IsFatbin(image)) return CheckFatbin(image, code, header);
  *code = *image;
  return CheckElf(image, header);
}

/* The kernels of a symbol table, "add_one, scale", added to `out` if that is not null; returns the size of the text. */
JITLOAD_LAUNCHER size_t ListSymbols(const Image* image, const Elf64_Shdr* table, const Elf64_Shdr* texts, char* out) {
  size_t used = 0;
  for (size_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, image->data + table->sh_offset + at, sizeof symbol);
    const bool is_kernel = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & kEntryPoint) != 0;
    if (!is_kernel || symbol.st_shndx == SHN_UNDEF || symbol.st_name >= texts->sh_size) continue;
    const char* name = reinterpret_cast<const char*>(image->data) + texts->sh_offset + symbol.st_name;
    const size_t size = strnlen(name, texts->sh_size - symbol.st_name);
    if (out != nullptr) memcpy(out + used, ", ", 2), memcpy(out + used + 2, name, size);
    used += 2 + size;
  }
  return used;
}

/* The names of a checked cubin's kernels; the driver itself can list them only from 12.4 on. NULL where there are none.
 */
JITLOAD_LAUNCHER char* ListKernels(const Image* image, const Elf64_Ehdr* header) {
  for (unsigned i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr table = ReadSection(image, header, i);
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const Elf64_Shdr texts = ReadSection(image, header, table.sh_link);
    if (texts.sh_type != SHT_STRTAB) continue; /* another may lie beyond the end */
    const size_t size = ListSymbols(image, &table, &texts, nullptr);
    char* names = size != 0 ? static_cast<char*>(calloc(1, size + 1)) : nullptr;
    if (names == nullptr) continue;
    ListSymbols(image, &table, &texts, names);
    memmove(names, names + 2, size - 1);
    return names;
  }
  return nullptr;
}

JITLOAD_LAUNCHER int LoadBytes(const Driver* driver, const void* bytes, jitload_cu_library* library) {
  int mode = JITLOAD_CAPTURE_RELAXED; /* during graph capture, too */
  driver->exchange_capture_mode(&mode);
  const int code = driver->library_load(library, bytes, nullptr, nullptr, 0, nullptr, nullptr, 0);
  driver->exchange_capture_mode(&mode);
  return code;
}

JITLOAD_LAUNCHER int LoadImage(const Image* image, Library* library) {
  Elf64_Ehdr header = {};
  Image code_image = {};
  if (CheckImage(image, &code_image, &header) != 0) return -1;
  const Driver* driver = OpenDriver();
  if (driver == nullptr) return -1;
  const int code = LoadBytes(driver, image->data, &library->handle);
  if (code != JITLOAD_CUDA_SUCCESS) {
    return RaiseCode(IsFatbin(image) ? "CubinModule: the driver cannot load the fatbin"
                                     : "CubinModule: the driver cannot load the cubin",
                     code);
  }
  if (code_image.data != nullptr) library->kernels = ListKernels(&code_image, &header);
  if (IsFatbin(image))
    library->images = ListImages(image);
  else /* from version 8 of the ABI on, the architecture stands one byte higher */
    library->capability =
        static_cast<int>(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
  return 0;
}

JITLOAD_LAUNCHER void Unload(Library* library) {
  int mode = JITLOAD_CAPTURE_RELAXED;
  if (library->handle != nullptr && driver_table.process == getpid()) { /* the driver of a forked child has none */
    driver_table.exchange_capture_mode(&mode);
    driver_table.library_unload(library->handle);
    driver_table.exchange_capture_mode(&mode);
  }
  free(library->kernels);
  free(library->images);
  *library = {};
}

}  // namespace v1
}  // namespace jitload

#endif /* JITLOAD_LAUNCHER_IMAGE_H_ */
