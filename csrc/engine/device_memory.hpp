#pragma once

#include <cstdint>
#include <vector>

#include "core/extent.hpp"
#include "engine/device_streams.hpp"

namespace gdsckpt {

/// Device memory of our own, freed with the object: for probes. Throws as Device::get, and
/// CudaError when there is not that much.
class DeviceMemory {
 public:
  DeviceMemory(std::uint64_t device, std::uint64_t nbytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::uint64_t address() const noexcept { return address_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }

 private:
  const Device& device_;
  std::uint64_t nbytes_;
  CUdeviceptr address_ = 0;
};

/// Copy between host and device memory, after what is queued on `producers`; return when done.
/// Throw as DeviceStreams.
void copy_to_host(std::uint8_t* dest, std::uint64_t device, std::uint64_t address,
                  std::uint64_t nbytes, const std::vector<ProducerStream>& producers);
void copy_to_device(std::uint64_t device, std::uint64_t address, const std::uint8_t* source,
                    std::uint64_t nbytes, const std::vector<ProducerStream>& producers);

}  // namespace gdsckpt
