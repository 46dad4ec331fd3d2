#include "engine/gather.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "core/parallel.hpp"

namespace gdsckpt {
namespace {

// What one thread copies at a time: small enough that all end together, large enough that the
// address translation and prefetch of the processor run smoothly.
constexpr std::uint64_t kUnitBytes = 4 * 1024 * 1024;

/// Bytes of the rows, in their order, from byte `offset` of row `row` on.
struct Unit {
  std::size_t row;
  std::uint64_t offset;
  std::uint64_t nbytes;
};

void check_rows(const std::vector<CopyRow>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].nbytes > 0 && (rows[i].source == 0 || rows[i].dest == 0))
      throw ConfigError("row " + std::to_string(i) + " of " + std::to_string(rows[i].nbytes) +
                            " bytes has an address of 0; there are no bytes there.",
                        "rows");
}

bool is_host(const CopyRow& row) noexcept { return row.device == kHostDevice; }

std::vector<Unit> cut(const std::vector<CopyRow>& rows) {
  std::vector<Unit> units;
  std::uint64_t room = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (!is_host(rows[row])) continue;
    for (std::uint64_t offset = 0; offset < rows[row].nbytes;) {
      if (room == 0) {
        units.push_back({row, offset, 0});
        room = kUnitBytes;
      }
      const std::uint64_t nbytes = std::min(room, rows[row].nbytes - offset);
      units.back().nbytes += nbytes;
      room -= nbytes;
      offset += nbytes;
    }
  }
  return units;
}

void copy_unit(const std::vector<CopyRow>& rows, Unit unit) noexcept {
  for (; unit.nbytes > 0; ++unit.row, unit.offset = 0) {
    const CopyRow& row = rows[unit.row];
    if (!is_host(row)) continue;
    const std::uint64_t nbytes = std::min(unit.nbytes, row.nbytes - unit.offset);
    if (nbytes == 0) continue;
    std::memcpy(reinterpret_cast<void*>(row.dest + unit.offset),
                reinterpret_cast<const void*>(row.source + unit.offset), nbytes);
    unit.nbytes -= nbytes;
  }
}

std::vector<Extent> extents_on_devices(const std::vector<CopyRow>& rows) {
  std::vector<Extent> extents;
  for (const CopyRow& row : rows)
    if (!is_host(row)) extents.push_back({row.source, row.nbytes, 0, kNoCrcSlot, row.device});
  return extents;
}

}  // namespace

void gather(const std::vector<CopyRow>& rows, const std::vector<ProducerStream>& producers,
            std::size_t num_threads) {
  check_rows(rows);
  const std::vector<Unit> units = cut(rows);
  const DeviceStreams streams(extents_on_devices(rows), producers);
  DeviceCopies copies(streams);
  if (!streams.empty())
    for (const CopyRow& row : rows)
      if (!is_host(row) && row.nbytes > 0)
        copies.to_host(reinterpret_cast<std::uint8_t*>(row.dest), row.device, row.source,
                       row.nbytes);
  for_each_unit(units.size(), num_threads,
                [&](std::size_t unit) noexcept { copy_unit(rows, units[unit]); });
  copies.wait();
}

}  // namespace gdsckpt
