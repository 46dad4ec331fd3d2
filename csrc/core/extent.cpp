#include "core/extent.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

[[noreturn]] void reject(std::size_t index, const std::string& why) {
  throw ConfigError("extent " + std::to_string(index) + " can't be used: " + why + ".", "extents");
}

}  // namespace

void check_extents(const std::vector<Extent>& extents) {
  constexpr auto kMaxFileOffset =
      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t previous_end = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    if (extent.nbytes > 0 && extent.address == 0) reject(i, "it has bytes but address 0");
    if (extent.nbytes > std::numeric_limits<std::uint64_t>::max() - extent.address)
      reject(i, "its memory ends above 2**64");
    if (extent.file_offset > kMaxFileOffset || extent.nbytes > kMaxFileOffset - extent.file_offset)
      reject(i, "it ends above file offset 2**63");
    if (extent.file_offset < previous_end)
      reject(i, "file offset " + std::to_string(extent.file_offset) +
                    " is below the end of the extent before, " + std::to_string(previous_end) +
                    "; sort the extents by file offset and do not let them overlap");
    previous_end = extent.file_end();
  }
}

std::size_t find_extent(const std::vector<Extent>& extents, std::uint64_t file_offset) noexcept {
  const auto found = std::partition_point(
      extents.begin(), extents.end(),
      [file_offset](const Extent& extent) { return extent.file_end() <= file_offset; });
  return static_cast<std::size_t>(found - extents.begin());
}

}  // namespace gdsckpt
