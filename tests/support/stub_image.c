/* Reads a cubin: its kernels with their parameter tables, its variables with their contents.
 *
 * Like the driver, it gets an address without a size and believes what the ELF header says; tests hand it real ones.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

/* Records of .nv.info: a format byte, an attribute byte, a 16-bit value or size, and for format 4 the payload. */
enum {
  INFO_HAS_PAYLOAD = 4,
  INFO_MAX_THREADS = 0x05,
  INFO_FRAME_SIZE = 0x11,
  INFO_PARAMETER = 0x17,       /* index, ordinal : 16, offset : 16, flags with the size in the top 14 bits */
  INFO_REGISTERS = 0x2f,
  INFO_CLUSTER = 0x3d,
  INFO_WIDE_PARAMETER = 0x45,  /* index, ordinal : 16, offset : 16, size : 24, flags : 8; with a larger parameter */
};

enum { ENTRY_POINT = 0x10, CUDA_MACHINE = 190 };

/* From sm_90 on, .nv.shared.<kernel> begins with the part that the driver reserves for itself. */
enum { RESERVED_SHARED = 1024 };

static CUlibrary libraries;

/* Tables of a cubin need not be aligned, so headers are copied out. */
static Elf64_Ehdr header_of(const void* image) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  return header;
}

static Elf64_Shdr section_at(const unsigned char* image, unsigned index) {
  Elf64_Shdr section;
  memcpy(&section, image + header_of(image).e_shoff + index * sizeof section, sizeof section);
  return section;
}

/* Find the section called prefix + name. */
static int find_section(const unsigned char* image, const char* prefix, const char* name, Elf64_Shdr* found) {
  const Elf64_Ehdr header = header_of(image);
  const char* names = (const char*)image + section_at(image, header.e_shstrndx).sh_offset;
  const size_t size = strlen(prefix);
  for (unsigned i = 1; i < header.e_shnum; ++i) {
    *found = section_at(image, i);
    const char* candidate = names + found->sh_name;
    if (strncmp(candidate, prefix, size) == 0 && strcmp(candidate + size, name) == 0) return 1;
  }
  return 0;
}

static size_t image_size(const unsigned char* image) {
  const Elf64_Ehdr header = header_of(image);
  size_t size = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
  const size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
  if (segments > size) size = segments;
  for (unsigned i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr section = section_at(image, i);
    const size_t end = section.sh_type == SHT_NOBITS ? 0 : section.sh_offset + section.sh_size;
    if (end > size) size = end;
  }
  return size;
}

static void add_parameter(CUkernel kernel, uint32_t ordinal, uint32_t offset, uint32_t size) {
  if (ordinal >= kernel->slot_count) {
    kernel->slots = realloc(kernel->slots, (ordinal + 1) * sizeof *kernel->slots);
    if (kernel->slots == NULL) abort();
    memset(kernel->slots + kernel->slot_count, 0, (ordinal + 1 - kernel->slot_count) * sizeof *kernel->slots);
    kernel->slot_count = ordinal + 1;
  }
  kernel->slots[ordinal] = (stub_slot){offset, size};
  if (offset + size > kernel->param_bytes) kernel->param_bytes = offset + size;
}

static void read_kernel_record(CUkernel kernel, int attribute, const uint32_t* words) {
  if (attribute == INFO_PARAMETER) add_parameter(kernel, words[1] & 0xffff, words[1] >> 16, words[2] >> 18);
  if (attribute == INFO_WIDE_PARAMETER) {
    add_parameter(kernel, words[1] & 0xffff, words[1] >> 16, words[2] & 0xffffff);
  }
  if (attribute == INFO_MAX_THREADS) kernel->max_threads = (int)(words[0] * words[1] * words[2]);
  if (attribute == INFO_CLUSTER) memcpy(kernel->cluster, words, sizeof kernel->cluster);
}

/* Records of the whole image name the symbol that they are about. */
static void read_image_record(CUkernel kernel, int attribute, const uint32_t* words, uint32_t symbol) {
  if (words[0] != symbol) return;
  if (attribute == INFO_REGISTERS) kernel->registers = (int)words[1];
  if (attribute == INFO_FRAME_SIZE) kernel->local_bytes = (int)words[1];
}

/* `symbol` is the kernel's number in the image-wide section, or -1 for the kernel's own section. */
static void read_info(CUkernel kernel, const char* prefix, const char* name, int64_t symbol) {
  Elf64_Shdr section;
  if (!find_section(kernel->library->image, prefix, name, &section)) return;
  const unsigned char* at = kernel->library->image + section.sh_offset;
  const unsigned char* end = at + section.sh_size;
  while (at + 4 <= end) {
    uint32_t words[3] = {0, 0, 0};
    uint16_t size;
    memcpy(&size, at + 2, sizeof size);
    const size_t payload = at[0] == INFO_HAS_PAYLOAD ? size : 0;
    memcpy(words, at + 4, payload < sizeof words ? payload : sizeof words);
    if (symbol < 0) read_kernel_record(kernel, at[1], words);
    if (symbol >= 0) read_image_record(kernel, at[1], words, (uint32_t)symbol);
    at += 4 + payload;
  }
}

static void add_kernel(CUlibrary library, const char* name, uint32_t symbol) {
  CUkernel kernel = calloc(1, sizeof *kernel);
  if (kernel == NULL) abort();
  kernel->library = library;
  kernel->name = name;
  kernel->max_threads = 1024;
  read_info(kernel, ".nv.info.", name, -1);
  read_info(kernel, ".nv.info", "", symbol);
  Elf64_Shdr shared;
  if (find_section(library->image, ".nv.shared.", name, &shared)) {
    kernel->static_shared = (int)shared.sh_size - (library->capability >= 90 ? RESERVED_SHARED : 0);
  }
  for (int i = 0; i < STUB_MAX_DEVICES; ++i) {
    kernel->functions[i] = (stub_function){.kernel = kernel, .device = i, .carveout = -1};
    kernel->functions[i].max_dynamic_shared = 48 * 1024 - kernel->static_shared;
  }
  kernel->next = library->kernels;
  library->kernels = kernel;
}

static void add_global(CUlibrary library, const char* name, const Elf64_Sym* symbol) {
  const Elf64_Shdr section = section_at(library->image, symbol->st_shndx);
  stub_global* global = calloc(1, sizeof *global);
  if (global == NULL) abort();
  global->name = name;
  global->size = symbol->st_size;
  if (section.sh_type != SHT_NOBITS) global->initial = library->image + section.sh_offset + symbol->st_value;
  global->next = library->globals;
  library->globals = global;
}

static void read_symbols(CUlibrary library) {
  Elf64_Shdr table;
  if (!find_section(library->image, ".symtab", "", &table)) return;
  const Elf64_Shdr texts = section_at(library->image, table.sh_link);
  if (texts.sh_type != SHT_STRTAB) return;
  const char* names = (const char*)library->image + texts.sh_offset;
  for (uint32_t i = 1; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
    Elf64_Sym symbol;
    memcpy(&symbol, library->image + table.sh_offset + i * sizeof symbol, sizeof symbol);
    const int type = ELF64_ST_TYPE(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= SHN_LORESERVE) continue;
    if (type == STT_FUNC && (symbol.st_other & ENTRY_POINT)) add_kernel(library, names + symbol.st_name, i);
    if (type == STT_OBJECT) add_global(library, names + symbol.st_name, &symbol);
  }
}

/* From version 8 of the ABI on, the architecture stands one byte higher. */
static int read_capability(const unsigned char* image) {
  const Elf64_Ehdr header = header_of(image);
  return (int)(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
}

static int is_cubin(const void* code) {
  if (memcmp(code, ELFMAG, SELFMAG) != 0) return 0; /* the rest of a shorter text is not ours to read */
  return header_of(code).e_ident[EI_CLASS] == ELFCLASS64 && header_of(code).e_machine == CUDA_MACHINE;
}

/* Of a fatbin, the first machine code that is not compressed: the driver would take what the device can run. */
static const void* code_of(const void* image) {
  const unsigned char* bytes = image;
  uint16_t header = 0, kind = 0;
  uint32_t skip = 0;
  uint64_t size = 0, at = 0, end = 0;
  if (memcmp(bytes, "\x50\xed\x55\xba", 4) != 0) return image;
  memcpy(&header, bytes + 6, sizeof header);
  memcpy(&size, bytes + 8, sizeof size);
  for (at = header, end = header + size; at < end; at += skip + size) {
    memcpy(&kind, bytes + at, sizeof kind);
    memcpy(&skip, bytes + at + 4, sizeof skip);
    memcpy(&size, bytes + at + 8, sizeof size);
    if (kind == 2 && is_cubin(bytes + at + skip)) return bytes + at + skip;
  }
  return image;
}

CUlibrary stub_read_image(const void* code) {
  code = code_of(code);
  CUlibrary library = calloc(1, sizeof *library);
  if (library == NULL) abort();
  library->is_loaded = 1;
  library->next = libraries;
  libraries = library;
  if (!is_cubin(code)) return library;
  library->size = image_size(code);
  library->image = malloc(library->size);
  if (library->image == NULL) abort();
  memcpy(library->image, code, library->size);
  library->capability = read_capability(library->image);
  read_symbols(library);
  return library;
}

int stub_is_library(CUlibrary library) {
  for (CUlibrary known = libraries; known != NULL; known = known->next) {
    if (known == library) return known->is_loaded;
  }
  return 0;
}

/* Handles are looked up and never followed, so that a wrong one gets an error instead of a crash. */
CUkernel stub_find_kernel(const void* handle, stub_function** function) {
  *function = NULL;
  for (CUlibrary library = libraries; library != NULL; library = library->next) {
    for (CUkernel kernel = library->is_loaded ? library->kernels : NULL; kernel != NULL; kernel = kernel->next) {
      if (handle == kernel) return kernel;
      for (int i = 0; i < STUB_MAX_DEVICES; ++i) {
        if (handle != &kernel->functions[i]) continue;
        *function = &kernel->functions[i];
        return kernel;
      }
    }
  }
  return NULL;
}
