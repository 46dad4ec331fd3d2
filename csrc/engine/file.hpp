#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace gdsckpt {

/// What a transfer needs to know of an open file. Owns no descriptor: they must stay open until the
/// transfers that use them have ended. Any thread may call.
class File {
 public:
  /// `buffered_fd`: opened without O_DIRECT. `direct_fd`: the same file with O_DIRECT, or -1.
  /// `alignment`: what direct I/O asks of memory and offsets, a power of two up to 64 KiB. Throws
  /// ConfigError.
  File(std::string path, int buffered_fd, int direct_fd, std::uint64_t alignment);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const noexcept { return path_; }
  int buffered_fd() const noexcept { return buffered_fd_; }
  int direct_fd() const noexcept { return direct_fd_; }
  std::uint64_t alignment() const noexcept { return alignment_; }

  /// True while direct I/O is there and has not been refused.
  bool is_direct() const noexcept {
    return direct_fd_ >= 0 && refusal_.load(std::memory_order_acquire) == nullptr;
  }
  /// Gives direct I/O up for good; the first reason stays.
  void refuse_direct(std::string reason);
  /// Why direct I/O was given up; empty if it was not.
  std::string direct_refused() const;

 private:
  const std::string path_;
  const int buffered_fd_;
  const int direct_fd_;
  const std::uint64_t alignment_;
  // Published once and without a lock, so that a forked child can read it too. Owned.
  std::atomic<const std::string*> refusal_{nullptr};
};

}  // namespace gdsckpt
