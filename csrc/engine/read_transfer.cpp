#include "engine/read_transfer.hpp"

#include <algorithm>
#include <utility>

#include "core/crc32.hpp"
#include "core/nvtx.hpp"
#include "engine/write_plan.hpp"

namespace gdsckpt {
namespace {

// A block that was just read is still in the second-level cache when its CRC is taken.
constexpr std::uint64_t kBlockBytes = 256 * 1024;

// Pieces shorter than this on average are read together into a slab: a system call for each would
// cost more than the copy.
constexpr std::uint64_t kStraightBytes = 64 * 1024;

std::uint64_t sum_nbytes(const std::vector<Extent>& extents) noexcept {
  std::uint64_t nbytes = 0;
  for (const Extent& extent : extents) nbytes += extent.nbytes;
  return nbytes;
}

IoTally read_direct(PosixIo io, std::uint8_t* data, FileRange range) {
  const NvtxRange reading(NvtxName::kRead, range.nbytes());
  return io.read_direct(data, range);
}

/// Reads `range` through the page cache in blocks and returns its CRC32. The blocks follow each
/// other at `data`, or all go to the same place when they are not `kept`.
std::uint32_t read_blocks(PosixIo io, std::uint8_t* data, FileRange range, bool kept) {
  std::uint32_t crc = 0;
  for (std::uint64_t position = range.begin; position < range.end;) {
    const FileRange block{position, std::min(range.end, position + kBlockBytes)};
    std::uint8_t* const dest = kept ? data + (position - range.begin) : data;
    try {
      const NvtxRange reading(NvtxName::kRead, block.nbytes());
      io.read_buffered(dest, block);
    } catch (const ShortTransferError& error) {
      // Told in terms of the whole range, which the reader of the message knows.
      throw make_short_transfer_error(
          {error.context().op, error.context().path, range.begin, range.nbytes()},
          block.begin - range.begin + error.actual_bytes());
    }
    const NvtxRange checking(NvtxName::kChecksum, block.nbytes());
    crc = crc32(crc, dest, block.nbytes());
    position = block.end;
  }
  return crc;
}

}  // namespace

ReadTransfer::ReadTransfer(TransferResources resources, std::shared_ptr<File> file,
                           std::vector<Extent> extents, std::uint64_t gap_bytes,
                           const std::vector<ProducerStream>& producers)
    : Transfer(std::move(resources), std::move(file), "read", range_of(extents).begin,
               sum_nbytes(extents)),
      extents_(std::move(extents)),
      gap_bytes_(gap_bytes),
      streams_(extents_, producers),
      cufile_(Transfer::file(), extents_, streams_),
      went_by_cufile_(cufile_.is_open() ? new std::atomic<bool>[extents_.size()]() : nullptr),
      windows_(plan_read_windows(extents_, slabs().slab_bytes())),
      pieces_(extents_.size(), windows_.size()) {}

void ReadTransfer::run_window(std::size_t index) {
  const ReadWindow& window = windows_[index];
  for (const FileRange range : ranges_outside(window.range, fetch_by_cufile(window))) {
    ReadRequest request = next_request(extents_, range, window.first_extent, gap_bytes_);
    while (request.num_pieces > 0) {
      run_request(index, request);
      request = next_request(extents_, range, request.past_extent, gap_bytes_);
    }
  }
}

/// Reads what can go straight to devices; the ranges that went, in file order.
std::vector<FileRange> ReadTransfer::fetch_by_cufile(const ReadWindow& window) {
  std::vector<FileRange> fetched;
  if (!cufile_.is_open()) return fetched;
  for_each_piece(extents_, window.first_extent, window.range, [&](const Piece& piece) {
    const FileRange range = cufile_.interior(piece);
    if (range.nbytes() == 0 || io().is_resident(range)) return;
    const std::uint64_t end = cufile_.read(extents_[piece.extent], range);
    if (end == range.begin) return;
    went_by_cufile_[piece.extent].store(true, std::memory_order_relaxed);
    fetched.push_back({range.begin, end});
    add_done(IoTally{0, 0, end - range.begin});
  });
  return fetched;
}

void ReadTransfer::finish() {
  pieces_.combine();
  if (went_by_cufile_ == nullptr) return;
  for (std::size_t i = 0; i < extents_.size(); ++i)
    if (went_by_cufile_[i].load(std::memory_order_relaxed)) pieces_.forget(i);
}

void ReadTransfer::run_request(std::size_t index, const ReadRequest& request) {
  if (file().is_direct()) {
    // What is in the page cache is faster from there, and need not be read from the device again.
    if (!io().is_resident(request.range)) return read_through_slab(index, request, true);
  } else {
    io().read_ahead(request.range);
  }
  const bool is_straight =
      device_of(request) == kHostDevice &&
      (request.num_pieces == 1 || request.range.nbytes() / request.num_pieces >= kStraightBytes);
  if (is_straight) return read_straight(index, request);
  read_through_slab(index, request, false);
}

void ReadTransfer::read_straight(std::size_t index, const ReadRequest& request) {
  const FileRange window = windows_[index].range;
  for_each_piece(extents_, request.first_extent, request.range, [&](const Piece& piece) {
    const std::uint32_t crc =
        read_blocks(io(), destination(piece), FileRange{piece.begin, piece.end}, true);
    pieces_.record(index, window, piece, extents_[piece.extent], crc);
    add_done(IoTally{piece.nbytes(), 0});
  });
}

void ReadTransfer::read_through_slab(std::size_t index, const ReadRequest& request,
                                     bool is_direct) {
  const FileRange window = windows_[index].range;
  const SlabLease slab = slabs_near(device_of(request)).acquire();
  std::uint8_t* const data = slab.data() + request.range.begin % file().alignment();
  if (is_direct) {
    // A request that direct I/O did not serve to its end counts as buffered.
    is_direct = read_direct(io(), slab.data(), request.range).buffered_bytes == 0;
  } else {
    const NvtxRange reading(NvtxName::kRead, request.range.nbytes());
    io().read_buffered(data, request.range);
  }
  // One pass over the slab does both.
  const NvtxRange copying(NvtxName::kCopy, request.range.nbytes());
  const NvtxRange checking(NvtxName::kChecksum, request.range.nbytes());
  DeviceCopies copies(streams_);
  for_each_piece(extents_, request.first_extent, request.range, [&](const Piece& piece) {
    const std::uint8_t* const source = data + (piece.begin - request.range.begin);
    const std::uint32_t crc = extents_[piece.extent].is_host()
                                  ? copy_crc32(0, destination(piece), source, piece.nbytes())
                                  : send(copies, piece, source);
    pieces_.record(index, window, piece, extents_[piece.extent], crc);
    add_done(is_direct ? IoTally{0, piece.nbytes()} : IoTally{piece.nbytes(), 0});
  });
  copies.wait();
}

std::uint32_t ReadTransfer::send(DeviceCopies& copies, const Piece& piece,
                                 const std::uint8_t* source) const {
  const Extent& extent = extents_[piece.extent];
  copies.to_device(extent.device, extent.address + (piece.begin - extent.file_offset), source,
                   piece.nbytes());
  return crc32(0, source, piece.nbytes());
}

/// The first device that the request reads for, or kHostDevice.
std::uint64_t ReadTransfer::device_of(const ReadRequest& request) const {
  std::uint64_t device = kHostDevice;
  if (streams_.empty()) return device;
  for_each_piece(extents_, request.first_extent, request.range, [&](const Piece& piece) {
    if (device == kHostDevice) device = extents_[piece.extent].device;
  });
  return device;
}

/// Where in host memory a piece goes.
std::uint8_t* ReadTransfer::destination(const Piece& piece) const noexcept {
  const Extent& extent = extents_[piece.extent];
  return reinterpret_cast<std::uint8_t*>(extent.address) + (piece.begin - extent.file_offset);
}

ScanTransfer::ScanTransfer(TransferResources resources, std::shared_ptr<File> file, FileRange range,
                           std::uint64_t chunk_bytes)
    : Transfer(std::move(resources), std::move(file), "scan", range.begin, range.nbytes()),
      range_(range),
      chunk_bytes_(chunk_bytes),
      chunk_crcs_(WindowGrid(range, chunk_bytes).num_windows()) {}

void ScanTransfer::run_window(std::size_t index) {
  const FileRange window = WindowGrid(range_, chunk_bytes_).window(index);
  const SlabLease slab = slabs().acquire();
  if (file().is_direct() && !io().is_resident(window)) {
    const IoTally tally = read_direct(io(), slab.data(), window);
    const std::uint8_t* const data = slab.data() + window.begin % file().alignment();
    const NvtxRange checking(NvtxName::kChecksum, window.nbytes());
    chunk_crcs_[index] = crc32(0, data, window.nbytes());
    return add_done(tally);
  }
  if (!file().is_direct()) io().read_ahead(window);
  chunk_crcs_[index] = read_blocks(io(), slab.data(), window, false);
  add_done(IoTally{window.nbytes(), 0});
}

}  // namespace gdsckpt
