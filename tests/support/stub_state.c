/* The frame of a driver call (lock, forced failures, log) and the functions that tests control the stub with. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

#define MAX_RULES 32
#define MAX_STREAMS 64
#define MAX_CONTEXTS 64

typedef struct failure_rule {
  char name[64];
  CUresult result;
  int skip;
  int count; /* below zero: for ever */
} failure_rule;

stub_settings stub_config;
struct stub_context stub_primary[STUB_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local stub_thread this_thread;
static _Thread_local const char* this_call;
static unsigned generation = 1;
static int thread_count;
static pid_t initialized_by, first_initialized_by; /* a forked child has a driver that was never initialised */

static failure_rule rules[MAX_RULES];
static int rule_count;
static struct stub_context contexts[MAX_CONTEXTS]; /* made by tests */
static int context_count;
static struct { CUdevice device; } streams[MAX_STREAMS];
static int stream_count;

static char* log_text;
static size_t log_size, log_capacity;

/* ---- the log --------------------------------------------------------------------------------------------------- */

static void append(const char* text, size_t size) {
  if (log_size + size > log_capacity) {
    log_capacity = 2 * (log_size + size) + 4096;
    log_text = realloc(log_text, log_capacity);
    if (log_text == NULL) abort();
  }
  memcpy(log_text + log_size, text, size);
  log_size += size;
}

CUresult stub_end(CUresult result, const char* format, ...) {
  char head[128], *fields = NULL;
  va_list arguments;
  va_start(arguments, format);
  const int size = vasprintf(&fields, format, arguments);
  va_end(arguments);
  if (size < 0) abort();
  append(head, (size_t)snprintf(head, sizeof head, "%s result=%d thread=%d%s", this_call, result,
                                stub_this_thread()->ordinal, size > 0 ? " " : ""));
  append(fields, (size_t)size);
  append("\n", 1);
  free(fields);
  pthread_mutex_unlock(&lock);
  return result;
}

const char* stub_quote(const char* text) {
  static char quoted[4096];
  size_t size = 0;
  for (; text != NULL && *text != 0 && size + 4 < sizeof quoted; ++text) {
    const unsigned char c = (unsigned char)*text;
    const int is_plain = c > ' ' && c < 127 && c != '%';
    size += (size_t)snprintf(quoted + size, sizeof quoted - size, is_plain ? "%c" : "%%%02x", c);
  }
  quoted[size] = 0;
  return quoted;
}

/* A process that has no test code in it leaves its log in a file. */
__attribute__((destructor)) static void save_log(void) {
  const char* path = getenv("STUB_CUDA_LOG");
  FILE* file = path != NULL && log_size != 0 ? fopen(path, "a") : NULL;
  if (file == NULL) return;
  fwrite(log_text, 1, log_size, file);
  fclose(file);
}

/* ---- the frame of a call --------------------------------------------------------------------------------------- */

static CUresult forced_result(const char* name) {
  for (int i = 0; i < rule_count; ++i) {
    failure_rule* rule = &rules[i];
    if (strcmp(rule->name, name) != 0 || rule->count == 0) continue;
    if (rule->skip > 0) {
      --rule->skip;
      return CUDA_SUCCESS;
    }
    if (rule->count > 0) --rule->count;
    return rule->result;
  }
  return CUDA_SUCCESS;
}

static int is_refused_in_capture(const stub_thread* thread) {
  if (!stub_config.is_capturing || thread->capture_mode == CAPTURE_RELAXED) return 0;
  return thread->capture_mode == CAPTURE_GLOBAL || stub_config.capturing_thread == thread->ordinal;
}

CUresult stub_begin(const char* name, int needs) {
  pthread_mutex_lock(&lock);
  this_call = name;
  const CUresult forced = forced_result(name);
  if (forced != CUDA_SUCCESS) return forced;
  if ((needs & NEEDS_INIT) && initialized_by != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if ((needs & NEEDS_CONTEXT) == NEEDS_CONTEXT) {
    const CUcontext context = stub_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->is_active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if ((needs & IS_UNSAFE_IN_CAPTURE) && is_refused_in_capture(stub_this_thread())) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

stub_thread* stub_this_thread(void) {
  stub_thread* thread = &this_thread;
  if (thread->ordinal == 0) thread->ordinal = ++thread_count;
  if (thread->generation != generation) {
    thread->generation = generation;
    thread->depth = 0;
    thread->capture_mode = CAPTURE_GLOBAL;
  }
  return thread;
}

CUcontext stub_current(void) {
  const stub_thread* thread = stub_this_thread();
  return thread->depth > 0 ? thread->stack[thread->depth - 1] : NULL;
}

CUdevice stub_device_of_current(void) {
  const CUcontext context = stub_current();
  return context != NULL ? context->device : -1;
}

void stub_mark_initialized(void) { initialized_by = first_initialized_by = getpid(); }

int stub_is_context(CUcontext context) {
  for (int i = 0; i < stub_config.device_count; ++i) {
    if (context == &stub_primary[i]) return 1;
  }
  return context >= contexts && context < contexts + context_count;
}

int stub_stream_device(CUstream stream) {
  for (int i = 0; i < stream_count; ++i) {
    if (stream == (CUstream)&streams[i]) return streams[i].device;
  }
  return -1;
}

/* ---- what tests call ------------------------------------------------------------------------------------------- */

static void set_default_attributes(int* attributes) {
  static const int defaults[][2] = {
      {DEVICE_MAX_THREADS_PER_BLOCK, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
      {DEVICE_MAX_SHARED_PER_BLOCK, 49152}, {9, 65536}, {10, 32}, {12, 65536}, {DEVICE_MULTIPROCESSORS, 132}, {31, 1},
      {DEVICE_THREADS_PER_MULTIPROCESSOR, 2048}, {41, 1}, {DEVICE_MAJOR, 9}, {DEVICE_MINOR, 0},
      {DEVICE_SHARED_PER_MULTIPROCESSOR, 233472}, {DEVICE_REGISTERS_PER_MULTIPROCESSOR, 65536}, {83, 1},
      {DEVICE_COOPERATIVE_LAUNCH, 1}, {DEVICE_MAX_SHARED_OPTIN, 232448}, {DEVICE_BLOCKS_PER_MULTIPROCESSOR, 32},
      {DEVICE_RESERVED_SHARED, 1024}, {115, 1}, {DEVICE_CLUSTER_LAUNCH, 1}, {127, 1},
  };
  memset(attributes, 0, DEVICE_ATTRIBUTE_COUNT * sizeof(int));
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; ++i) attributes[defaults[i][0]] = defaults[i][1];
}

/* Libraries, kernels and their attributes stay: code that this process has loaded holds their handles. */
STUB_API __attribute__((constructor)) void stub_reset(void) {
  pthread_mutex_lock(&lock);
  ++generation;
  log_size = 0;
  rule_count = 0;
  stream_count = 0;
  context_count = 0;
  initialized_by = first_initialized_by;
  memset(&stub_config, 0, sizeof stub_config);
  stub_config.device_count = 2;
  stub_config.driver_version = 13000;
  for (int i = 0; i < STUB_MAX_DEVICES; ++i) {
    set_default_attributes(stub_config.attributes[i]);
    stub_primary[i] = (struct stub_context){.device = i};
  }
  pthread_mutex_unlock(&lock);
}

STUB_API size_t stub_log_size(void) {
  pthread_mutex_lock(&lock);
  const size_t size = log_size;
  pthread_mutex_unlock(&lock);
  return size;
}

/* Copies at most `capacity` bytes; returns the size of the whole log. */
STUB_API size_t stub_log_read(char* text, size_t capacity) {
  pthread_mutex_lock(&lock);
  const size_t size = log_size;
  if (size != 0) memcpy(text, log_text, size < capacity ? size : capacity);
  pthread_mutex_unlock(&lock);
  return size;
}

STUB_API void stub_log_clear(void) {
  pthread_mutex_lock(&lock);
  log_size = 0;
  pthread_mutex_unlock(&lock);
}

static int is_function(const char* name) {
  for (const stub_symbol* symbol = stub_symbols; symbol->name != NULL; ++symbol) {
    if (strcmp(symbol->name, name) == 0) return 1;
  }
  return 0;
}

/* The call returns `result` after `skip` others, `count` times or for ever. Returns 0, or -1 for an unknown name. */
STUB_API int stub_fail(const char* name, CUresult result, int skip, int count) {
  if (!is_function(name)) return -1;
  pthread_mutex_lock(&lock);
  const int has_room = rule_count < MAX_RULES;
  if (has_room) {
    failure_rule* rule = &rules[rule_count++];
    snprintf(rule->name, sizeof rule->name, "%s", name);
    rule->result = result;
    rule->skip = skip;
    rule->count = count;
  }
  pthread_mutex_unlock(&lock);
  return has_room ? 0 : -1;
}

/* Body of a setter: 0, or -1 where the check fails. */
#define STUB_SET(check, assignment) \
  {                                 \
    pthread_mutex_lock(&lock);      \
    const int is_valid = (check);   \
    if (is_valid) assignment;       \
    pthread_mutex_unlock(&lock);    \
    return is_valid ? 0 : -1;       \
  }

static int is_device(int device) { return device >= 0 && device < STUB_MAX_DEVICES; }

STUB_API int stub_set_initialized(int is_initialized)
    STUB_SET(1, initialized_by = is_initialized ? getpid() : 0)

STUB_API int stub_set_device_count(int count)
    STUB_SET(count >= 0 && count <= STUB_MAX_DEVICES, stub_config.device_count = count)

STUB_API int stub_set_attribute(int device, int attribute, int value)
    STUB_SET(is_device(device) && attribute > 0 && attribute < DEVICE_ATTRIBUTE_COUNT,
                stub_config.attributes[device][attribute] = value)

STUB_API int stub_set_primary_active(int device, int is_active)
    STUB_SET(is_device(device),
                stub_primary[device].is_active = stub_primary[device].references = is_active != 0)

/* The capture, of mode "global", is taken to be this thread's. */
STUB_API int stub_set_capturing(int is_capturing)
    STUB_SET(1, (stub_config.is_capturing = is_capturing != 0,
                                        stub_config.capturing_thread = stub_this_thread()->ordinal))

STUB_API int stub_current_device(void) {
  pthread_mutex_lock(&lock);
  const int device = stub_device_of_current();
  pthread_mutex_unlock(&lock);
  return device;
}

/* Make the device's primary context this thread's current one, as a framework does; -1 for no context at all. */
STUB_API int stub_use_device(int device) {
  pthread_mutex_lock(&lock);
  const int is_valid = device >= -1 && device < stub_config.device_count;
  if (is_valid) stub_this_thread()->depth = 0;
  if (is_valid && device >= 0) {
    stub_mark_initialized();
    stub_primary[device].is_active = 1;
    if (stub_primary[device].references == 0) stub_primary[device].references = 1;
    stub_this_thread()->stack[stub_this_thread()->depth++] = &stub_primary[device];
  }
  pthread_mutex_unlock(&lock);
  return is_valid ? 0 : -1;
}

/* A context beside the primary one, as cuCtxCreate or a green context gives. NULL where there is no such device. */
STUB_API CUcontext stub_create_context(int device) {
  CUcontext context = NULL;
  pthread_mutex_lock(&lock);
  if (is_device(device) && context_count < MAX_CONTEXTS) {
    context = &contexts[context_count++];
    *context = (struct stub_context){.device = device, .is_active = 1};
  }
  pthread_mutex_unlock(&lock);
  return context;
}

/* A stream that belongs to a device: launching to it with another device current is refused. */
STUB_API CUstream stub_create_stream(int device) {
  CUstream stream = NULL;
  pthread_mutex_lock(&lock);
  if (is_device(device) && stream_count < MAX_STREAMS) {
    streams[stream_count].device = device;
    stream = &streams[stream_count++];
  }
  pthread_mutex_unlock(&lock);
  return stream;
}
