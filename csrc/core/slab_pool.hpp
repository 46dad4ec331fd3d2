#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/memory.hpp"

namespace gdsckpt {

class SlabPool;

/// What is done with a slab's memory when it is mapped and before it is unmapped: a GPU copies
/// faster to and from memory that its driver knows. Called by one thread at a time.
class SlabPinner {
 public:
  virtual ~SlabPinner() = default;
  virtual void pin(std::uint8_t* data, std::size_t nbytes) = 0;
  virtual void unpin(std::uint8_t* data) noexcept = 0;
};

/// A slab on loan; goes back to its pool with the object.
class SlabLease {
 public:
  SlabLease(SlabPool& pool, std::uint8_t* data) noexcept : pool_(&pool), data_(data) {}
  ~SlabLease();
  SlabLease(const SlabLease&) = delete;
  SlabLease& operator=(const SlabLease&) = delete;

  /// Aligned to 64 KiB, `slab_bytes` of the pool long.
  std::uint8_t* data() const noexcept { return data_; }

 private:
  SlabPool* pool_;
  std::uint8_t* data_;
};

/// A fixed number of equal aligned buffers, mapped when first needed. Any thread may call.
class SlabPool {
 public:
  /// `slab_bytes`: a positive multiple of 64 KiB; `num_slabs`: at least 1. Throws ConfigError.
  SlabPool(std::size_t slab_bytes, std::size_t num_slabs,
           std::unique_ptr<SlabPinner> pinner = nullptr);
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  /// Waits until a slab is free. The one used last comes first: its pages are the warmest. Throws
  /// AllocationError when a new slab can't be mapped, and what the pinner throws.
  SlabLease acquire();

  std::size_t slab_bytes() const noexcept { return slab_bytes_; }
  /// Number of slabs mapped so far.
  std::size_t num_mapped() const;
  /// Unmaps every slab; none may be on loan.
  void clear() noexcept;

 private:
  friend class SlabLease;
  void release(std::uint8_t* data) noexcept;

  const std::size_t slab_bytes_;
  const std::size_t num_slabs_;
  const std::unique_ptr<SlabPinner> pinner_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<MappedMemory> slabs_;
  std::vector<std::uint8_t*> free_;
};

}  // namespace gdsckpt
