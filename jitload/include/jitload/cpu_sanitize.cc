/* What kernels compiled with sanitize= call before they touch memory, and when they do what C++ leaves undefined.
 *
 * g++'s own runtime libraries want to be the first in a process, and know nothing of a tensor's extent inside its
 * allocation. Here an access is right where it lies in a tensor of the call, in the shared memory that the launch asked
 * for, on a thread's stack, or in the library's own data.
 */
#include <dlfcn.h>
#include <link.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu_worker.h"

extern "C" __attribute__((visibility("hidden"))) thread_local char __jitload_dynamic_shared[];

namespace {

constexpr uintptr_t kNear = 1 << 16; /* so far beyond a tensor an access is taken to be about it */

struct Range {
  uintptr_t begin, end;
};

/* What belongs to the library, and to this thread. */
struct Known {
  Range segments[8];
  int count;
  Range of_thread;
  Range stack;
  bool is_complete;
};
thread_local Known known;

int add_segments(struct dl_phdr_info* info, size_t, void*) {
  const uintptr_t here = (uintptr_t)&add_segments;
  bool is_ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    is_ours |= info->dlpi_phdr[i].p_type == PT_LOAD && here >= begin && here < begin + info->dlpi_phdr[i].p_memsz;
  }
  if (!is_ours) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && known.count < 8) known.segments[known.count++] = {begin, begin + part.p_memsz};
    const uintptr_t data = (uintptr_t)info->dlpi_tls_data;
    if (part.p_type == PT_TLS && data != 0) known.of_thread = {data, data + part.p_memsz};
  }
  return 1;
}

void get_known() {
  known.count = 0;
  dl_iterate_phdr(add_segments, NULL);
  pthread_attr_t attributes;
  void* low = NULL;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
  }
  known.stack = {(uintptr_t)low, (uintptr_t)low + size};
  known.is_complete = true;
}

inline bool holds(Range range, uintptr_t begin, uintptr_t end) { return begin >= range.begin && end <= range.end; }

Range range_of(const void* begin, size_t size) { return {(uintptr_t)begin, (uintptr_t)begin + size}; }

/* The tensor that an access misses by the least, if it comes near to one. */
const jitload_cpu_region* nearest(const jitload_cpu_launch* call, uintptr_t address) {
  const jitload_cpu_region* found = NULL;
  uintptr_t least = kNear;
  for (int i = 0; i < call->region_count; ++i) {
    const jitload_cpu_region* region = &call->regions[i];
    const uintptr_t by = address < region->begin ? region->begin - address
                         : address < region->end ? 0 : address - region->end;
    if (by <= least) least = by, found = region;
  }
  return found;
}

[[noreturn]] void report(Worker* self, const void* where, const char* text) {
  self->where = where;
  fail(self, self->current->index, "%s", text);
  leave(self);
}

__attribute__((noinline)) void refuse(Worker* self, uintptr_t address, size_t size, bool is_write, const void* where) {
  const jitload_cpu_launch* call = self->launch->call;
  where = (const char*)where - 1; /* in the call, not behind it */
  const char* access = is_write ? "a write" : "a read";
  const uintptr_t shared = (uintptr_t)__jitload_dynamic_shared;
  char text[320];
  if (address >= shared && address < shared + JITLOAD_MOST_SHARED) {
    snprintf(text, sizeof text, "%s of %zu bytes at byte %zu of dynamic shared memory, which has %u bytes,", access, size,
             (size_t)(address - shared), call->place.shared_bytes);
    report(self, where, text);
  }
  const jitload_cpu_region* region = nearest(call, address);
  if (region == NULL) {
    if (call->has_addresses) return; /* it may be what such an address points to */
    snprintf(text, sizeof text, "%s of %zu bytes at address 0x%zx, which is in no tensor,", access, size, (size_t)address);
  } else if (address < region->begin) {
    snprintf(text, sizeof text, "%s of %zu bytes, %zu before the first byte of '%s',", access, size,
             (size_t)(region->begin - address), region->name);
  } else {
    snprintf(text, sizeof text, "%s of %zu bytes at byte %zu of '%s', which has %zu bytes,", access, size,
             (size_t)(address - region->begin), region->name, (size_t)(region->end - region->begin));
  }
  report(self, where, text);
}

inline void check(const void* memory, size_t size, bool is_write, const void* where) {
  Worker* self = jitload_cpu_here;
  if (self == NULL || !self->is_in_fibers || size == 0) return;
  const jitload_cpu_launch* call = self->launch->call;
  const uintptr_t begin = (uintptr_t)memory, end = begin + size;
  for (int i = 0; i < call->region_count; ++i) {
    if (begin >= call->regions[i].begin && end <= call->regions[i].end) return;
  }
  if (holds(range_of(self->stacks, self->capacity * kStack), begin, end)) return;
  if (!known.is_complete) get_known();
  if (holds(known.of_thread, begin, end)) {
    const uintptr_t shared = (uintptr_t)__jitload_dynamic_shared;
    const bool is_beyond = end > shared + call->place.shared_bytes && begin < shared + JITLOAD_MOST_SHARED;
    if (begin < shared || !is_beyond) return;
    return refuse(self, begin, size, is_write, where);
  }
  for (int i = 0; i < known.count; ++i) {
    if (holds(known.segments[i], begin, end)) return;
  }
  if (holds(range_of(self, sizeof *self), begin, end) || holds(known.stack, begin, end)) return;
  if (holds(range_of(self->warps, (self->capacity / kWarp + 1) * sizeof(Warp)), begin, end)) return;
  if (holds(range_of(self->fibers, self->capacity * sizeof(Fiber)), begin, end)) return;
  if (holds({call->values.begin, call->values.end}, begin, end)) return;
  refuse(self, begin, size, is_write, where);
}

/* Ask addr2line, which comes with the compiler, for the user's own line: the first that is not of our headers. */
void read_line(int from, char* text, size_t size) {
  FILE* lines = fdopen(from, "r");
  char line[512];
  text[0] = 0;
  while (lines != NULL && fgets(line, sizeof line, lines) != NULL) {
    line[strcspn(line, "\n")] = 0;
    char* discriminator = strstr(line, " (discriminator");
    if (discriminator != NULL) *discriminator = 0;
    if (strstr(line, "/jitload_cpu") != NULL || line[0] == '?' || text[0] != 0) continue;
    const char* name = strrchr(line, '/');
    const size_t colon = strcspn(line, ":");
    line[colon] = 0;
    const bool is_file = access(line, F_OK) == 0;
    line[colon] = ':';
    snprintf(text, size, "%s", is_file || name == NULL ? line : name + 1);
  }
  if (lines != NULL) fclose(lines);
}

void name_line(Launch* launch) {
  Dl_info info;
  int ends[2];
  if (dladdr(launch->where, &info) == 0 || pipe2(ends, O_CLOEXEC) != 0) return;
  char offset[32];
  snprintf(offset, sizeof offset, "0x%zx", (size_t)((const char*)launch->where - (const char*)info.dli_fbase));
  const char* const command[] = {"addr2line", "-i", "-e", info.dli_fname, offset, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  pid_t child = 0;
  const int code = posix_spawnp(&child, command[0], &actions, NULL, (char* const*)command, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char line[256] = "";
  read_line(ends[0], line, sizeof line);
  if (code == 0) waitpid(child, NULL, 0);
  const size_t used = strlen(launch->error);
  snprintf(launch->error + used, sizeof launch->error - used, ", at %s",
           line[0] != 0 ? line : "an unknown line (addr2line of binutils finds it)");
}

/* ---- undefined behaviour ---------------------------------------------------------------------------------------- */

struct Place {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct Type {
  uint16_t kind;
  uint16_t facts;
  char name[1];
};

[[noreturn]] void undefined(const Place* place, const char* what) {
  Worker* self = jitload_cpu_here;
  char text[320];
  snprintf(text, sizeof text, "%s at %s:%u", what, place->file != NULL ? place->file : "?", place->line);
  fail(self, self->current->index, "%s", text);
  leave(self);
}

}  // namespace

#define JITLOAD_CHECKS_(size)                                                                      \
  extern "C" void __asan_load##size##_noabort(const void* address) {                               \
    check(address, size, false, __builtin_return_address(0));                                      \
  }                                                                                                \
  extern "C" void __asan_store##size##_noabort(const void* address) {                              \
    check(address, size, true, __builtin_return_address(0));                                       \
  }
JITLOAD_CHECKS_(1)
JITLOAD_CHECKS_(2)
JITLOAD_CHECKS_(4)
JITLOAD_CHECKS_(8)
JITLOAD_CHECKS_(16)
extern "C" void __asan_loadN_noabort(const void* address, size_t size) {
  check(address, size, false, __builtin_return_address(0));
}
extern "C" void __asan_storeN_noabort(const void* address, size_t size) {
  check(address, size, true, __builtin_return_address(0));
}
extern "C" void __asan_handle_no_return() {}

extern "C" void* __real_memset(void* to, int value, size_t size);
extern "C" void* __real_memcpy(void* to, const void* from, size_t size);
extern "C" void* __real_memmove(void* to, const void* from, size_t size);
extern "C" void* __wrap_memset(void* to, int value, size_t size) {
  check(to, size, true, __builtin_return_address(0));
  return __real_memset(to, value, size);
}
extern "C" void* __wrap_memcpy(void* to, const void* from, size_t size) {
  check(from, size, false, __builtin_return_address(0));
  check(to, size, true, __builtin_return_address(0));
  return __real_memcpy(to, from, size);
}
extern "C" void* __wrap_memmove(void* to, const void* from, size_t size) {
  check(from, size, false, __builtin_return_address(0));
  check(to, size, true, __builtin_return_address(0));
  return __real_memmove(to, from, size);
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const void* data, uintptr_t index) {
  const Type* array = *(const Type* const*)((const Place*)data + 1);
  char text[256];
  snprintf(text, sizeof text, "index %lld of an array %s", (long long)index, array->name);
  undefined((const Place*)data, text);
}

extern "C" void __ubsan_handle_float_cast_overflow_abort(const void* data, uintptr_t) {
  const Type* to = ((const Type* const*)((const Place*)data + 1))[1];
  char text[256];
  snprintf(text, sizeof text, "a floating-point number out of the range of %s, which a GPU would saturate,", to->name);
  undefined((const Place*)data, text);
}

#define JITLOAD_UNDEFINED_(name, what) \
  extern "C" void __ubsan_handle_##name##_abort(const void* data) { undefined((const Place*)data, what); }
JITLOAD_UNDEFINED_(add_overflow, "a signed addition that overflows")
JITLOAD_UNDEFINED_(sub_overflow, "a signed subtraction that overflows")
JITLOAD_UNDEFINED_(mul_overflow, "a signed multiplication that overflows")
JITLOAD_UNDEFINED_(negate_overflow, "a negation that overflows")
JITLOAD_UNDEFINED_(divrem_overflow, "a division by zero, or one that overflows,")
JITLOAD_UNDEFINED_(shift_out_of_bounds, "a shift by too many bits, by a negative number, or out of a signed number,")
JITLOAD_UNDEFINED_(type_mismatch_v1, "an access through a pointer that is null, misaligned, or of too small an object,")
JITLOAD_UNDEFINED_(pointer_overflow, "a pointer that overflows")
JITLOAD_UNDEFINED_(vla_bound_not_positive, "an array of no positive size")
JITLOAD_UNDEFINED_(load_invalid_value, "a bool or an enum with a value that its type has not")
JITLOAD_UNDEFINED_(invalid_builtin, "__builtin_clz or __builtin_ctz of zero")
JITLOAD_UNDEFINED_(nonnull_arg, "a null pointer for a parameter that must not be one")
JITLOAD_UNDEFINED_(alignment_assumption, "a pointer that is not aligned as was promised")
extern "C" void __ubsan_handle_builtin_unreachable(const void* data) {
  undefined((const Place*)data, "__builtin_unreachable() was reached");
}
extern "C" void __ubsan_handle_missing_return(const void* data) {
  undefined((const Place*)data, "the end of a function that returns a value, without a return,");
}
