// What the parts of the stub libcuda.so.1 share: what the driver knows, and the frame of a call.
//
// The stub keeps the driver's contracts that a launcher can get wrong (contexts, handles, parameter bytes, capture)
// and records every call. Nothing of CUDA is needed to build it.
#pragma once
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Code {
  INVALID_VALUE = 1,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  CONTEXT_IS_DESTROYED = 709,
  STREAM_CAPTURE_UNSUPPORTED = 900,
  INVALID_CLUSTER_SIZE = 912,
};
constexpr int kMaxDevices = 16;

struct Context {
  int device;
  int references = 0;  // of a primary context
  bool is_active = false;
};

struct Kernel;

// A kernel on a device.
struct Function {
  Kernel* kernel;
  int device;
  int max_dynamic_shared;
  bool allows_non_portable_cluster = false;
};

struct Slot {
  uint32_t offset = 0, size = 0;
};

struct Library;

struct Kernel {
  Library* library;
  std::string name;
  std::vector<Slot> slots;
  size_t param_bytes = 0;
  int static_shared = 0, max_threads = 1024;
  std::array<uint32_t, 3> cluster{};  // __cluster_dims__, or zeros
  std::array<Function, kMaxDevices> functions;
};

struct Variable {
  size_t size;
  std::vector<char> initial;
  std::array<void*, kMaxDevices> copies{};
};

struct Library {
  std::vector<char> image;  // our copy, or nothing where the bytes are no cubin
  int capability = 0;       // 90 for sm_90
  bool is_loaded = true;
  std::list<Kernel> kernels;
  std::map<std::string, Variable> variables;
};

// Read a cubin's kernels and variables.
void read_image(const void* code, Library& library);

// What one thread of the driver knows; `generation` tells a state from before the last stub_reset().
struct Thread {
  unsigned generation = 0;
  int ordinal = 0;
  int capture_mode = 0;
  std::vector<Context*> stack;
};

struct Failure {
  std::string name;
  int result, skip, count;  // a count below zero is for ever
};

struct Place {
  uint64_t address;
  size_t size;
  int device;
};

struct State {
  std::mutex lock;
  std::string log;
  unsigned generation = 0;
  int thread_count = 0;
  pid_t initialized_by = 0, first_initialized_by = 0;  // a forked child has a driver that was never initialised
  std::list<Library> libraries;
  std::vector<Place> places;
  // What stub_reset() restores.
  int device_count;
  std::array<std::map<int, int>, kMaxDevices> attributes;
  std::array<Context, kMaxDevices> primary;
  std::deque<Context> contexts;  // made by tests
  std::deque<int> streams;       // the device of each
  std::vector<Failure> failures;
  bool is_capturing;
  int capturing_thread;
};
extern State& state;

struct Refusal {
  int code;
};
inline void check(bool holds, Code code = INVALID_VALUE) {
  if (!holds) throw Refusal{code};
}

// The kernel behind a handle; `function` is set where the handle is a CUfunction.
Kernel& find_kernel(const void* handle, Function** function);
// The function behind a handle on a device, whose fields are written; for a CUkernel, on the device that is named.
Function& find_function(const void* handle, int device, std::ostream& out);
int stream_device(const void* stream);  // -1 for a stream that no test made

Thread& this_thread();
Context* current_context();
int current_device();  // -1 without a context
void mark_initialized();

// What must hold before a call does anything.
enum { NEEDS_NOTHING = 0, NEEDS_INIT = 1, NEEDS_CONTEXT = 3, IS_UNSAFE_IN_CAPTURE = 4 };
void begin(const char* name, int needs);

// Do the work of a driver call under the lock, and record the call with the fields that the work writes.
template <class Work>
int call(const char* name, int needs, Work work) {
  std::lock_guard<std::mutex> guard(state.lock);
  std::ostringstream fields;
  int result = 0;
  try {
    begin(name, needs);
    work(fields);
  } catch (const Refusal& refusal) {
    result = refusal.code;
  }
  std::ostringstream line;
  line << name << " result=" << result << " thread=" << this_thread().ordinal << fields.str() << "\n";
  state.log += line.str();
  return result;
}
