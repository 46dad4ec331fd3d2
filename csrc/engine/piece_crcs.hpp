#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"

namespace gdsckpt {

/// Checksums of extents, put together from pieces that windows compute in any order and thread.
///
/// An extent that lies in one window has its CRC at once. One that crosses windows leaves a head
/// piece in all but the first of them and a tail piece in the first.
class PieceCrcs {
 public:
  PieceCrcs(std::size_t num_extents, std::size_t num_windows);

  /// Records the CRC of a piece in window `index`, whose range is `window`. Each piece once; pieces
  /// of different windows may be recorded at the same time.
  void record(std::size_t index, FileRange window, const Piece& piece, const Extent& extent,
              std::uint32_t crc) noexcept;

  /// Combines the pieces, after the last was recorded.
  void combine() noexcept;

  /// Drops the CRC of an extent, after `combine`.
  void forget(std::size_t extent) noexcept { extent_crcs_[extent] = 0; }

  /// CRC of each extent, 0 for an empty one. Of those that cross windows only after `combine`.
  const std::vector<std::uint32_t>& extent_crcs() const noexcept { return extent_crcs_; }

 private:
  struct WindowPieces {
    std::uint64_t head_nbytes = 0;  // 0: no head
    std::size_t head_extent = 0;
    std::size_t tail_extent = 0;
    std::uint32_t head_crc = 0;
    std::uint32_t tail_crc = 0;
    bool has_tail = false;
  };
  std::vector<std::uint32_t> extent_crcs_;
  std::vector<WindowPieces> windows_;
};

}  // namespace gdsckpt
