// The frame of a driver call (forced failures, what a call needs) and the functions that tests control the stub with.
#include <cstdio>
#include <cstdlib>

#include "stub.h"

State& state = *new State;  // never destroyed: threads of Python may outlive static objects

namespace {

enum { CAPTURE_GLOBAL = 0, CAPTURE_RELAXED = 2 };

bool is_refused_in_capture() {
  const Thread& thread = this_thread();
  if (!state.is_capturing || thread.capture_mode == CAPTURE_RELAXED) return false;
  return thread.capture_mode == CAPTURE_GLOBAL || state.capturing_thread == thread.ordinal;
}

int forced_result(const std::string& name) {
  for (Failure& failure : state.failures) {
    if (failure.name != name || failure.count == 0) continue;
    if (failure.skip > 0) return --failure.skip, 0;
    if (failure.count > 0) --failure.count;
    return failure.result;
  }
  return 0;
}

// A process that has no test code in it leaves its log in a file.
__attribute__((destructor)) void save_log() {
  const char* path = getenv("STUB_CUDA_LOG");
  FILE* file = path != nullptr && !state.log.empty() ? fopen(path, "a") : nullptr;
  if (file == nullptr) return;
  fputs(state.log.c_str(), file);
  fclose(file);
}

// The attributes of an H100 that a launcher asks for, by their numbers in cuda.h.
const std::map<int, int> kAttributes = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
    {12, 65536}, {16, 132}, {31, 1}, {39, 2048}, {41, 1}, {75, 9}, {76, 0}, {81, 233472}, {82, 65536}, {83, 1}, {95, 1},
    {97, 232448}, {106, 32}, {111, 1024}, {115, 1}, {120, 1}, {127, 1},
};

}  // namespace

void begin(const char* name, int needs) {
  if (const int forced = forced_result(name)) throw Refusal{forced};
  check(!(needs & NEEDS_INIT) || state.initialized_by == getpid(), NOT_INITIALIZED);
  if ((needs & NEEDS_CONTEXT) == NEEDS_CONTEXT) {
    check(current_context() != nullptr, INVALID_CONTEXT);
    check(current_context()->is_active, CONTEXT_IS_DESTROYED);
  }
  check(!(needs & IS_UNSAFE_IN_CAPTURE) || !is_refused_in_capture(), STREAM_CAPTURE_UNSUPPORTED);
}

Thread& this_thread() {
  thread_local Thread& thread = *new Thread;  // never destroyed: libraries are unloaded at the end of the process
  if (thread.ordinal == 0) thread.ordinal = ++state.thread_count;
  if (thread.generation != state.generation) thread = {state.generation, thread.ordinal, CAPTURE_GLOBAL, {}};
  return thread;
}

Context* current_context() { return this_thread().stack.empty() ? nullptr : this_thread().stack.back(); }
int current_device() { return current_context() != nullptr ? current_context()->device : -1; }
void mark_initialized() { state.initialized_by = state.first_initialized_by = getpid(); }

// ---- what tests call -------------------------------------------------------------------------------------------------

// Libraries, kernels and their attributes stay: code that this process has loaded holds their handles.
API void stub_reset() {
  std::lock_guard<std::mutex> guard(state.lock);
  ++state.generation;
  state.log.clear(), state.failures.clear(), state.streams.clear(), state.contexts.clear();
  state.initialized_by = state.first_initialized_by;
  state.device_count = 2;
  state.is_capturing = false;
  state.attributes.fill(kAttributes);
  for (int i = 0; i < kMaxDevices; ++i) state.primary[i] = {i};
}
static const bool kIsReset = (stub_reset(), true);

// Copy the log, and return the size of all of it.
API size_t stub_log_read(char* text, size_t capacity) {
  std::lock_guard<std::mutex> guard(state.lock);
  state.log.copy(text, capacity);
  return state.log.size();
}

API void stub_log_clear() {
  std::lock_guard<std::mutex> guard(state.lock);
  state.log.clear();
}

API void stub_fail(const char* name, int result, int skip, int count) {
  std::lock_guard<std::mutex> guard(state.lock);
  state.failures.push_back({name, result, skip, count});
}

API void stub_set_initialized(int is_initialized) { state.initialized_by = is_initialized ? getpid() : 0; }
API void stub_set_device_count(int count) { state.device_count = count; }
API void stub_set_attribute(int device, int attribute, int value) { state.attributes.at(device)[attribute] = value; }

API void stub_set_primary_active(int device, int is_active) {
  state.primary.at(device) = {device, is_active, is_active != 0};
}

// The capture, of mode "global", is taken to be this thread's.
API void stub_set_capturing(int is_capturing) {
  state.is_capturing = is_capturing;
  state.capturing_thread = this_thread().ordinal;
}

API int stub_current_device() { return current_device(); }

// Make the device's primary context this thread's current one, as a framework does; -1 for no context at all.
API void stub_use_device(int device) {
  std::lock_guard<std::mutex> guard(state.lock);
  this_thread().stack.clear();
  if (device < 0) return;
  mark_initialized();
  Context& context = state.primary.at(device);
  context = {device, context.references != 0 ? context.references : 1, true};
  this_thread().stack.push_back(&context);
}

// Make a context beside the primary one, as cuCtxCreate or a green context gives.
API Context* stub_create_context(int device) { return &state.contexts.emplace_back(Context{device, 0, true}); }

// Make a stream that belongs to a device: launching to it with another device current is refused.
API void* stub_create_stream(int device) { return &state.streams.emplace_back(device); }

// Memory at an address belongs to a device from now on, and until a later call says something else.
API void stub_place(uint64_t address, size_t size, int device) { state.places.push_back({address, size, device}); }
