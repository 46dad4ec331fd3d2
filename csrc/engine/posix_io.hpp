#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "core/extent.hpp"
#include "engine/file.hpp"

namespace gdsckpt {

/// The system calls that move bytes, as one table, so that tests can inject results.
struct Syscalls {
  ssize_t (*pread)(int fd, void* data, std::size_t nbytes, off_t offset);
  ssize_t (*pwrite)(int fd, const void* data, std::size_t nbytes, off_t offset);
  int (*sync_file_range)(int fd, off_t offset, off_t nbytes, unsigned int flags);
  int (*posix_fadvise)(int fd, off_t offset, off_t nbytes, int advice);
  int (*mincore)(void* address, std::size_t nbytes, unsigned char* is_resident);
};

/// The real ones.
const Syscalls& real_syscalls() noexcept;

/// How many file bytes went which way.
struct IoTally {
  std::uint64_t buffered_bytes = 0;
  std::uint64_t direct_bytes = 0;
  std::uint64_t cufile_bytes = 0;
};

/// Reads and writes ranges of one file, each call checked, repeated after EINTR and continued when
/// short. Keeps no state; any thread may call.
class PosixIo {
 public:
  PosixIo(const Syscalls& syscalls, File& file) noexcept : sys_(syscalls), file_(file) {}

  /// Writes `range` from `data`, which stands at the same distance from a multiple of the file's
  /// alignment as `range.begin` does. The aligned middle goes by direct I/O where the file has it,
  /// the rest through the page cache, whose write-back is then started, so that the later
  /// fdatasync is short. EINVAL or EOPNOTSUPP from a direct call: the file goes on buffered.
  ///
  /// Throws StorageError, ShortTransferError.
  IoTally write(const std::uint8_t* data, FileRange range);

  /// Writes `range` through the page cache, without starting its write-back. Throws as `write`.
  void write_buffered(const std::uint8_t* data, FileRange range);

  /// Reads `range` through the page cache. Throws StorageError, ShortTransferError at the end of
  /// the file.
  void read_buffered(std::uint8_t* data, FileRange range);

  /// Reads `range` by direct I/O; `data` stands for file offset `range.begin` rounded down to the
  /// file's alignment and has room up to `range.end` rounded up. Bytes around `range` are
  /// undefined. A refusal is recorded in the file and the rest read buffered.
  ///
  /// Throws as `read_buffered`.
  IoTally read_direct(std::uint8_t* data, FileRange range);

  /// True when all of `range` is in the page cache. Where the kernel does not tell (mincore(2):
  /// only to those who may write the file) it says yes to all, which costs time only.
  bool is_resident(FileRange range) noexcept;

  /// Starts reading `range` into the page cache. Advice only.
  void read_ahead(FileRange range) noexcept;

 private:
  /// One direct call after the other until the end, a refusal or an unaligned position; returns
  /// how far it came.
  std::uint64_t write_direct(const std::uint8_t* data, FileRange range);
  void start_write_back(FileRange range) noexcept;
  bool is_refusal(const char* op, FileRange rest, int code);

  const Syscalls& sys_;
  File& file_;
};

}  // namespace gdsckpt
