#include "engine/write_plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

std::vector<Extent> checked(std::vector<Extent> extents) {
  check_extents(extents);
  return extents;
}

}  // namespace

FileRange range_of(const std::vector<Extent>& extents) noexcept {
  if (extents.empty()) return FileRange{0, 0};
  return FileRange{extents.front().file_offset, extents.back().file_end()};
}

WindowGrid::WindowGrid(FileRange range, std::uint64_t chunk_bytes) noexcept
    : range_(range), chunk_bytes_(chunk_bytes), num_windows_(0) {
  if (range.begin < range.end) num_windows_ = index_of(range.end - 1) + 1;
}

FileRange WindowGrid::window(std::size_t index) const noexcept {
  const std::uint64_t chunk = range_.begin / chunk_bytes_ + index;
  return FileRange{std::max(range_.begin, chunk * chunk_bytes_),
                   std::min(range_.end, (chunk + 1) * chunk_bytes_)};
}

std::size_t WindowGrid::index_of(std::uint64_t file_offset) const noexcept {
  return file_offset / chunk_bytes_ - range_.begin / chunk_bytes_;
}

WritePlan::WritePlan(std::vector<Extent> extents, std::uint64_t chunk_bytes)
    : extents_(checked(std::move(extents))), grid_(range_of(extents_), chunk_bytes) {
  collect_slots();
}

void WritePlan::collect_slots() {
  for (std::size_t i = 0; i < extents_.size(); ++i)
    if (extents_[i].crc_offset != kNoCrcSlot) slots_.push_back({extents_[i].crc_offset, i});
  const auto is_before = [](const CrcSlot& a, const CrcSlot& b) { return a.offset < b.offset; };
  if (!std::is_sorted(slots_.begin(), slots_.end(), is_before))
    std::sort(slots_.begin(), slots_.end(), is_before);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    check_slot(slots_[i]);
    if (i > 0 && slots_[i].offset < slots_[i - 1].end())
      throw ConfigError("the CRC slots of extents " + std::to_string(slots_[i - 1].extent) +
                            " and " + std::to_string(slots_[i].extent) + " overlap at offset " +
                            std::to_string(slots_[i].offset) + ".",
                        "extents");
  }
}

void WritePlan::check_slot(const CrcSlot& slot) const {
  const auto reject = [&slot](const std::string& why) {
    throw ConfigError("the CRC slot of extent " + std::to_string(slot.extent) + " at offset " +
                          std::to_string(slot.offset) + " can't be used: " + why + ".",
                      "extents");
  };
  // Compared so that no sum can overflow.
  if (slot.offset < grid_.range().begin) reject("it lies before the first extent");
  if (extents_[slot.extent].file_offset < kCrcSlotBytes ||
      slot.offset > extents_[slot.extent].file_offset - kCrcSlotBytes)
    reject("it must end before its extent begins");
  for (std::size_t i = find_extent(extents_, slot.offset);
       i < extents_.size() && extents_[i].file_offset < slot.end(); ++i)
    if (extents_[i].crc_offset != kNoCrcSlot && extents_[i].nbytes > 0)
      reject("extent " + std::to_string(i) + ", in which it lies, has a stored CRC itself");
}

std::size_t WritePlan::find_slot(std::uint64_t file_offset) const noexcept {
  const auto found = std::partition_point(
      slots_.begin(), slots_.end(),
      [file_offset](const CrcSlot& slot) { return slot.end() <= file_offset; });
  return static_cast<std::size_t>(found - slots_.begin());
}

bool WritePlan::is_early(const CrcSlot& slot) const noexcept {
  const Extent& extent = extents_[slot.extent];
  if (extent.nbytes == 0) return true;  // its CRC is 0, which is what stands there
  // The slot ends before the extent begins, so these two bytes are the outermost.
  return grid_.index_of(slot.offset) == grid_.index_of(extent.file_end() - 1);
}

}  // namespace gdsckpt
