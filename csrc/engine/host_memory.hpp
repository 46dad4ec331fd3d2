#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/fork_guard.hpp"
#include "core/memory.hpp"
#include "engine/device.hpp"

namespace gdsckpt {

/// Page-locks host memory for all GPUs of the process, after advice that its pages come from the
/// node nearest to `device`. Throws CudaError.
void pin_host_memory(const Device& device, std::uint8_t* data, std::size_t nbytes);

/// Ends that; the memory may be unmapped then.
void unpin_host_memory(const Device& device, std::uint8_t* data) noexcept;

/// Host memory whose pages are there, freed with the object: for copies that must not wait for
/// pages. A forked child has none of it. Any thread may call.
class HostMemory {
 public:
  /// Maps and touches `nbytes`, with up to `num_threads` threads. For a `device` that is not
  /// kHostDevice it is page-locked too; where that is refused, copies are slower. Throws
  /// AllocationError; with a device, as Device::get.
  HostMemory(std::size_t nbytes, std::uint64_t device, std::size_t num_threads);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uint64_t>(memory_->data());
  }
  std::uint64_t nbytes() const noexcept { return memory_->nbytes(); }
  /// Why it could not be page-locked; empty if it could, or was not to be.
  const std::string& pin_refused() const noexcept { return pin_refused_; }

 private:
  const ForkGuard fork_guard_;
  std::unique_ptr<MappedMemory> memory_;
  const Device* pinned_for_ = nullptr;
  std::string pin_refused_;
};

}  // namespace gdsckpt
