#include "engine/write_transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "core/crc32.hpp"
#include "core/error.hpp"
#include "core/nvtx.hpp"

namespace gdsckpt {
namespace {

/// As a zip header holds it.
std::array<std::uint8_t, kCrcSlotBytes> little_endian(std::uint32_t crc) noexcept {
  return {static_cast<std::uint8_t>(crc), static_cast<std::uint8_t>(crc >> 8),
          static_cast<std::uint8_t>(crc >> 16), static_cast<std::uint8_t>(crc >> 24)};
}

std::uint64_t sum_nbytes(const std::vector<FileRange>& ranges) noexcept {
  std::uint64_t nbytes = 0;
  for (const FileRange range : ranges) nbytes += range.nbytes();
  return nbytes;
}

[[noreturn]] void raise_changed(const std::string& path, const Piece& piece, std::uint32_t expected,
                                std::uint32_t actual) {
  throw ChecksumError(
      "device memory for bytes " + std::to_string(piece.begin) + " to " +
          std::to_string(piece.end) + " of " + path +
          " is not what it was when its checksum was taken (extent " +
          std::to_string(piece.extent) +
          "). Something writes to it while it is saved, or a copy from the device went wrong: let "
          "nothing change the tensors until the save has read them, and save again.",
      path, piece.begin, expected, actual);
}

}  // namespace

WriteTransfer::WriteTransfer(TransferResources resources, std::shared_ptr<File> file,
                             WritePlan plan, const std::vector<ProducerStream>& producers,
                             std::vector<std::uint32_t> device_crcs)
    : Transfer(std::move(resources), std::move(file), "write", plan.grid().range().begin,
               plan.grid().range().nbytes()),
      plan_(std::move(plan)),
      device_crcs_(plan_.extents(), plan_.grid(), std::move(device_crcs)),
      streams_(plan_.extents(), producers),
      cufile_(Transfer::file(), plan_.extents(), streams_),
      pieces_(plan_.extents().size(), plan_.grid().num_windows()),
      chunk_crcs_(plan_.grid().num_windows()) {}

void WriteTransfer::run_window(std::size_t index) {
  const FileRange window = plan_.grid().window(index);
  const std::vector<FileRange> sent = send_by_cufile(window);
  const std::vector<FileRange> rest = ranges_outside(window, sent);
  if (rest.empty()) return gather(index, window, sent, nullptr);
  const SlabLease slab = slabs_near(device_of(window)).acquire();
  // Direct I/O wants memory and file offset alike modulo the alignment.
  std::uint8_t* const data = slab.data() + window.begin % file().alignment();
  {
    const NvtxRange copying(NvtxName::kCopy, sum_nbytes(rest));
    fetch_from_devices(window, rest, data);
    const NvtxRange checking(NvtxName::kChecksum, sum_nbytes(rest));
    gather(index, window, sent, data);
    fill_slots(window, data);
  }
  for (const FileRange range : rest) {
    const NvtxRange writing(NvtxName::kWrite, range.nbytes());
    add_done(io().write(data + (range.begin - window.begin), range));
  }
}

std::uint64_t WriteTransfer::window_offset(std::size_t index) const noexcept {
  const WindowGrid& grid = plan_.grid();
  return index == grid.num_windows() ? grid.range().nbytes()
                                     : grid.window(index).begin - grid.range().begin;
}

/// Writes what can go straight from devices; the ranges that went, in file order.
std::vector<FileRange> WriteTransfer::send_by_cufile(FileRange window) {
  std::vector<FileRange> sent;
  if (device_crcs_.empty() || !cufile_.is_open()) return sent;
  const std::vector<Extent>& extents = plan_.extents();
  for_each_piece(extents, find_extent(extents, window.begin), window, [&](const Piece& piece) {
    const FileRange range = cufile_.interior(piece);
    if (range.nbytes() == 0 || has_slot(range)) return;
    const std::uint64_t end = cufile_.write(extents[piece.extent], range);
    if (end == range.begin) return;
    sent.push_back({range.begin, end});
    add_done(IoTally{0, 0, end - range.begin});
  });
  return sent;
}

/// True when a CRC slot touches the range: only in a slab can it be filled.
bool WriteTransfer::has_slot(FileRange range) const noexcept {
  const std::size_t slot = plan_.find_slot(range.begin);
  return slot < plan_.slots().size() && plan_.slots()[slot].offset < range.end;
}

/// The first device that has bytes in the window, or kHostDevice.
std::uint64_t WriteTransfer::device_of(FileRange window) const {
  std::uint64_t device = kHostDevice;
  if (streams_.empty()) return device;
  const std::vector<Extent>& extents = plan_.extents();
  for_each_piece(extents, find_extent(extents, window.begin), window, [&](const Piece& piece) {
    if (device == kHostDevice) device = extents[piece.extent].device;
  });
  return device;
}

/// Copies what lies on devices in the ranges `rest` into the slab and waits until it is there.
/// Meanwhile other threads checksum and write what they have fetched.
void WriteTransfer::fetch_from_devices(FileRange window, const std::vector<FileRange>& rest,
                                       std::uint8_t* data) {
  if (streams_.empty()) return;
  const std::vector<Extent>& extents = plan_.extents();
  DeviceCopies copies(streams_);
  for (const FileRange range : rest) {
    for_each_piece(extents, find_extent(extents, range.begin), range, [&](const Piece& piece) {
      const Extent& extent = extents[piece.extent];
      if (extent.is_host()) return;
      copies.to_host(data + (piece.begin - window.begin), extent.device,
                     extent.address + (piece.begin - extent.file_offset), piece.nbytes());
    });
  }
  copies.wait();
}

/// Fills the slab at `data` and takes the checksums. What has been `sent` is not in the slab; where
/// that is the whole window, there is none.
void WriteTransfer::gather(std::size_t index, FileRange window, const std::vector<FileRange>& sent,
                           std::uint8_t* data) {
  std::uint32_t chunk_crc = 0;
  std::uint64_t position = window.begin;
  const auto zero_to = [&](std::uint64_t end) {
    if (position == end) return;
    std::memset(data + (position - window.begin), 0, end - position);
    chunk_crc = crc32_zeros(chunk_crc, end - position);
    position = end;
  };
  const auto checksum = [&](const Piece& piece) {
    const bool was_sent = std::any_of(sent.begin(), sent.end(), [&piece](const FileRange& range) {
      return range.begin < piece.end && piece.begin < range.end;
    });
    if (was_sent) return *device_crcs_.of(piece);
    std::uint8_t* const at = data + (piece.begin - window.begin);
    return plan_.extents()[piece.extent].is_host() ? gather_host_piece(piece, at)
                                                   : check_device_piece(piece, at);
  };
  const std::size_t first = find_extent(plan_.extents(), window.begin);
  for_each_piece(plan_.extents(), first, window, [&](const Piece& piece) {
    zero_to(piece.begin);
    const std::uint32_t crc = checksum(piece);
    chunk_crc = crc32_combine(chunk_crc, crc, piece.nbytes());
    pieces_.record(index, window, piece, plan_.extents()[piece.extent], crc);
    position = piece.end;
  });
  zero_to(window.end);
  chunk_crcs_[index] = chunk_crc;
}

std::uint32_t WriteTransfer::gather_host_piece(const Piece& piece, std::uint8_t* dest) const {
  const Extent& extent = plan_.extents()[piece.extent];
  const auto* const source =
      reinterpret_cast<const std::uint8_t*>(extent.address) + (piece.begin - extent.file_offset);
  return copy_crc32(0, dest, source, piece.nbytes());
}

/// The CRC of a piece that has come from a device, which must be what the device says it is.
std::uint32_t WriteTransfer::check_device_piece(const Piece& piece, const std::uint8_t* data) {
  const std::uint32_t actual = crc32(0, data, piece.nbytes());
  const std::optional<std::uint32_t> expected = device_crcs_.of(piece);
  if (expected && *expected != actual) raise_changed(file().path(), piece, *expected, actual);
  return actual;
}

void WriteTransfer::fill_slots(FileRange window, std::uint8_t* data) {
  const std::vector<CrcSlot>& slots = plan_.slots();
  for (std::size_t i = plan_.find_slot(window.begin);
       i < slots.size() && slots[i].offset < window.end; ++i) {
    require_zeros(slots[i], window, data);
    if (!plan_.is_early(slots[i])) continue;
    const std::uint32_t crc = pieces_.extent_crcs()[slots[i].extent];
    const auto bytes = little_endian(crc);
    // An empty extent is early wherever its slot is: zeros over zeros, and nothing to write.
    if (crc == 0) continue;
    std::memcpy(data + (slots[i].offset - window.begin), bytes.data(), bytes.size());
    patch_chunk_crc(slots[i], crc);
  }
}

void WriteTransfer::require_zeros(const CrcSlot& slot, FileRange window,
                                  const std::uint8_t* data) const {
  const std::uint64_t begin = std::max(slot.offset, window.begin);
  const std::uint64_t end = std::min(slot.end(), window.end);
  if (std::all_of(data + (begin - window.begin), data + (end - window.begin),
                  [](std::uint8_t byte) { return byte == 0; }))
    return;
  throw ConfigError("the CRC slot of extent " + std::to_string(slot.extent) + " at offset " +
                        std::to_string(slot.offset) +
                        " is in use: its four source bytes are not zero. Reserve it with zeros.",
                    "extents");
}

/// Chunk checksums as if the slot had held `crc` from the start. A CRC is linear: a difference of
/// bytes changes it by the shifted difference of the CRCs of these bytes.
void WriteTransfer::patch_chunk_crc(const CrcSlot& slot, std::uint32_t crc) {
  constexpr std::array<std::uint8_t, kCrcSlotBytes> kZeros{};
  const auto bytes = little_endian(crc);
  std::uint64_t position = slot.offset;
  while (position < slot.end()) {
    const std::size_t index = plan_.grid().index_of(position);
    const FileRange window = plan_.grid().window(index);
    const std::uint64_t end = std::min(slot.end(), window.end);
    const std::uint64_t nbytes = end - position;
    const std::uint8_t* const part = bytes.data() + (position - slot.offset);
    const std::uint32_t difference = crc32_detail::table_update(0, part, nbytes) ^
                                     crc32_detail::table_update(0, kZeros.data(), nbytes);
    chunk_crcs_[index] ^= crc32_shift(difference, window.end - end);
    position = end;
  }
}

void WriteTransfer::finish() {
  pieces_.combine();
  for (const CrcSlot& slot : plan_.slots()) {
    if (plan_.is_early(slot)) continue;
    const std::uint32_t crc = pieces_.extent_crcs()[slot.extent];
    const auto bytes = little_endian(crc);
    io().write_buffered(bytes.data(), FileRange{slot.offset, slot.end()});
    patch_chunk_crc(slot, crc);
  }
}

}  // namespace gdsckpt
