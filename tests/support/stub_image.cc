// Reads a cubin: its kernels with their parameter tables, its variables with their contents.
//
// Like the driver, it gets an address without a size and believes what the ELF header says; tests hand it real ones.
#include <elf.h>

#include <algorithm>

#include "stub.h"

namespace {

// Records of .nv.info: a format byte, an attribute byte, a 16-bit value or size, and for format 4 the payload.
enum {
  INFO_HAS_PAYLOAD = 4,
  INFO_MAX_THREADS = 0x05,
  INFO_PARAMETER = 0x17,  // index, ordinal : 16, offset : 16, flags with the size in the top 14 bits
  INFO_CLUSTER = 0x3d,
  INFO_WIDE_PARAMETER = 0x45,  // index, ordinal : 16, offset : 16, size : 24, flags : 8; with a larger parameter
};
enum { ENTRY_POINT = 0x10, CUDA_MACHINE = 190 };
// From sm_90 on, .nv.shared.<kernel> begins with the part that the driver reserves for itself.
constexpr int kReservedShared = 1024;

// Tables of a cubin need not be aligned, so they are copied out.
template <class T>
T read(const char* bytes) {
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

Elf64_Ehdr header_of(const char* image) { return read<Elf64_Ehdr>(image); }

Elf64_Shdr section_at(const char* image, unsigned index) {
  return read<Elf64_Shdr>(image + header_of(image).e_shoff + index * sizeof(Elf64_Shdr));
}

// Return the section of this name, or one of no size.
Elf64_Shdr find_section(const char* image, const std::string& name) {
  const Elf64_Ehdr header = header_of(image);
  const char* names = image + section_at(image, header.e_shstrndx).sh_offset;
  for (unsigned i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr section = section_at(image, i);
    if (names + section.sh_name == name) return section;
  }
  return {};
}

size_t image_size(const char* image) {
  const Elf64_Ehdr header = header_of(image);
  size_t size = std::max(header.e_shoff + size_t{header.e_shnum} * header.e_shentsize,
                         header.e_phoff + size_t{header.e_phnum} * header.e_phentsize);
  for (unsigned i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr section = section_at(image, i);
    if (section.sh_type != SHT_NOBITS) size = std::max(size, section.sh_offset + section.sh_size);
  }
  return size;
}

void add_parameter(Kernel& kernel, size_t ordinal, uint32_t offset, uint32_t size) {
  kernel.slots.resize(std::max(kernel.slots.size(), ordinal + 1));
  kernel.slots[ordinal] = {offset, size};
  kernel.param_bytes = std::max(kernel.param_bytes, size_t{offset} + size);
}

void read_record(Kernel& kernel, int attribute, const uint32_t* words) {
  if (attribute == INFO_PARAMETER) add_parameter(kernel, words[1] & 0xffff, words[1] >> 16, words[2] >> 18);
  if (attribute == INFO_WIDE_PARAMETER) add_parameter(kernel, words[1] & 0xffff, words[1] >> 16, words[2] & 0xffffff);
  if (attribute == INFO_MAX_THREADS) kernel.max_threads = words[0] * words[1] * words[2];
  if (attribute == INFO_CLUSTER) std::copy(words, words + 3, kernel.cluster.begin());
}

void read_info(Kernel& kernel) {
  const char* image = kernel.library->image.data();
  const Elf64_Shdr section = find_section(image, ".nv.info." + kernel.name);
  const char *at = image + section.sh_offset, *end = at + section.sh_size;
  while (at + 4 <= end) {
    uint32_t words[3] = {};
    const size_t payload = at[0] == INFO_HAS_PAYLOAD ? read<uint16_t>(at + 2) : 0;
    memcpy(words, at + 4, std::min(payload, sizeof words));
    read_record(kernel, at[1], words);
    at += 4 + payload;
  }
}

void add_kernel(Library& library, const std::string& name) {
  Kernel& kernel = library.kernels.emplace_front();
  kernel.library = &library, kernel.name = name;
  read_info(kernel);
  const int shared = find_section(library.image.data(), ".nv.shared." + name).sh_size;
  if (shared != 0) kernel.static_shared = shared - (library.capability >= 90 ? kReservedShared : 0);
  for (int i = 0; i < kMaxDevices; ++i) kernel.functions[i] = {&kernel, i, 48 * 1024 - kernel.static_shared};
}

void add_variable(Library& library, const char* name, const Elf64_Sym& symbol) {
  const char* image = library.image.data();
  const Elf64_Shdr section = section_at(image, symbol.st_shndx);
  Variable& variable = library.variables[name];
  variable.size = symbol.st_size;
  if (section.sh_type == SHT_NOBITS) return;
  const char* begin = image + section.sh_offset + symbol.st_value;
  variable.initial.assign(begin, begin + symbol.st_size);
}

void read_symbols(Library& library) {
  const char* image = library.image.data();
  const Elf64_Shdr table = find_section(image, ".symtab");
  const char* names = image + section_at(image, table.sh_link).sh_offset;
  for (uint32_t i = 1; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
    const auto symbol = read<Elf64_Sym>(image + table.sh_offset + i * sizeof(Elf64_Sym));
    const int type = ELF64_ST_TYPE(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= SHN_LORESERVE) continue;
    if (type == STT_FUNC && (symbol.st_other & ENTRY_POINT)) add_kernel(library, names + symbol.st_name);
    if (type == STT_OBJECT) add_variable(library, names + symbol.st_name, symbol);
  }
}

bool is_cubin(const char* code) {
  if (memcmp(code, ELFMAG, SELFMAG) != 0) return false;  // the rest of a shorter text is not ours to read
  return header_of(code).e_ident[EI_CLASS] == ELFCLASS64 && header_of(code).e_machine == CUDA_MACHINE;
}

// Of a fatbin, the first machine code that is not compressed: the driver would take what the device can run.
const char* code_of(const char* image) {
  if (memcmp(image, "\x50\xed\x55\xba", 4) != 0) return image;
  const char* at = image + read<uint16_t>(image + 6);
  const char* end = at + read<uint64_t>(image + 8);
  for (; at < end; at += read<uint32_t>(at + 4) + read<uint64_t>(at + 8)) {
    const char* code = at + read<uint32_t>(at + 4);
    if (read<uint16_t>(at) == 2 && is_cubin(code)) return code;
  }
  return image;
}

}  // namespace

void read_image(const void* bytes, Library& library) {
  const char* code = code_of(static_cast<const char*>(bytes));
  if (!is_cubin(code)) return;
  library.image.assign(code, code + image_size(code));
  // From version 8 of the ABI on, the architecture stands one byte higher.
  const Elf64_Ehdr header = header_of(code);
  library.capability = header.e_flags >> (header.e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff;
  read_symbols(library);
}
