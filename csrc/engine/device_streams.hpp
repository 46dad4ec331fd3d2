#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"
#include "engine/device.hpp"

namespace gdsckpt {

/// A stream on which the contents of device memory are made, as others know it: 0 is CUDA's default
/// stream. A row of two 64-bit numbers: Python hands over arrays of them.
struct ProducerStream {
  std::uint64_t device;
  std::uint64_t stream;
};
static_assert(sizeof(ProducerStream) == 16, "rows of two uint64");

/// The side streams of one transfer, one for each GPU that it touches: copies on them run beside
/// the work of the producers. Any thread may call.
class DeviceStreams {
 public:
  /// Makes a stream for each device of `extents`, ordered after all that is queued on `producers`
  /// now. Throws as Device::get, and CudaError.
  DeviceStreams(const std::vector<Extent>& extents, const std::vector<ProducerStream>& producers);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  /// No extent is on a device.
  bool empty() const noexcept { return lanes_.empty(); }
  /// Waits until what was queued on the producers at the beginning is done: for readers of device
  /// memory that are not ordered with streams (cuFile). Throws CudaError.
  void wait_for_producers() const;

 private:
  friend class DeviceCopies;
  struct Lane {
    const Device* device;
    CUstream stream;
  };
  const Lane& lane(std::uint64_t device) const noexcept;
  void open_lane(const Device& device);
  static void follow(const Lane& lane, const ProducerStream& producer);
  void close() noexcept;

  std::vector<Lane> lanes_;
};

/// Waits until what is queued on `producers` now is done. Throws as Device::get, and CudaError.
void wait_for_streams(const std::vector<ProducerStream>& producers);

/// Copies between slabs and devices that were begun together. One thread.
class DeviceCopies {
 public:
  explicit DeviceCopies(const DeviceStreams& streams) noexcept : streams_(streams) {}
  /// Waits for what was begun: the memory may be used for something else then.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  /// Begin a copy; both throw CudaError.
  void to_host(std::uint8_t* dest, std::uint64_t device, std::uint64_t address,
               std::uint64_t nbytes);
  void to_device(std::uint64_t device, std::uint64_t address, const std::uint8_t* source,
                 std::uint64_t nbytes);
  /// Waits until all are done, without spinning. Throws CudaError.
  void wait();

 private:
  void use(const DeviceStreams::Lane& lane);

  const DeviceStreams& streams_;
  std::vector<const DeviceStreams::Lane*> used_;
};

}  // namespace gdsckpt
