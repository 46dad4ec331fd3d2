#pragma once

#include <cstdint>

#include "core/extent.hpp"
#include "engine/cufile_handle.hpp"
#include "engine/file.hpp"

namespace gdsckpt {

/// Moves ranges of one file from and to memory by cuFile, each result decoded, repeated where it
/// says so and continued when short. Keeps no state; any thread may call.
class CuFileIo {
 public:
  /// `handle`: the file's.
  CuFileIo(File& file, CuFileHandle& handle) noexcept : file_(file), handle_(handle) {}

  /// Write and read `range`, which together with its place in memory is aligned (cufile_policy).
  /// `base`: begin of the storage; `buffer_offset`: of the range's first byte from there.
  ///
  /// Return how far they came: `range.end`, or less where cuFile refused, which is then recorded in
  /// the file; the rest is to go through the host. Throw StorageError, ShortTransferError.
  std::uint64_t write(std::uint64_t base, std::uint64_t buffer_offset, FileRange range);
  std::uint64_t read(std::uint64_t base, std::uint64_t buffer_offset, FileRange range);

 private:
  template <typename Call>
  std::uint64_t move(const char* op, FileRange range, Call&& call);
  void refuse(const char* op, FileRange rest, int code);

  File& file_;
  CuFileHandle& handle_;
};

}  // namespace gdsckpt
