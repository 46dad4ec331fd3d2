#include "engine/host_memory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/parallel.hpp"

namespace gdsckpt {
namespace {

// <linux/mempolicy.h>, without the library (libnuma) that wraps it.
constexpr int kMpolPreferred = 1;

/// Has the pages come from `node` when they are first touched, where that node has any. Only
/// advice: far memory is slower, not wrong.
void prefer_node(std::uint8_t* data, std::size_t nbytes, int node) noexcept {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> mask{};
  const auto bit = static_cast<std::size_t>(node);
  if (node < 0 || bit >= mask.size() * kWordBits) return;
  mask[bit / kWordBits] = 1UL << (bit % kWordBits);
  static_cast<void>(
      syscall(SYS_mbind, data, nbytes, kMpolPreferred, mask.data(), mask.size() * kWordBits, 0U));
}

/// Writes to every page, as not every kernel has MADV_POPULATE_WRITE.
void touch(std::uint8_t* data, std::size_t nbytes, std::size_t num_threads) noexcept {
  constexpr std::size_t kUnitBytes = 64 * 1024 * 1024;
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for_each_unit((nbytes + kUnitBytes - 1) / kUnitBytes, num_threads,
                [&](std::size_t unit) noexcept {
                  const std::size_t begin = unit * kUnitBytes;
                  const std::size_t end = std::min(nbytes, begin + kUnitBytes);
                  populate(reinterpret_cast<std::uint64_t>(data + begin), end - begin);
                  for (std::size_t at = begin; at < end; at += page_bytes)
                    static_cast<volatile std::uint8_t*>(data)[at] = 0;
                });
}

}  // namespace

void pin_host_memory(const Device& device, std::uint8_t* data, std::size_t nbytes) {
  prefer_node(data, nbytes, device.numa_node());
  const CudaDriver& driver = device.driver();
  const ContextScope scope(device);
  driver.check(driver.cuMemHostRegister_v2(data, nbytes, CU_MEMHOSTREGISTER_PORTABLE),
               "cuMemHostRegister", "page-locking " + std::to_string(nbytes) + " bytes");
}

void unpin_host_memory(const Device& device, std::uint8_t* data) noexcept {
  try {
    const ContextScope scope(device);
    // Refused when the driver is being taken down: it then lets go of all.
    static_cast<void>(device.driver().cuMemHostUnregister(data));
  } catch (const CudaError&) {
    // The context is gone, and its registrations with it.
  }
}

HostMemory::HostMemory(std::size_t nbytes, std::uint64_t device, std::size_t num_threads)
    : memory_(std::make_unique<MappedMemory>(nbytes)) {
  if (device == kHostDevice) {
    touch(memory_->data(), nbytes, num_threads);
    return;
  }
  const Device& found = Device::get(device);
  try {
    pin_host_memory(found, memory_->data(), nbytes);
    pinned_for_ = &found;
  } catch (const CudaError& error) {
    pin_refused_ = error.message();
    touch(memory_->data(), nbytes, num_threads);
  }
}

HostMemory::~HostMemory() {
  // A child must not unmap: what it was not given may be the address of something else there.
  if (fork_guard_.is_forked_child())
    static_cast<void>(memory_.release());
  else if (pinned_for_ != nullptr)
    unpin_host_memory(*pinned_for_, memory_->data());
}

}  // namespace gdsckpt
