#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "core/extent.hpp"
#include "engine/device_streams.hpp"
#include "engine/file.hpp"

namespace gdsckpt {

/// What of one transfer goes between device memory and the file by cuFile, past the host. Any
/// thread may call.
class CuFilePath {
 public:
  /// Looks at the memory of each extent; what cuFile must not see is noted in the file. All three
  /// live longer. Throws CudaError.
  CuFilePath(File& file, const std::vector<Extent>& extents, const DeviceStreams& streams);

  /// True while anything may go this way.
  bool is_open() const noexcept { return !is_fit_.empty() && file_.cufile() != nullptr; }
  /// The part of a piece that may go this way; empty where none may.
  FileRange interior(const Piece& piece) const noexcept;

  /// Write and read the interior of a piece of `extent`; return how far they came. See CuFileIo.
  /// The first of all waits for the producers: cuFile is not ordered with streams.
  std::uint64_t write(const Extent& extent, FileRange range);
  std::uint64_t read(const Extent& extent, FileRange range);

 private:
  void wait_for_producers();

  File& file_;
  const std::vector<Extent>& extents_;
  const DeviceStreams& streams_;
  std::uint64_t alignment_ = 0;
  std::vector<bool> is_fit_;  // one for each extent; none where the file has no registration
  std::mutex mutex_;
  bool has_waited_ = false;
};

/// The ranges of `window` outside `taken`, which ascend inside it and do not overlap.
std::vector<FileRange> ranges_outside(FileRange window, const std::vector<FileRange>& taken);

}  // namespace gdsckpt
