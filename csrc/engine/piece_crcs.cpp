#include "engine/piece_crcs.hpp"

#include "core/crc32.hpp"

namespace gdsckpt {

PieceCrcs::PieceCrcs(std::size_t num_extents, std::size_t num_windows)
    : extent_crcs_(num_extents), windows_(num_windows) {}

void PieceCrcs::record(std::size_t index, FileRange window, const Piece& piece,
                       const Extent& extent, std::uint32_t crc) noexcept {
  WindowPieces& pieces = windows_[index];
  if (extent.file_offset < window.begin) {
    pieces.head_nbytes = piece.nbytes();
    pieces.head_extent = piece.extent;
    pieces.head_crc = crc;
  } else if (extent.file_end() > window.end) {
    pieces.has_tail = true;
    pieces.tail_extent = piece.extent;
    pieces.tail_crc = crc;
  } else {
    extent_crcs_[piece.extent] = crc;
  }
}

void PieceCrcs::combine() noexcept {
  for (const WindowPieces& pieces : windows_) {
    if (pieces.head_nbytes > 0) {
      std::uint32_t& crc = extent_crcs_[pieces.head_extent];
      crc = crc32_combine(crc, pieces.head_crc, pieces.head_nbytes);
    }
    if (pieces.has_tail) extent_crcs_[pieces.tail_extent] = pieces.tail_crc;
  }
}

}  // namespace gdsckpt
