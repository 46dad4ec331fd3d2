#include "engine/device_streams.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

/// An event in the current context. The wait for it sleeps: a thread that spins would take the
/// processor from those that checksum.
class Event {
 public:
  explicit Event(const CudaDriver& driver) : driver_(driver) {
    driver.check(driver.cuEventCreate(&event_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
                 "cuEventCreate", "making an event");
  }
  ~Event() { static_cast<void>(driver_.cuEventDestroy_v2(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// `stream` has not come further than now when the event has happened.
  void record(CUstream stream) {
    driver_.check(driver_.cuEventRecord(event_, stream), "cuEventRecord", "marking a stream");
  }
  void wait() {
    driver_.check(driver_.cuEventSynchronize(event_), "cuEventSynchronize",
                  "a copy between device and host");
  }
  CUevent get() const noexcept { return event_; }

 private:
  const CudaDriver& driver_;
  CUevent event_ = nullptr;
};

void wait_for(const Device& device, CUstream stream) {
  const ContextScope scope(device);
  Event event(device.driver());
  event.record(stream);
  event.wait();
}

std::string describe_copy(const char* what, std::uint64_t nbytes, std::uint64_t device) {
  return std::string("copying ") + std::to_string(nbytes) + " bytes " + what +
         " cuda:" + std::to_string(device);
}

}  // namespace

DeviceStreams::DeviceStreams(const std::vector<Extent>& extents,
                             const std::vector<ProducerStream>& producers) {
  std::vector<std::uint64_t> devices;
  for (const Extent& extent : extents) {
    const bool is_new = !extent.is_host() && extent.nbytes > 0 &&
                        std::find(devices.begin(), devices.end(), extent.device) == devices.end();
    if (is_new) devices.push_back(extent.device);
  }
  lanes_.reserve(devices.size());
  try {
    for (const std::uint64_t device : devices) open_lane(Device::get(device));
    for (const ProducerStream& producer : producers) {
      const bool is_used =
          std::find(devices.begin(), devices.end(), producer.device) != devices.end();
      if (is_used) follow(lane(producer.device), producer);
    }
  } catch (...) {
    close();
    throw;
  }
}

DeviceStreams::~DeviceStreams() { close(); }

void DeviceStreams::open_lane(const Device& device) {
  const CudaDriver& driver = device.driver();
  const ContextScope scope(device);
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate",
               "making a stream on cuda:" + std::to_string(device.ordinal()));
  lanes_.push_back(Lane{&device, stream});
}

void DeviceStreams::follow(const Lane& lane, const ProducerStream& producer) {
  const CudaDriver& driver = lane.device->driver();
  const ContextScope scope(*lane.device);
  Event ready(driver);
  ready.record(reinterpret_cast<CUstream>(producer.stream));
  driver.check(driver.cuStreamWaitEvent(lane.stream, ready.get(), 0), "cuStreamWaitEvent",
               "ordering the copies after the stream that makes the tensors");
}

void DeviceStreams::close() noexcept {
  for (const Lane& lane : lanes_) {
    try {
      const ContextScope scope(*lane.device);
      static_cast<void>(lane.device->driver().cuStreamDestroy_v2(lane.stream));
    } catch (const Error&) {
      // The context is gone, and its streams with it.
    }
  }
  lanes_.clear();
}

const DeviceStreams::Lane& DeviceStreams::lane(std::uint64_t device) const noexcept {
  return *std::find_if(lanes_.begin(), lanes_.end(), [device](const Lane& candidate) {
    return candidate.device->ordinal() == device;
  });
}

void DeviceStreams::wait_for_producers() const {
  for (const Lane& lane : lanes_) wait_for(*lane.device, lane.stream);
}

void wait_for_streams(const std::vector<ProducerStream>& producers) {
  for (const ProducerStream& producer : producers)
    wait_for(Device::get(producer.device), reinterpret_cast<CUstream>(producer.stream));
}

DeviceCopies::~DeviceCopies() {
  for (const DeviceStreams::Lane* lane : used_) {
    try {
      const ContextScope scope(*lane->device);
      static_cast<void>(lane->device->driver().cuStreamSynchronize(lane->stream));
    } catch (const Error&) {
      // The context is gone: nothing is copied any more.
    }
  }
}

void DeviceCopies::use(const DeviceStreams::Lane& lane) {
  if (std::find(used_.begin(), used_.end(), &lane) == used_.end()) used_.push_back(&lane);
}

void DeviceCopies::to_host(std::uint8_t* dest, std::uint64_t device, std::uint64_t address,
                           std::uint64_t nbytes) {
  const DeviceStreams::Lane& lane = streams_.lane(device);
  const CudaDriver& driver = lane.device->driver();
  const ContextScope scope(*lane.device);
  use(lane);
  driver.check(driver.cuMemcpyDtoHAsync_v2(dest, address, nbytes, lane.stream), "cuMemcpyDtoHAsync",
               describe_copy("from", nbytes, device));
}

void DeviceCopies::to_device(std::uint64_t device, std::uint64_t address,
                             const std::uint8_t* source, std::uint64_t nbytes) {
  const DeviceStreams::Lane& lane = streams_.lane(device);
  const CudaDriver& driver = lane.device->driver();
  const ContextScope scope(*lane.device);
  use(lane);
  driver.check(driver.cuMemcpyHtoDAsync_v2(address, source, nbytes, lane.stream),
               "cuMemcpyHtoDAsync", describe_copy("to", nbytes, device));
}

void DeviceCopies::wait() {
  while (!used_.empty()) {
    const DeviceStreams::Lane& lane = *used_.back();
    wait_for(*lane.device, lane.stream);
    used_.pop_back();
  }
}

}  // namespace gdsckpt
