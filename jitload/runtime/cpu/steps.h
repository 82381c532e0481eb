/* Lets the lanes of a warp run in step where they access volatile variables.
 *
 * Code from before Volta has series of statements such as `s[i] += s[i + 16];` with a volatile `s` and no
 * __syncwarp(). It relies on lanes that execute each access at the same time. So before each such access, a lane lets
 * the others run up to their next one. This is the same order as on such a GPU if the lanes take the same path. For
 * shared memory, the path of each lane since it last met others at a barrier is recorded: its basic blocks and accesses. A
 * read and a write of one variable by lanes whose paths differ before them is an error, because their order is not known.
 * In global memory, most such accesses are allowed, because threads often look there whether another one has ended their
 * work.
 */
#pragma once

#include "worker.h"

namespace {

constexpr uint32_t kMostLanes = 1024;
constexpr uint32_t kMostSteps = 1024; /* accesses of a lane between two barriers whose order is known */
constexpr uint32_t kVariables = 1 << 14, kProbes = 8;

/* What a lane has run since its last barrier, operation of a warp or atomic. */
struct Path {
  uint64_t era; /* paths are compared if they began together: then this number is the same */
  uint32_t length;
  uint32_t hash; /* of the basic blocks and accesses so far */
};

/* The accesses to a variable by the lanes of a warp in an era. */
struct Variable {
  uintptr_t address;
  uint64_t era;
  uint32_t warp;
  uint32_t readers; /* a bit for each lane that has read the variable since the last write */
  uint32_t stale;   /* a bit for each lane that has read it before the last write, and not after */
  uint32_t writer, write_step;
  bool is_written;
};

/* What a worker knows about the block that it runs. */
struct Steps {
  uint64_t last_era, block_era;
  Path paths[kMostLanes];
  Variable variables[kVariables];
  uint32_t hashes[kMostLanes][kMostSteps]; /* the hash of a path at each access */
};

/* The barrier of a block has opened, or a block begins. */
void step_block(Worker* worker) {
  if (worker->steps != NULL) worker->steps->block_era = ++worker->steps->last_era;
}

/* The given lanes of the warp that begins with thread `first` have met. */
void step_lanes(Worker* worker, uint32_t first, uint32_t lanes) {
  Steps* steps = worker->steps;
  if (steps == NULL) return;
  ++steps->last_era;
  for (; lanes != 0; lanes &= lanes - 1) {
    steps->paths[first + (uint32_t)__builtin_ctz(lanes)] = {steps->last_era, 0, 0};
  }
}

Steps* begin_steps(Worker* worker) {
  worker->is_uninterruptible = 1;
  Steps* steps = worker->steps = (Steps*)calloc(1, sizeof(Steps));
  worker->is_uninterruptible = 0;
  if (steps == NULL) {
    fail(worker, worker->current->index, "not enough memory for %zu bytes,", sizeof(Steps));
    leave(worker);
  }
  step_block(worker);
  return steps;
}

/* Add a basic block or an access to the path of the current lane. */
Path* add_to_path(Worker* worker, const void* code) {
  Steps* steps = worker->steps;
  Path* path = &steps->paths[worker->current->number];
  if (path->era < steps->block_era) *path = {steps->block_era, 0, 0};
  path->hash = (path->hash + (uint32_t)(uintptr_t)code) * 0x9e3779b1u;
  return path;
}

/* Add an access to the path of the current lane; return its number. */
uint32_t add_step(Worker* worker, const void* code) {
  Path* path = add_to_path(worker, code);
  const uint32_t step = path->length++;
  if (step < kMostSteps) worker->steps->hashes[worker->current->number][step] = path->hash;
  return step;
}

/* Return what is known about a variable in an era; forget what was known in an earlier one. */
Variable* find_variable(Steps* steps, uintptr_t address, uint32_t warp, uint64_t era) {
  const uint64_t hash = (address * 32 + warp) * 0x9e3779b97f4a7c15u >> 40;
  Variable* oldest = NULL;
  for (uint32_t i = 0; i < kProbes; ++i) {
    Variable* variable = &steps->variables[(hash + i) % kVariables];
    if (variable->address == address && variable->warp == warp) {
      oldest = variable;
      break;
    }
    if (oldest == NULL || variable->era < oldest->era) oldest = variable;
  }
  if (oldest->address != address || oldest->warp != warp || oldest->era != era) {
    *oldest = {address, era, warp, 0, 0, 0, 0, false};
  }
  return oldest;
}

/* Return whether the paths of two lanes are the same up to the given access, or as long as both are known. */
bool is_in_step(const Steps* steps, uint32_t lane, uint32_t other, uint32_t step) {
  const uint32_t last = step < steps->paths[other].length ? step : steps->paths[other].length - 1;
  return last < kMostSteps && steps->hashes[lane][last] == steps->hashes[other][last];
}

[[noreturn]] void report_steps(Worker* worker, const void* code, bool is_write, uint32_t other) {
  const uint32_t* thread = worker->fibers[other].index;
  worker->fault_address = (const char*)code - 1;
  fail(worker, worker->current->index, "%s a volatile variable that thread (%u, %u, %u) of the same warp %s, in an "
       "unknown order, because the threads took different branches; write __syncwarp() between the accesses,",
       is_write ? "a write to" : "a read of", thread[0], thread[1], thread[2], is_write ? "accesses" : "writes");
  leave(worker);
}

/* Report an access whose order with one of another lane is not known, and record it. In global memory, only a write is
 * reported, if another lane has written what this one has read before. */
void check_step(Worker* worker, uintptr_t address, bool is_write, bool is_shared, uint32_t step, const void* code) {
  Steps* steps = worker->steps;
  const uint32_t number = worker->current->number, first = number / kWarp * kWarp, lane = 1u << (number - first);
  const uint64_t era = steps->paths[number].era;
  Variable* variable = find_variable(steps, address, number / kWarp, era);
  const uint32_t writer = variable->writer, write_step = variable->write_step;
  const bool is_written = variable->is_written && writer != number && steps->paths[writer].era == era;
  if (is_written && (is_write ? (variable->stale & lane) != 0 : is_shared)) {
    if (write_step > step || !is_in_step(steps, number, writer, write_step)) report_steps(worker, code, is_write, writer);
  }
  if (!is_write) {
    variable->readers |= lane;
    variable->stale &= ~lane;
    return;
  }
  for (uint32_t lanes = is_shared ? variable->readers & ~lane : 0; lanes != 0; lanes &= lanes - 1) {
    const uint32_t reader = first + (uint32_t)__builtin_ctz(lanes);
    const Path* path = &steps->paths[reader];
    if (path->era != era) continue;
    if (path->length > step + 2 || !is_in_step(steps, number, reader, step)) report_steps(worker, code, is_write, reader);
  }
  *variable = {address, era, number / kWarp, 0, (variable->readers | variable->stale) & ~lane, number, step, true};
}

}  // namespace
