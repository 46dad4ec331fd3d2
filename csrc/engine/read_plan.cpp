#include "engine/read_plan.hpp"

#include <algorithm>

namespace gdsckpt {

std::vector<ReadWindow> plan_read_windows(const std::vector<Extent>& extents,
                                          std::uint64_t window_bytes) {
  std::vector<ReadWindow> windows;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].nbytes == 0) continue;
    std::uint64_t begin = extents[i].file_offset / window_bytes * window_bytes;
    for (; begin < extents[i].file_end(); begin += window_bytes)
      if (windows.empty() || windows.back().range.begin < begin)
        windows.push_back({{begin, begin + window_bytes}, i});
  }
  return windows;
}

ReadRequest next_request(const std::vector<Extent>& extents, FileRange window, std::size_t first,
                         std::uint64_t gap_bytes) noexcept {
  ReadRequest request;
  request.first_extent = first;
  std::size_t i = first;
  for (; i < extents.size() && extents[i].file_offset < window.end; ++i) {
    const std::uint64_t begin = std::max(extents[i].file_offset, window.begin);
    const std::uint64_t end = std::min(extents[i].file_end(), window.end);
    if (begin >= end) continue;
    if (request.num_pieces == 0) {
      request.range = {begin, end};
    } else {
      if (begin - request.range.end > gap_bytes) break;
      request.range.end = end;
    }
    ++request.num_pieces;
  }
  request.past_extent = i;
  return request;
}

}  // namespace gdsckpt
