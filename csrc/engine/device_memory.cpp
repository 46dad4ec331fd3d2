#include "engine/device_memory.hpp"

#include <string>

#include "core/error.hpp"

namespace gdsckpt {

DeviceMemory::DeviceMemory(std::uint64_t device, std::uint64_t nbytes)
    : device_(Device::get(device)), nbytes_(nbytes) {
  const CudaDriver& driver = device_.driver();
  const ContextScope scope(device_);
  driver.check(driver.cuMemAlloc_v2(&address_, nbytes), "cuMemAlloc",
               "allocating " + std::to_string(nbytes) + " bytes on cuda:" + std::to_string(device));
}

DeviceMemory::~DeviceMemory() {
  try {
    const ContextScope scope(device_);
    static_cast<void>(device_.driver().cuMemFree_v2(address_));
  } catch (const CudaError&) {
    // The context is gone, and its memory with it.
  }
}

void copy_to_host(std::uint8_t* dest, std::uint64_t device, std::uint64_t address,
                  std::uint64_t nbytes, const std::vector<ProducerStream>& producers) {
  const DeviceStreams streams({Extent{address, nbytes, 0, kNoCrcSlot, device}}, producers);
  if (streams.empty()) return;
  DeviceCopies copies(streams);
  copies.to_host(dest, device, address, nbytes);
  copies.wait();
}

void copy_to_device(std::uint64_t device, std::uint64_t address, const std::uint8_t* source,
                    std::uint64_t nbytes, const std::vector<ProducerStream>& producers) {
  const DeviceStreams streams({Extent{address, nbytes, 0, kNoCrcSlot, device}}, producers);
  if (streams.empty()) return;
  DeviceCopies copies(streams);
  copies.to_device(device, address, source, nbytes);
  copies.wait();
}

}  // namespace gdsckpt
