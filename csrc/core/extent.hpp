#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gdsckpt {

/// `Extent::crc_offset` of an extent whose checksum is not to be stored in the file.
inline constexpr std::uint64_t kNoCrcSlot = ~std::uint64_t{0};

/// `Extent::device` of an extent in host memory.
inline constexpr std::uint64_t kHostDevice = ~std::uint64_t{0};

/// Number of bytes of a stored CRC32.
inline constexpr std::uint64_t kCrcSlotBytes = 4;

/// Contiguous bytes to move. A row of five 64-bit numbers: Python hands over arrays of them.
struct Extent {
  std::uint64_t address;               ///< in memory; 0 only where `nbytes` is 0
  std::uint64_t nbytes;                ///< may be 0
  std::uint64_t file_offset;           ///< of the first byte
  std::uint64_t crc_offset;            ///< where the file holds this extent's CRC32, or kNoCrcSlot
  std::uint64_t device = kHostDevice;  ///< CUDA's number of the GPU, or kHostDevice

  bool is_host() const noexcept { return device == kHostDevice; }
  std::uint64_t file_end() const noexcept { return file_offset + nbytes; }
};
static_assert(sizeof(Extent) == 40, "rows of five uint64");

/// Bytes [begin, end) of a file.
struct FileRange {
  std::uint64_t begin;
  std::uint64_t end;

  std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// The part of an extent that lies in a window: file bytes [begin, end) of extent `extent`.
struct Piece {
  std::size_t extent;
  std::uint64_t begin;
  std::uint64_t end;

  std::uint64_t nbytes() const noexcept { return end - begin; }
};

/// Throws ConfigError (field "extents") unless the extents ascend by file offset, do not overlap,
/// have an address where they have bytes, and end below 2^63.
void check_extents(const std::vector<Extent>& extents);

/// Index of the first extent that ends behind `file_offset`; the number of extents if none does.
std::size_t find_extent(const std::vector<Extent>& extents, std::uint64_t file_offset) noexcept;

/// Calls `visit(piece)` for each non-empty piece in `window`, in file order. `first` is an extent
/// at or before the first one in the window, as find_extent gives it.
template <typename Visit>
void for_each_piece(const std::vector<Extent>& extents, std::size_t first, FileRange window,
                    Visit&& visit) {
  for (std::size_t i = first; i < extents.size() && extents[i].file_offset < window.end; ++i) {
    const std::uint64_t begin =
        extents[i].file_offset > window.begin ? extents[i].file_offset : window.begin;
    const std::uint64_t end =
        extents[i].file_end() < window.end ? extents[i].file_end() : window.end;
    if (begin < end) visit(Piece{i, begin, end});
  }
}

}  // namespace gdsckpt
