#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"

namespace gdsckpt {

/// Place in the file for the CRC32 of an extent: four bytes, little-endian.
struct CrcSlot {
  std::uint64_t offset;
  std::size_t extent;

  std::uint64_t end() const noexcept { return offset + kCrcSlotBytes; }
};

/// Cuts a file range at multiples of `chunk_bytes` of the file offset. Windows are computed, not
/// stored.
class WindowGrid {
 public:
  /// `chunk_bytes`: at least 1.
  WindowGrid(FileRange range, std::uint64_t chunk_bytes) noexcept;

  FileRange range() const noexcept { return range_; }
  std::size_t num_windows() const noexcept { return num_windows_; }
  FileRange window(std::size_t index) const noexcept;
  /// Index of the window that holds `file_offset`, which is in the range.
  std::size_t index_of(std::uint64_t file_offset) const noexcept;

 private:
  FileRange range_;
  std::uint64_t chunk_bytes_;
  std::size_t num_windows_;
};

/// What is to be written where: extents, the windows they are gathered in, and the slots of their
/// checksums. Pure; does no I/O.
class WritePlan {
 public:
  /// Throws ConfigError for extents or slots that can't be: a slot must lie in the range and before
  /// its extent, may not overlap another slot, nor an extent whose own CRC is to be stored.
  WritePlan(std::vector<Extent> extents, std::uint64_t chunk_bytes);

  const std::vector<Extent>& extents() const noexcept { return extents_; }
  const WindowGrid& grid() const noexcept { return grid_; }
  /// Ascending by offset.
  const std::vector<CrcSlot>& slots() const noexcept { return slots_; }
  /// Index of the first slot that ends behind `file_offset`.
  std::size_t find_slot(std::uint64_t file_offset) const noexcept;

  /// True when slot and extent lie in one window, so that the slot can be filled before the window
  /// is written. The others are written after the last window.
  bool is_early(const CrcSlot& slot) const noexcept;

 private:
  void collect_slots();
  void check_slot(const CrcSlot& slot) const;

  std::vector<Extent> extents_;
  WindowGrid grid_;
  std::vector<CrcSlot> slots_;
};

/// Bytes [first file offset, last end) of sorted extents.
FileRange range_of(const std::vector<Extent>& extents) noexcept;

}  // namespace gdsckpt
