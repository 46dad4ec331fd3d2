#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"

namespace gdsckpt {

/// A window of the file and the first extent in it.
struct ReadWindow {
  FileRange range;
  std::size_t first_extent;
};

/// The windows, cut at multiples of `window_bytes` of the file offset, that hold bytes of extents;
/// holes as long as a window cost nothing. The windows' ranges are not clipped to the extents.
std::vector<ReadWindow> plan_read_windows(const std::vector<Extent>& extents,
                                          std::uint64_t window_bytes);

/// One request: the hull of neighbouring pieces.
struct ReadRequest {
  FileRange range{0, 0};
  std::size_t first_extent = 0;
  std::size_t past_extent = 0;  ///< one behind the last extent of the request
  std::size_t num_pieces = 0;   ///< 0: the window holds no more
};

/// The next request in `window`, beginning with extent `first` or later. Pieces with a hole of at
/// most `gap_bytes` between them are read together.
ReadRequest next_request(const std::vector<Extent>& extents, FileRange window, std::size_t first,
                         std::uint64_t gap_bytes) noexcept;

}  // namespace gdsckpt
