#include "core/slab_pool.hpp"

#include <string>
#include <utility>

#include "core/align.hpp"
#include "core/error.hpp"

namespace gdsckpt {

SlabLease::~SlabLease() { pool_->release(data_); }

SlabPool::SlabPool(std::size_t slab_bytes, std::size_t num_slabs,
                   std::unique_ptr<SlabPinner> pinner)
    : slab_bytes_(slab_bytes), num_slabs_(num_slabs), pinner_(std::move(pinner)) {
  if (slab_bytes == 0 || slab_bytes % kMaxAlignment != 0)
    throw ConfigError("slab_bytes is " + std::to_string(slab_bytes) +
                          "; it must be a positive multiple of 65536 (64 KiB).",
                      "slab_bytes");
  if (num_slabs == 0) throw ConfigError("num_slabs is 0; at least 1 is needed.", "num_slabs");
  slabs_.reserve(num_slabs);
  free_.reserve(num_slabs);  // so that release never allocates
}

SlabPool::~SlabPool() { clear(); }

SlabLease SlabPool::acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this] { return !free_.empty() || slabs_.size() < num_slabs_; });
  if (free_.empty()) {
    MappedMemory slab(slab_bytes_);
    if (pinner_ != nullptr) pinner_->pin(slab.data(), slab.nbytes());
    slabs_.push_back(std::move(slab));
    return SlabLease(*this, slabs_.back().data());
  }
  std::uint8_t* const data = free_.back();
  free_.pop_back();
  return SlabLease(*this, data);
}

std::size_t SlabPool::num_mapped() const {
  const std::lock_guard lock(mutex_);
  return slabs_.size();
}

void SlabPool::clear() noexcept {
  const std::lock_guard lock(mutex_);
  free_.clear();
  if (pinner_ != nullptr)
    for (const MappedMemory& slab : slabs_) pinner_->unpin(slab.data());
  slabs_.clear();
}

void SlabPool::release(std::uint8_t* data) noexcept {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(data);
  }
  released_.notify_one();
}

}  // namespace gdsckpt
