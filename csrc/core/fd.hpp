#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace gdsckpt {

/// A duplicate of somebody else's descriptor, closed with the object or before.
class OwnFd {
 public:
  /// `fd`: -1 for none. One that is not open is taken as it is: its use says so, with the
  /// operation. Throws StorageError (op "dup") where there are no more descriptors.
  OwnFd(int fd, const std::string& path);
  ~OwnFd();
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;

  /// -1 after `close`.
  int get() const noexcept { return fd_.load(std::memory_order_acquire); }
  /// Closes the duplicate. Any thread may call, once nobody uses the number.
  void close() noexcept;

 private:
  std::atomic<int> fd_;
  const bool is_duplicate_;
};

/// Path that an open descriptor was opened by, "fd N" where the kernel does not tell.
std::string path_of_fd(int fd);

/// Reserves disk space for bytes [0, nbytes) and makes the file at least that long.
///
/// Returns false where the file system can't (EOPNOTSUPP, ENOSYS): never glibc's substitute, which
/// writes zeros. Throws StorageError (op "fallocate") on every other failure.
///
/// Source: fallocate(2), mode 0.
bool reserve_space(int fd, std::uint64_t nbytes);

/// Alignment in bytes that direct I/O needs for memory and file offsets.
///
/// 4096 where the kernel does not tell; 0 where it says that this file has no direct I/O. Throws
/// StorageError (op "statx") when `fd` is not an open file.
///
/// Source: statx(2), STATX_DIOALIGN (Linux 6.1).
std::uint64_t direct_alignment(int fd);

}  // namespace gdsckpt
