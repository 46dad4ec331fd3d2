#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/slab_pool.hpp"
#include "engine/device.hpp"

namespace gdsckpt {

/// Rings of page-locked slabs, one for each NUMA node that has a GPU in use, made when first
/// needed. Any thread may call.
class DeviceSlabs {
 public:
  /// Each ring has at most `num_slabs` slabs of `slab_bytes`.
  DeviceSlabs(std::size_t slab_bytes, std::size_t num_slabs) noexcept
      : slab_bytes_(slab_bytes), num_slabs_(num_slabs) {}

  /// The ring nearest to a device. Throws as Device::get.
  SlabPool& near(std::uint64_t device);

  /// Why slabs could not be page-locked, so that copies are slower; empty if they could.
  std::string pin_refused() const;

  /// Unmaps every slab; none may be on loan.
  void clear() noexcept;

 private:
  class Pinner;
  void refuse(const std::string& reason);

  const std::size_t slab_bytes_;
  const std::size_t num_slabs_;
  mutable std::mutex mutex_;
  std::string pin_refused_;
  std::map<int, std::unique_ptr<SlabPool>> pools_;
};

}  // namespace gdsckpt
