/* The functions that kernels compiled with sanitize= call before each memory access, and for undefined behaviour.
 *
 * g++'s own sanitizer libraries must be loaded before all others, and do not know the extent of a tensor in its
 * allocation. Here an access is valid if it lies in a tensor of the call, in the shared memory that the launch asked
 * for, on a thread's stack, or in the library's own data.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "worker.h"

extern "C" __attribute__((visibility("hidden"))) thread_local char __jitload_dynamic_shared[];

namespace {

/* An access within this many bytes of a tensor is assumed to be meant for it: with other memory at hand, within the bytes
 * that malloc() leaves between two allocations. */
constexpr uintptr_t kNear = 1 << 16, kVeryNear = 16;

Memory memory_at(const void* begin, size_t size) { return {(uintptr_t)begin, (uintptr_t)begin + size}; }

/* Return the tensor that is nearest to an access, or NULL if none is near. */
const jitload_cpu_region* nearest_tensor(const jitload_cpu_launch* call, uintptr_t address) {
  const jitload_cpu_region* nearest = NULL;
  uintptr_t least = call->has_addresses ? kVeryNear : kNear;
  for (int i = 0; i < call->tensor_count; ++i) {
    const jitload_cpu_region* tensor = &call->tensors[i];
    const uintptr_t distance = address < tensor->begin ? tensor->begin - address
                               : address < tensor->end ? 0 : address - tensor->end;
    if (distance <= least) least = distance, nearest = tensor;
  }
  return nearest;
}

bool is_dynamic_shared(uintptr_t address) {
  const uintptr_t begin = (uintptr_t)__jitload_dynamic_shared;
  return contains({begin, begin + JITLOAD_MOST_SHARED}, address);
}

/* Write where an access is, such as "at byte 4 of 'x', which has 4 bytes". */
void describe_address(const jitload_cpu_launch* call, uintptr_t address, char* text, size_t size) {
  const jitload_cpu_region* tensor = nearest_tensor(call, address);
  if (is_dynamic_shared(address)) {
    snprintf(text, size, "at byte %zu of dynamic shared memory, which has %u bytes",
             (size_t)(address - (uintptr_t)__jitload_dynamic_shared), call->block.shared_bytes);
  } else if (contains(own_memory.thread_local_data, address)) {
    snprintf(text, size, "in shared memory");
  } else if (contains(own_memory.library, address)) {
    snprintf(text, size, "in a variable of the module");
  } else if (tensor == NULL) {
    snprintf(text, size, "at address 0x%zx, which is in no tensor", (size_t)address);
  } else {
    snprintf(text, size, "at byte %zd of '%s', which has %zu bytes", (ssize_t)(address - tensor->begin), tensor->name,
             (size_t)(tensor->end - tensor->begin));
  }
}

__attribute__((noinline)) void report_access(Worker* worker, uintptr_t address, size_t size, bool is_write,
                                             const void* code, const char* problem) {
  const jitload_cpu_launch* call = worker->launch->call;
  /* One of the call's addresses may point to this memory. */
  if (call->has_addresses && !is_dynamic_shared(address) && nearest_tensor(call, address) == NULL) return;
  char place[256];
  describe_address(call, address, place, sizeof place);
  worker->fault_address = (const char*)code - 1; /* the return address is after the call instruction */
  fail(worker, worker->current->index, "%s of %zu bytes %s%s,", is_write ? "a write" : "a read", size, place, problem);
  leave(worker);
}

/* Return whether memory is that of threads and warps, which no others access. */
inline bool is_of_threads(const Worker* worker, uintptr_t begin, size_t size) {
  const size_t warps = worker->warps == NULL ? 0 : worker->capacity / kWarp + 1;
  return contains(kernel_stacks(worker), begin, size) ||
         contains(memory_at(worker->warps, warps * sizeof(Warp)), begin, size);
}

/* Return whether an access touches dynamic shared memory that the launch did not ask for. */
inline bool is_unused_shared(const Worker* worker, uintptr_t begin, size_t size) {
  const uintptr_t shared = (uintptr_t)__jitload_dynamic_shared;
  const bool is_beyond = begin + size > shared + worker->block.shared_bytes && begin < shared + JITLOAD_MOST_SHARED;
  return begin >= shared && is_beyond;
}

inline void check(const void* memory, size_t size, bool is_write, const void* code) {
  Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL || worker->current == NULL || size == 0) return;
  const jitload_cpu_launch* call = worker->launch->call;
  const uintptr_t begin = (uintptr_t)memory;
  for (int i = 0; i < call->tensor_count; ++i) {
    if (contains({call->tensors[i].begin, call->tensors[i].end}, begin, size)) return;
  }
  if (is_of_threads(worker, begin, size)) return;
  if (contains(own_memory.thread_local_data, begin, size) && !is_unused_shared(worker, begin, size)) return;
  if (contains(own_memory.library, begin, size)) return;
  if (contains(memory_at(worker, sizeof *worker), begin, size) || contains(own_memory.stack, begin, size)) return;
  if (contains(memory_at(worker->fibers, worker->capacity * sizeof(Fiber)), begin, size)) return;
  if (contains({call->param_memory.begin, call->param_memory.end}, begin, size)) return;
  report_access(worker, begin, size, is_write, code, "");
}

/* addr2line prints a line for each function that is inlined at the address. The user's own line is the first one that is
 * not in jitload's headers. */
void append_line(Launch* launch, const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return;
  char command[4352] = "addr2line -i -e '", line[512], place[256] = "";
  char* end = command + strlen(command);
  for (const char* c = info.dli_fname; *c != 0 && end < command + sizeof command - 64; *end++ = *c++) {
    if (*c == '\'') end = stpcpy(end, "'\\'"); /* before the quote itself, for the shell */
  }
  const size_t offset = (size_t)((const char*)address - (const char*)info.dli_fbase);
  snprintf(end, 64, "' 0x%zx 2>/dev/null", offset);
  FILE* lines = popen(command, "re");
  while (lines != NULL && fgets(line, sizeof line, lines) != NULL) {
    line[strcspn(line, "\n")] = 0;
    char* discriminator = strstr(line, " (discriminator");
    if (discriminator != NULL) *discriminator = 0;
    if (strstr(line, "/jitload_cpu") != NULL || line[0] == '?' || place[0] != 0) continue;
    const char* name = strrchr(line, '/');
    const size_t colon = strcspn(line, ":");
    line[colon] = 0;
    const bool is_file = access(line, F_OK) == 0;
    line[colon] = ':';
    snprintf(place, sizeof place, "%s", is_file || name == NULL ? line : name + 1);
  }
  if (lines != NULL) pclose(lines);
  const size_t used = strlen(launch->error);
  snprintf(launch->error + used, sizeof launch->error - used, ", at %s",
           place[0] != 0 ? place : "an unknown line (addr2line of binutils finds it)");
}

/* ---- undefined behaviour --------------------------------------------------------------------------------------- */

struct Type {
  uint16_t kind;
  uint16_t facts;
  char name[1];
};

}  // namespace

#define JITLOAD_CHECKS_(size)                                         \
  extern "C" void __asan_load##size##_noabort(const void* address) {  \
    check(address, size, false, __builtin_return_address(0));         \
  }                                                                   \
  extern "C" void __asan_store##size##_noabort(const void* address) { \
    check(address, size, true, __builtin_return_address(0));          \
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
extern "C" void jitload_cpu_check(const void* memory, size_t size, int is_write, const void* code) {
  check(memory, size, is_write, code);
}

#include "races.cc" /* as in run.cc */

static void check_range(const void* memory, size_t size, bool is_write, const void* code) {
  const Worker* worker = jitload_cpu_current_worker;
  if (worker == NULL || worker->current == NULL) return; /* the runtime itself copies memory */
  if (has_race_checks) return watch_access(memory, size, is_write, false, code);
  check(memory, size, is_write, code);
}

extern "C" void* __real_memset(void* to, int value, size_t size);
extern "C" void* __real_memcpy(void* to, const void* from, size_t size);
extern "C" void* __real_memmove(void* to, const void* from, size_t size);
extern "C" void* __wrap_memset(void* to, int value, size_t size) {
  check_range(to, size, true, __builtin_return_address(0));
  return __real_memset(to, value, size);
}
extern "C" void* __wrap_memcpy(void* to, const void* from, size_t size) {
  check_range(from, size, false, __builtin_return_address(0));
  check_range(to, size, true, __builtin_return_address(0));
  return __real_memcpy(to, from, size);
}
extern "C" void* __wrap_memmove(void* to, const void* from, size_t size) {
  check_range(from, size, false, __builtin_return_address(0));
  check_range(to, size, true, __builtin_return_address(0));
  return __real_memmove(to, from, size);
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const void* data, uintptr_t index) {
  const Type* array = *(const Type* const*)((const Location*)data + 1);
  char text[256];
  snprintf(text, sizeof text, "index %lld of an array %s", (long long)index, array->name);
  undefined((const Location*)data, text);
}

extern "C" void __ubsan_handle_float_cast_overflow_abort(const void* data, uintptr_t) {
  const Type* to = ((const Type* const*)((const Location*)data + 1))[1];
  char text[256];
  snprintf(text, sizeof text, "a floating-point number out of the range of %s, which a GPU would saturate,", to->name);
  undefined((const Location*)data, text);
}

#define JITLOAD_UNDEFINED_(name, problem) \
  extern "C" void __ubsan_handle_##name##_abort(const void* data) { undefined((const Location*)data, problem); }
JITLOAD_UNDEFINED_(add_overflow, "a signed addition that overflows")
JITLOAD_UNDEFINED_(sub_overflow, "a signed subtraction that overflows")
JITLOAD_UNDEFINED_(mul_overflow, "a signed multiplication that overflows")
JITLOAD_UNDEFINED_(negate_overflow, "a negation that overflows")
JITLOAD_UNDEFINED_(shift_out_of_bounds, "a shift by too many bits, by a negative number, or out of a signed number,")
JITLOAD_UNDEFINED_(type_mismatch_v1, "an access through a pointer that is null, misaligned, or of too small an object,")
JITLOAD_UNDEFINED_(pointer_overflow, "a pointer that overflows")
JITLOAD_UNDEFINED_(vla_bound_not_positive, "an array of no positive size")
JITLOAD_UNDEFINED_(load_invalid_value, "a bool or an enum with a value that its type does not have")
JITLOAD_UNDEFINED_(invalid_builtin, "__builtin_clz or __builtin_ctz of zero")
JITLOAD_UNDEFINED_(nonnull_arg, "a null pointer for a parameter that must not be one")
JITLOAD_UNDEFINED_(alignment_assumption, "a pointer that is not aligned as was promised")
extern "C" void __ubsan_handle_builtin_unreachable(const void* data) {
  undefined((const Location*)data, "__builtin_unreachable() was reached");
}
extern "C" void __ubsan_handle_missing_return(const void* data) {
  undefined((const Location*)data, "the end of a function that returns a value, without a return,");
}
