/* What can be said of a cubin before the driver has it: cuLibraryLoadData takes garbage, and only fails later. */
#ifndef JITLOAD_LAUNCHER_IMAGE_H_
#define JITLOAD_LAUNCHER_IMAGE_H_

#include <elf.h>

#include "launcher_driver.h"
#include "launcher_fatbin.h"

namespace jitload {
inline namespace v1 {

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
JITLOAD_LAUNCHER Elf64_Shdr SectionAt(const Image* image, const Elf64_Ehdr* header, unsigned index) {
  Elf64_Shdr section;
  memcpy(&section, image->data + header->e_shoff + index * sizeof section, sizeof section);
  return section;
}

JITLOAD_LAUNCHER size_t EndOf(uint64_t offset, uint64_t size) {
  const uint64_t sane = uint64_t{1} << 48; /* sums of less cannot overflow */
  return offset > sane ? offset : size > sane ? size : offset + size;
}

/* Where the image ends by its own headers, which need not be true. */
JITLOAD_LAUNCHER size_t EndOfImage(const Image* image, const Elf64_Ehdr* header) {
  const size_t segments = EndOf(header->e_phoff, uint64_t{header->e_phnum} * header->e_phentsize);
  size_t end = EndOf(header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr));
  if (segments > end) end = segments;
  for (unsigned i = 0; end <= image->size && i < header->e_shnum; ++i) {
    const Elf64_Shdr section = SectionAt(image, header, i);
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    const size_t section_end = EndOf(section.sh_offset, section.sh_size);
    if (section_end > end) end = section_end;
  }
  return end;
}

#define JITLOAD_NO_CUBIN_(...) Raise("RuntimeError", "CubinModule: " __VA_ARGS__)

JITLOAD_LAUNCHER int CheckElf(const Image* image, Elf64_Ehdr* header) {
  const unsigned char* data = image->data;
  if (!BeginsWith(image, ELFMAG)) {
    if (image->size < SELFMAG)
      return JITLOAD_NO_CUBIN_("the bytes are no cubin: there are only %zu of them", image->size);
    return JITLOAD_NO_CUBIN_("the bytes are no cubin: they begin with %02x %02x %02x %02x and not with an ELF header",
                             data[0], data[1], data[2], data[3]);
  }
  if (image->size < sizeof *header) return JITLOAD_NO_CUBIN_("the cubin is truncated: it has %zu bytes", image->size);
  memcpy(header, data, sizeof *header);
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != kCudaMachine) {
    return JITLOAD_NO_CUBIN_(
        "the bytes are no cubin: they are a %d-bit ELF file for machine %d, and CUDA is 64-bit, "
        "machine %d",
        header->e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32, header->e_machine, kCudaMachine);
  }
  if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum == 0)
    return JITLOAD_NO_CUBIN_("the cubin has no sections");
  const size_t end = image->size == kUnknownSize ? 0 : EndOfImage(image, header);
  if (end <= image->size) return 0;
  return JITLOAD_NO_CUBIN_("the cubin is truncated: its headers speak of %zu bytes, and it has %zu", end, image->size);
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
  if (image->data == nullptr) return JITLOAD_NO_CUBIN_("the address of the cubin is null");
  if (image->size == 0) return JITLOAD_NO_CUBIN_("the cubin is empty");
  if (IsPtx(image)) {
    return JITLOAD_NO_CUBIN_(
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
    const Elf64_Shdr table = SectionAt(image, header, i);
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const Elf64_Shdr texts = SectionAt(image, header, table.sh_link);
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
