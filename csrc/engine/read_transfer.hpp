#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/extent.hpp"
#include "engine/cufile_path.hpp"
#include "engine/device_streams.hpp"
#include "engine/piece_crcs.hpp"
#include "engine/read_plan.hpp"
#include "engine/transfer.hpp"

namespace gdsckpt {

/// Reads extents to their addresses, with the CRC32 of the bytes that arrived there.
///
/// Where the file is registered with cuFile, the large aligned part of each piece that is not in
/// the page cache goes straight to its device. The CRC of such an extent is 0: the host has not
/// seen its bytes.
class ReadTransfer final : public Transfer {
 public:
  /// `extents` have been checked; the file's alignment divides the slabs. Throws as DeviceStreams
  /// and CuFilePath.
  ReadTransfer(TransferResources resources, std::shared_ptr<File> file, std::vector<Extent> extents,
               std::uint64_t gap_bytes, const std::vector<ProducerStream>& producers);

  std::size_t num_jobs() const noexcept override { return windows_.size(); }

 protected:
  void run_window(std::size_t index) override;
  void finish() override;
  const std::vector<std::uint32_t>* extent_crcs_or_null() const override {
    return &pieces_.extent_crcs();
  }

 private:
  std::vector<FileRange> fetch_by_cufile(const ReadWindow& window);
  void run_request(std::size_t index, const ReadRequest& request);
  /// Into the destinations, through the page cache.
  void read_straight(std::size_t index, const ReadRequest& request);
  /// Into a slab, then spread over the destinations.
  void read_through_slab(std::size_t index, const ReadRequest& request, bool is_direct);
  /// From a slab to a device, in the background, and its CRC.
  std::uint32_t send(DeviceCopies& copies, const Piece& piece, const std::uint8_t* source) const;
  std::uint64_t device_of(const ReadRequest& request) const;
  std::uint8_t* destination(const Piece& piece) const noexcept;

  const std::vector<Extent> extents_;
  const std::uint64_t gap_bytes_;
  const DeviceStreams streams_;
  CuFilePath cufile_;
  std::unique_ptr<std::atomic<bool>[]> went_by_cufile_;  // one for each extent
  const std::vector<ReadWindow> windows_;
  PieceCrcs pieces_;
};

/// Checksums of the chunks of a file range; the bytes go nowhere.
class ScanTransfer final : public Transfer {
 public:
  /// The slabs must hold a chunk each; the file's alignment divides `chunk_bytes`.
  ScanTransfer(TransferResources resources, std::shared_ptr<File> file, FileRange range,
               std::uint64_t chunk_bytes);

  std::size_t num_jobs() const noexcept override { return chunk_crcs_.size(); }

 protected:
  void run_window(std::size_t index) override;
  const std::vector<std::uint32_t>* chunk_crcs_or_null() const override { return &chunk_crcs_; }

 private:
  const FileRange range_;
  const std::uint64_t chunk_bytes_;
  std::vector<std::uint32_t> chunk_crcs_;
};

}  // namespace gdsckpt
