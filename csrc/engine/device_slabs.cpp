#include "engine/device_slabs.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <set>

#include "core/error.hpp"

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

}  // namespace

/// Page-locks slabs for all GPUs of the process. A refusal is remembered, not thrown: the driver
/// then stages the copies itself.
class DeviceSlabs::Pinner final : public SlabPinner {
 public:
  Pinner(DeviceSlabs& owner, const Device& device) noexcept : owner_(owner), device_(device) {}

  void pin(std::uint8_t* data, std::size_t nbytes) override {
    prefer_node(data, nbytes, device_.numa_node());
    try {
      const CudaDriver& driver = device_.driver();
      const ContextScope scope(device_);
      driver.check(driver.cuMemHostRegister_v2(data, nbytes, CU_MEMHOSTREGISTER_PORTABLE),
                   "cuMemHostRegister", "page-locking " + std::to_string(nbytes) + " bytes");
      pinned_.insert(data);
    } catch (const CudaError& error) {
      owner_.refuse(error.message());
    }
  }

  void unpin(std::uint8_t* data) noexcept override {
    if (pinned_.erase(data) == 0) return;
    try {
      const ContextScope scope(device_);
      // Refused when the driver is being taken down: it then lets go of all.
      static_cast<void>(device_.driver().cuMemHostUnregister(data));
    } catch (const CudaError&) {
      // The context is gone, and its registrations with it.
    }
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
