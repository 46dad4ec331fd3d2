#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/extent.hpp"
#include "engine/write_plan.hpp"

namespace gdsckpt {

/// Checksums that devices took of their own memory, before a write. One for each piece, as the
/// windows cut the extents: first all of the first extent on a device, in file order, then those of
/// the next.
class DeviceCrcs {
 public:
  /// `crcs` may be empty: none were taken. Throws ConfigError (field "device_crcs") if there are
  /// more or fewer than pieces.
  DeviceCrcs(const std::vector<Extent>& extents, const WindowGrid& grid,
             std::vector<std::uint32_t> crcs);

  bool empty() const noexcept { return crcs_.empty(); }
  /// That of a whole piece; none for one in host memory, or where none were taken.
  std::optional<std::uint32_t> of(const Piece& piece) const noexcept;

 private:
  struct Run {
    std::size_t first_crc;     // index of the extent's first one
    std::size_t first_window;  // which that is for
    bool is_host;
  };
  const WindowGrid grid_;
  const std::vector<std::uint32_t> crcs_;
  std::vector<Run> runs_;  // one for each extent; none where there are no CRCs
};

}  // namespace gdsckpt
