#include "engine/device_slabs.hpp"

#include <set>

#include "core/error.hpp"
#include "engine/host_memory.hpp"

namespace gdsckpt {

/// Page-locks slabs for all GPUs of the process. A refusal is remembered, not thrown: the driver
/// then stages the copies itself.
class DeviceSlabs::Pinner final : public SlabPinner {
 public:
  Pinner(DeviceSlabs& owner, const Device& device) noexcept : owner_(owner), device_(device) {}

  void pin(std::uint8_t* data, std::size_t nbytes) override {
    try {
      pin_host_memory(device_, data, nbytes);
      pinned_.insert(data);
    } catch (const CudaError& error) {
      owner_.refuse(error.message());
    }
  }

  void unpin(std::uint8_t* data) noexcept override {
    if (pinned_.erase(data) > 0) unpin_host_memory(device_, data);
  }

 private:
  DeviceSlabs& owner_;
  const Device& device_;
  std::set<std::uint8_t*> pinned_;
};

SlabPool& DeviceSlabs::near(std::uint64_t device) {
  const Device& found = Device::get(device);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<SlabPool>& pool = pools_[found.numa_node()];
  if (pool == nullptr)
    pool =
        std::make_unique<SlabPool>(slab_bytes_, num_slabs_, std::make_unique<Pinner>(*this, found));
  return *pool;
}

std::string DeviceSlabs::pin_refused() const {
  const std::lock_guard lock(mutex_);
  return pin_refused_;
}

void DeviceSlabs::refuse(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (pin_refused_.empty()) pin_refused_ = reason;
}

void DeviceSlabs::clear() noexcept {
  const std::lock_guard lock(mutex_);
  pools_.clear();
}

}  // namespace gdsckpt
