#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/file.hpp"
#include "engine/posix_io.hpp"

namespace gdsckpt::tests {

/// What a call is to do instead of its work.
struct Injected {
  int code = 0;                         ///< errno to fail with; 0: none
  std::size_t limit = ~std::size_t{0};  ///< most bytes to move; 0: move none and say so
};

/// One call as the intercepting function sees it.
struct Call {
  bool is_write;
  bool is_direct;
  std::size_t index;  ///< number of calls before this one
  std::size_t nbytes;
};

/// A file in memory behind the system call table. There is one at a time. Direct calls are as
/// strict as the kernel: EINVAL for memory, offset or length off the alignment.
class FakeDisk {
 public:
  static constexpr int kBufferedFd = 1000003;
  static constexpr int kDirectFd = 1000004;
  static constexpr std::uint64_t kAlignment = 4096;

  explicit FakeDisk(std::size_t nbytes = 0);
  ~FakeDisk();
  FakeDisk(const FakeDisk&) = delete;
  FakeDisk& operator=(const FakeDisk&) = delete;

  static const Syscalls& syscalls() noexcept;
  std::shared_ptr<File> open(bool is_direct) const;

  std::vector<std::uint8_t> bytes;
  /// Decides about each call; called under a lock. None: all goes well.
  std::function<Injected(const Call&)> intercept;
  std::size_t num_calls = 0;

 private:
  static ssize_t pread(int fd, void* data, std::size_t nbytes, off_t offset);
  static ssize_t pwrite(int fd, const void* data, std::size_t nbytes, off_t offset);
  /// Bytes to move, or -1 with errno.
  ssize_t admit(bool is_write, int fd, const void* data, std::size_t nbytes, off_t offset);

  std::mutex mutex_;
  static FakeDisk* current_;
};

}  // namespace gdsckpt::tests
