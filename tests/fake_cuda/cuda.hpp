// What the parts of the stand-in for libcuda share. The public functions are those of cuda.h.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

#define FAKE_NAME_OF(symbol) #symbol
/// The symbol that cuda.h's macros make of a name.
#define FAKE_NAME(function) FAKE_NAME_OF(function)
#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

/// Begins every function: the faults on demand, then what CUDA would check first.
#define FAKE_ENTER(function, need)                                                       \
  do {                                                                                   \
    if (const CUresult refused = fake::enter(FAKE_NAME(function), need)) return refused; \
  } while (false)

namespace fake {

enum class Need { kNothing, kInit, kContext };
enum class MemoryKind { kDevice, kMapped, kManaged, kPool };

constexpr int kMaxDevices = 16;

/// Device memory: an address range that the host cannot touch, and a view elsewhere that it can.
struct Allocation {
  CUdeviceptr base = 0;
  size_t nbytes = 0;
  size_t mapped_bytes = 0;
  char* shadow = nullptr;
  int device = 0;
  MemoryKind kind = MemoryKind::kDevice;
  uint64_t id = 0;
  CUcontext context = nullptr;

  Allocation() = default;
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();
};

/// Page-locked host memory.
struct HostRange {
  char* base = nullptr;
  size_t nbytes = 0;
  bool is_allocated = false;
  unsigned flags = 0;
  CUcontext context = nullptr;
};

/// The end of the work before a record of an event.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  std::chrono::steady_clock::time_point when;
};

/// One piece of a stream's work, and the places in other streams that it comes after.
struct Work {
  std::function<void()> run;
  std::vector<std::pair<CUstream, uint64_t>> after;
  /// Work that only orders streams is done even on a lost device.
  bool is_marker = false;
};

/// Fault, hang and delay on demand, then the state of the library and of the current device.
CUresult enter(const char* function, Need need);

CUcontext current_context();
bool is_live(CUcontext context);
int device_of(CUcontext context);
int num_devices();
/// 0, or the error that all calls for a device give.
CUresult lost_code(int device);
void lose_device(int device, CUresult code);

/// The allocation that holds an address, or none.
std::shared_ptr<Allocation> allocation_at(CUdeviceptr address);
/// As above where it holds all of [address, address + nbytes).
std::shared_ptr<Allocation> allocation_of(CUdeviceptr address, size_t nbytes);
/// Where the host can reach a device address; null without an allocation of that range.
char* shadow_of(CUdeviceptr address, size_t nbytes);
/// Whether all of a host range is page-locked.
bool is_pinned(const void* address, size_t nbytes);
bool host_range_at(const void* address, HostRange& range);
CUresult allocate(int device, size_t nbytes, MemoryKind kind, CUdeviceptr* address);
bool release_allocation(CUdeviceptr base);

/// The stream that a handle means in a context (0, legacy and per-thread ones too), or null.
CUstream stream_of(CUstream handle, CUcontext context);
/// Adds work to a stream, and gives its number there.
uint64_t submit(CUstream stream, Work work);
/// Waits for a stream's work up to a number; gives the device's error.
CUresult finish(CUstream stream, uint64_t number);
uint64_t last_number(CUstream stream);
/// Waits for all that was submitted in a context.
CUresult finish_context(CUcontext context);
int device_of_stream(CUstream stream);
/// Lets go what is held on a device that was lost.
void wake_streams();
/// `hold`, `release_stream` and `step` of the control functions.
bool control_stream(const Command& command);

void set_attribute(int device, int attribute, int value);
/// Gives all devices back, as they were.
void restore_devices();

}  // namespace fake

struct CUctx_st {
  int device = 0;
  bool is_primary = false;
  int num_retained = 0;
  bool is_live = false;
  unsigned flags = 0;
  std::set<CUstream> streams;
  CUstream legacy = nullptr;
  CUstream per_thread = nullptr;
};
