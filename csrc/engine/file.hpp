#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/fd.hpp"

namespace gdsckpt {

/// What a transfer needs to know of an open file. Has descriptors of its own, so that whatever
/// interrupts its maker, no transfer works on a number that has become another file. They are
/// closed after `close` as soon as no transfer uses them, else with the object. Any thread may
/// call.
class File {
 public:
  /// `buffered_fd`: opened without O_DIRECT. `direct_fd`: the same file with O_DIRECT, or -1.
  /// `alignment`: what direct I/O asks of memory and offsets, a power of two up to 64 KiB. Throws
  /// ConfigError, and StorageError where a descriptor cannot be had.
  File(std::string path, int buffered_fd, int direct_fd, std::uint64_t alignment);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// The maker needs the file no more; transfers that run go on. A second call does nothing.
  void close() noexcept;
  /// For a forked child, which has none of the transfers: closes its copies at once.
  void abandon() noexcept;
  /// A transfer begins to use the descriptors, and ends to: one call of `end_use` for each.
  void begin_use() noexcept { num_users_.fetch_add(1, std::memory_order_acq_rel); }
  void end_use() noexcept;

  const std::string& path() const noexcept { return path_; }
  int buffered_fd() const noexcept { return buffered_fd_.get(); }
  int direct_fd() const noexcept { return direct_fd_.get(); }
  std::uint64_t alignment() const noexcept { return alignment_; }

  /// True while direct I/O is there and has not been refused.
  bool is_direct() const noexcept {
    return direct_fd() >= 0 && refusal_.load(std::memory_order_acquire) == nullptr;
  }
  /// Gives direct I/O up for good; the first reason stays.
  void refuse_direct(std::string reason);
  /// Why direct I/O was given up; empty if it was not.
  std::string direct_refused() const;

 private:
  const std::string path_;
  OwnFd buffered_fd_;
  OwnFd direct_fd_;
  const std::uint64_t alignment_;
  // The maker is one of them until it calls `close`. No lock: a forked child may call, too.
  std::atomic<int> num_users_{1};
  std::atomic<bool> is_closed_{false};
  // Published once and without a lock, so that a forked child can read it too. Owned.
  std::atomic<const std::string*> refusal_{nullptr};
};

}  // namespace gdsckpt
