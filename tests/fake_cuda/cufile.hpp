// What the parts of the stand-in for libcufile share. The public functions are those of cufile.h.
#pragma once

#include <cufile.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "control.hpp"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

constexpr int kMaxDevices = 16;

/// A registered file. Never freed, so that a stale handle is known for what it is.
struct Handle {
  int fd = -1;
  int buffered_fd = -1;  // of cuFile's own, for what is not aligned
  int access_mode = 0;
  int num_in_flight = 0;
};

struct Buffer {
  size_t nbytes = 0;
  int device = -1;
};

struct Driver {
  std::mutex mutex;
  std::condition_variable changed;
  pid_t pid = 0;
  int64_t use_count = 0;
  bool is_closing = false;
  int num_in_flight = 0;
  std::set<Handle*> handles;
  std::map<uint64_t, Buffer> buffers;
  int64_t registered_bytes = 0;
};

/// Where a pointer leads.
struct Place {
  int device = -1;  // -1: host memory
  int kind = 0;     // of device memory, as fake::MemoryKind
  char* view = nullptr;
  bool is_whole = true;  // the range does not leave its allocation
};

Driver& driver();

CUfileError_t failure(int code, int cuda_code = 0);
/// Faults on demand, and what holds for every call: closed, closing, another process.
CUfileError_t enter(const char* function, bool needs_open);
/// As cuFileDriverOpen, for the functions that open it by the way; with the lock held.
CUfileError_t open_locked();

Place place_of(uint64_t address, size_t nbytes);
/// The device of the calling thread's CUDA context, or -1.
int current_device();

bool allows_compat();
void reset_parameters();

/// Adds one transfer to the statistics.
void count_transfer(bool is_write, int device, int64_t nbytes, bool is_aligned);
void count_registration(int device, int64_t nbytes, bool ok);
void reset_stats();

}  // namespace fake
