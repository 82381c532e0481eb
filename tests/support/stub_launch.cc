// Entry points of the stub libcuda.so.1 for launches and occupancy.
#include <algorithm>
#include <iomanip>

#include "stub.h"

namespace {

enum { PORTABLE_CLUSTER = 8, LARGEST_CLUSTER = 16, LAUNCH_CLUSTER = 4 };
// Attributes of devices.
enum { MAX_THREADS_PER_BLOCK = 1, MAX_BLOCK_DIM_X = 2, MAX_GRID_DIM_X = 5, CLUSTER_LAUNCH = 120 };

using Extents = std::array<uint32_t, 3>;

struct LaunchAttribute {
  int id;
  int padding;
  union {
    Extents extents;
    uint8_t bytes[64];
  } value;
};

struct Config {
  Extents grid, block;
  uint32_t shared_bytes;
  const void* stream;
  const LaunchAttribute* attributes;
  uint32_t attribute_count;
};

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(Config) == 56, "cuda.h says so");

uint64_t volume(const Extents& extents) { return uint64_t{extents[0]} * extents[1] * extents[2]; }

const LaunchAttribute* find_attribute(const Config& config, int id) {
  const LaunchAttribute* end = config.attributes + config.attribute_count;
  const auto found = std::find_if(config.attributes, end, [id](auto& attribute) { return attribute.id == id; });
  return found != end ? found : nullptr;
}

// The cluster of a launch: the attribute's, else the one compiled in, else zeros.
Extents cluster_of(const Config& config, const Kernel& kernel) {
  const LaunchAttribute* attribute = find_attribute(config, LAUNCH_CLUSTER);
  return attribute != nullptr ? attribute->value.extents : kernel.cluster;
}

void check_cluster(const Function& function, const Extents& cluster) {
  const uint64_t most = function.allows_non_portable_cluster ? LARGEST_CLUSTER : PORTABLE_CLUSTER;
  check(state.attributes[function.device][CLUSTER_LAUNCH] != 0 && volume(cluster) <= most, INVALID_CLUSTER_SIZE);
}

void check_launch(const Config& config, const Function& function) {
  const Kernel& kernel = *function.kernel;
  auto& attributes = state.attributes[function.device];
  for (int axis = 0; axis < 3; ++axis) {
    check(config.grid[axis] != 0 && config.grid[axis] <= uint32_t(attributes[MAX_GRID_DIM_X + axis]));
    check(config.block[axis] != 0 && config.block[axis] <= uint32_t(attributes[MAX_BLOCK_DIM_X + axis]));
  }
  check(volume(config.block) <= uint64_t(std::min(attributes[MAX_THREADS_PER_BLOCK], kernel.max_threads)));
  check(int64_t{config.shared_bytes} <= function.max_dynamic_shared);
  const Extents cluster = cluster_of(config, kernel);
  if (cluster != Extents{}) {
    for (int axis = 0; axis < 3; ++axis) {
      check(cluster[axis] != 0 && config.grid[axis] % cluster[axis] == 0);
      check(kernel.cluster[axis] == 0 || kernel.cluster[axis] == cluster[axis], INVALID_CLUSTER_SIZE);
    }
    check_cluster(function, cluster);
  }
}

// Return the parameter block.
std::vector<uint8_t> pack(const Kernel& kernel, void** values) {
  std::vector<uint8_t> params(kernel.param_bytes);
  for (size_t i = 0; i < kernel.slots.size(); ++i) {
    check(values != nullptr && values[i] != nullptr);
    memcpy(&params[kernel.slots[i].offset], values[i], kernel.slots[i].size);
  }
  return params;
}

std::string hex(const uint8_t* bytes, size_t size) {
  std::ostringstream out;
  for (size_t i = 0; i < size; ++i) out << std::hex << std::setw(2) << std::setfill('0') << int{bytes[i]};
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Extents& extents) {
  return out << extents[0] << "," << extents[1] << "," << extents[2];
}

void write_launch(std::ostream& out, const Config& config, const Kernel& kernel, const std::vector<uint8_t>& params) {
  out << " grid=" << config.grid << " block=" << config.block << " cluster=" << cluster_of(config, kernel);
  out << " shared_bytes=" << config.shared_bytes << " stream=" << uintptr_t(config.stream) << " attributes=";
  for (uint32_t i = 0; i < config.attribute_count; ++i) {
    out << (i != 0 ? "," : "") << config.attributes[i].id << ":" << hex(config.attributes[i].value.bytes, 64);
  }
  out << " slots=";
  for (const Slot& slot : kernel.slots) out << (&slot != &kernel.slots[0] ? "," : "") << slot.offset << ":" << slot.size;
  out << " params=" << hex(params.data(), params.size());
}

int launch(const char* name, const Config& config, const void* handle, void** values) {
  return call(name, NEEDS_CONTEXT, [&](std::ostream& out) {
    const Function& function = find_function(handle, current_device(), out);
    const int device = stream_device(config.stream);
    check(device < 0 || device == current_device(), INVALID_HANDLE);
    check_launch(config, function);
    write_launch(out, config, *function.kernel, pack(*function.kernel, values));
  });
}

}  // namespace

API int cuOccupancyMaxActiveClusters(int* count, const void* handle, const Config* config) {
  return call("cuOccupancyMaxActiveClusters", NEEDS_CONTEXT, [&](std::ostream& out) {
    const Function& function = find_function(handle, current_device(), out);
    const Extents cluster = cluster_of(*config, *function.kernel);
    check(volume(cluster) != 0);
    check_cluster(function, cluster);
    *count = 1;
  });
}

API int cuLaunchKernel(const void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, const void* stream, void** values,
                       void**) {
  const Config config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, nullptr, 0};
  return launch("cuLaunchKernel", config, function, values);
}

API int cuLaunchKernelEx(const Config* config, const void* function, void** values, void**) {
  return launch("cuLaunchKernelEx", *config, function, values);
}
