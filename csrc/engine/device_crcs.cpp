#include "engine/device_crcs.hpp"

#include <string>
#include <utility>

#include "core/error.hpp"

namespace gdsckpt {

DeviceCrcs::DeviceCrcs(const std::vector<Extent>& extents, const WindowGrid& grid,
                       std::vector<std::uint32_t> crcs)
    : grid_(grid), crcs_(std::move(crcs)) {
  if (crcs_.empty()) return;
  runs_.reserve(extents.size());
  std::size_t num_pieces = 0;
  for (const Extent& extent : extents) {
    const bool has_pieces = !extent.is_host() && extent.nbytes > 0;
    const std::size_t first = has_pieces ? grid_.index_of(extent.file_offset) : 0;
    runs_.push_back({num_pieces, first, extent.is_host()});
    if (has_pieces) num_pieces += grid_.index_of(extent.file_end() - 1) - first + 1;
  }
  if (num_pieces != crcs_.size())
    throw ConfigError("device_crcs holds " + std::to_string(crcs_.size()) +
                          " checksums; the extents on devices have " + std::to_string(num_pieces) +
                          " pieces, cut at multiples of chunk_bytes of the file offset.",
                      "device_crcs");
}

std::optional<std::uint32_t> DeviceCrcs::of(const Piece& piece) const noexcept {
  if (crcs_.empty()) return std::nullopt;
  const Run& run = runs_[piece.extent];
  if (run.is_host) return std::nullopt;
  return crcs_[run.first_crc + grid_.index_of(piece.begin) - run.first_window];
}

}  // namespace gdsckpt
