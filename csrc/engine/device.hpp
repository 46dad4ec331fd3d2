#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shim/cuda_driver.hpp"

namespace gdsckpt {

/// One GPU as this process uses it: its primary context, which torch, CuPy and Numba use too, is
/// retained for ever. Any thread may call.
class Device {
 public:
  /// The GPU with CUDA's number `ordinal` (torch's `cuda:N`). Throws EngineUnavailableError where
  /// there is no driver, ConfigError (field "extents") for a number that no device has, CudaError.
  static const Device& get(std::uint64_t ordinal);

  const CudaDriver& driver() const noexcept { return *driver_; }
  CUcontext context() const noexcept { return context_; }
  std::uint64_t ordinal() const noexcept { return ordinal_; }
  /// NUMA node whose memory is nearest, or -1 where nothing tells.
  int numa_node() const noexcept { return numa_node_; }

 private:
  Device(const CudaDriver& driver, std::uint64_t ordinal);

  const CudaDriver* driver_;
  std::uint64_t ordinal_;
  CUcontext context_ = nullptr;
  int numa_node_ = -1;
};

/// What is known of a GPU without using it.
struct DeviceFacts {
  std::string name;
  std::string pci_bus_id;
  std::string uuid;  ///< 32 hex digits
  int numa_node = -1;
  int compute_capability = 0;          ///< 10 * major + minor
  bool has_gpu_direct_rdma = false;    ///< says the driver
  bool is_coherent_with_host = false;  ///< shares the host's page tables (Grace)
};

/// Throws CudaError. `ordinal`: below `driver.num_devices`.
DeviceFacts facts_of(const CudaDriver& driver, int ordinal);

/// Number of the GPU that an address belongs to. Throws EngineUnavailableError where there is no
/// driver, CudaError where the address is no device's.
std::uint64_t device_of_address(std::uint64_t address);

/// Makes a device's context current in this thread, for the lifetime of the object.
class ContextScope {
 public:
  /// Throws CudaError.
  explicit ContextScope(const Device& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Device& device_;
};

}  // namespace gdsckpt
