/* Checks of cubins and fatbins before the driver loads them: cuLibraryLoadData accepts garbage, and fails later. */
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
  uint64_t size; /* bytes of the entries after the header */
};

struct FatbinEntry {
  uint16_t kind, version;
  uint32_t header_size;
  uint64_t size; /* bytes of the image after the header */
  uint32_t packed_size, options;
  uint16_t minor, major;
  uint32_t arch, name_offset, name_size; /* `arch` is 90 for sm_90; the name is the source's */
  uint64_t flags;
};
enum : uint64_t { kAccelerated = 0x100000 }; /* the flag of an architecture such as sm_90a */

JITLOAD_LAUNCHER int RaiseFatbin(uint64_t expected_size, size_t size) {
  return Raise("RuntimeError",
               "CubinModule: the fatbin is damaged or truncated: it should have %llu bytes, but it has %zu",
               static_cast<unsigned long long>(expected_size), size);
}

/* Call `visit` for each image of a fatbin, until it sets an error. If the size is unknown, there are no calls. */
template <class Visit>
JITLOAD_LAUNCHER int ForEachImage(const Image* image, Visit visit) {
  FatbinHeader header;
  if (image->size < sizeof header) return RaiseFatbin(sizeof header, image->size);
  memcpy(&header, image->data, sizeof header);
  if (header.header_size < sizeof header || header.size == 0) {
    return Raise("RuntimeError", "CubinModule: the fatbin is damaged: it has no image");
  }
  if (image->size == kUnknownSize) return 0;
  if (header.header_size > image->size || header.size > image->size - header.header_size) {
    return RaiseFatbin(header.header_size + header.size, image->size);
  }
  const uint64_t end = header.header_size + header.size;
  for (uint64_t offset = header.header_size; offset < end;) {
    FatbinEntry entry;
    if (end - offset < sizeof entry) return RaiseFatbin(offset + sizeof entry, end);
    memcpy(&entry, image->data + offset, sizeof entry);
    if (entry.header_size < sizeof entry || entry.header_size > end - offset ||
        entry.size > end - offset - entry.header_size) {
      return RaiseFatbin(offset + entry.header_size + entry.size, end);
    }
    offset += entry.header_size;
    if (visit(&entry, Image{image->data + offset, static_cast<size_t>(entry.size)}) != 0) return -1;
    offset += entry.size;
  }
  return 0;
}

/* Return "sm_80, sm_90, compute_90" from malloc, or NULL if the architectures are unknown. */
JITLOAD_LAUNCHER char* ListImages(const Image* image) {
  enum : size_t { kMaxText = 512 }; /* enough for a dozen images */
  char* text = static_cast<char*>(calloc(1, kMaxText));
  size_t used = 0;
  if (text == nullptr) return nullptr;
  ForEachImage(image, [&](const FatbinEntry* entry, const Image&) {
    const char* kind = entry->kind == kFatbinCode ? "sm_" : entry->kind == kFatbinPtx ? "compute_" : nullptr;
    if (kind == nullptr || used + 32 > kMaxText) return 0;
    const int length = snprintf(text + used, kMaxText - used, "%s%s%u%s", used != 0 ? ", " : "", kind, entry->arch,
                                (entry->flags & kAccelerated) != 0 ? "a" : "");
    used += static_cast<size_t>(length);
    return 0;
  });
  if (used != 0) return text;
  free(text);
  return nullptr;
}

/* ---- cubins ---------------------------------------------------------------------------------------------------- */

enum { kCudaMachine = 190, kEntryPoint = 0x10 };

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

/* Return a copy of a section header, because the tables of a cubin need not be aligned. */
JITLOAD_LAUNCHER Elf64_Shdr ReadSection(const Image* image, const Elf64_Ehdr* header, unsigned index) {
  Elf64_Shdr section;
  memcpy(&section, image->data + header->e_shoff + index * sizeof section, sizeof section);
  return section;
}

JITLOAD_LAUNCHER size_t SaturatingSum(uint64_t offset, uint64_t size) {
  const uint64_t limit = uint64_t{1} << 48; /* the sum of two smaller numbers cannot overflow */
  return offset > limit ? offset : size > limit ? size : offset + size;
}

/* Return the size of the image according to its headers, which may be wrong. */
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
  const size_t end = image->size == kUnknownSize ? 0 : ComputeImageEnd(image, header);
  if (end <= image->size) return 0;
  return JITLOAD_RAISE_BAD_IMAGE_("the cubin is truncated: its headers describe %zu bytes, but it has %zu", end,
                                  image->size);
}

/* Set an error unless the fatbin is complete. `*code` becomes its first uncompressed cubin. */
JITLOAD_LAUNCHER int CheckFatbin(const Image* image, Image* code, Elf64_Ehdr* header) {
  return ForEachImage(image, [&](const FatbinEntry* entry, const Image& inner) {
    if (entry->kind != kFatbinCode || !BeginsWith(&inner, ELFMAG)) return 0;
    Elf64_Ehdr inner_header = {};
    if (CheckElf(&inner, &inner_header) != 0) return -1;
    if (code->data == nullptr) *code = inner, *header = inner_header;
    return 0;
  });
}

/* Set an error unless the bytes look like a cubin or a fatbin. `*code` and `*header` become the cubin that can be
 * read, if there is one. */
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

/* Return the length of ", add_one, scale", the kernels of a symbol table, and write it to `out` unless that is null. */
JITLOAD_LAUNCHER size_t ListSymbols(const Image* image, const Elf64_Shdr* table, const Elf64_Shdr* strings, char* out) {
  size_t used = 0;
  for (size_t offset = 0; offset + sizeof(Elf64_Sym) <= table->sh_size; offset += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, image->data + table->sh_offset + offset, sizeof symbol);
    const bool is_kernel = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && (symbol.st_other & kEntryPoint) != 0;
    if (!is_kernel || symbol.st_shndx == SHN_UNDEF || symbol.st_name >= strings->sh_size) continue;
    const char* name = reinterpret_cast<const char*>(image->data) + strings->sh_offset + symbol.st_name;
    const size_t size = strnlen(name, strings->sh_size - symbol.st_name);
    if (out != nullptr) memcpy(out + used, ", ", 2), memcpy(out + used + 2, name, size);
    used += 2 + size;
  }
  return used;
}

/* Return the names of a checked cubin's kernels from malloc, or NULL without kernels. The driver can list them only
 * since CUDA 12.4. */
JITLOAD_LAUNCHER char* ListKernels(const Image* image, const Elf64_Ehdr* header) {
  for (unsigned i = 0; i < header->e_shnum; ++i) {
    const Elf64_Shdr table = ReadSection(image, header, i);
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const Elf64_Shdr strings = ReadSection(image, header, table.sh_link);
    if (strings.sh_type != SHT_STRTAB) continue; /* another section may have no bytes and lie beyond the end */
    const size_t size = ListSymbols(image, &table, &strings, nullptr);
    char* names = size != 0 ? static_cast<char*>(calloc(1, size + 1)) : nullptr;
    if (names == nullptr) continue;
    ListSymbols(image, &table, &strings, names);
    memmove(names, names + 2, size - 1);
    return names;
  }
  return nullptr;
}

JITLOAD_LAUNCHER int LoadBytes(const Driver* driver, const void* bytes, jitload_cu_library* library) {
  int mode = JITLOAD_CAPTURE_RELAXED; /* loading must also work during a graph capture */
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
  else /* since version 8 of the ABI, the architecture is in the second byte of the flags, not in the first */
    library->capability =
        static_cast<int>(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
  return 0;
}

JITLOAD_LAUNCHER void Unload(Library* library) {
  int mode = JITLOAD_CAPTURE_RELAXED;
  if (library->handle != nullptr && driver_table.process == getpid()) { /* a forked child cannot call the driver */
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
