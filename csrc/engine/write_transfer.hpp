#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cufile_path.hpp"
#include "engine/device_crcs.hpp"
#include "engine/device_streams.hpp"
#include "engine/piece_crcs.hpp"
#include "engine/transfer.hpp"
#include "engine/write_plan.hpp"

namespace gdsckpt {

/// Gathers extents into slabs, window by window, and writes them.
///
/// The checksum of every byte is that of the bytes that are written, and the source is read once:
/// from host memory it is taken by the copy into the slab, from a device after the copy.
///
/// Where the file is registered with cuFile and the devices took checksums themselves, the large
/// aligned part of each piece goes straight from the device; what is left is gathered. Should
/// cuFile refuse, that is all.
class WriteTransfer final : public Transfer {
 public:
  /// The slabs must hold a window each. `plan` has been checked for this file's alignment.
  /// Throws as DeviceStreams, DeviceCrcs and CuFilePath.
  WriteTransfer(TransferResources resources, std::shared_ptr<File> file, WritePlan plan,
                const std::vector<ProducerStream>& producers,
                std::vector<std::uint32_t> device_crcs);

  std::size_t num_jobs() const noexcept override { return plan_.grid().num_windows(); }

 protected:
  void run_window(std::size_t index) override;
  std::uint64_t window_offset(std::size_t index) const noexcept override;
  void finish() override;
  const std::vector<std::uint32_t>* extent_crcs_or_null() const override {
    return &pieces_.extent_crcs();
  }
  const std::vector<std::uint32_t>* chunk_crcs_or_null() const override { return &chunk_crcs_; }

 private:
  std::vector<FileRange> send_by_cufile(FileRange window);
  bool has_slot(FileRange range) const noexcept;
  std::uint64_t device_of(FileRange window) const;
  void fetch_from_devices(FileRange window, const std::vector<FileRange>& rest, std::uint8_t* data);
  void gather(std::size_t index, FileRange window, const std::vector<FileRange>& sent,
              std::uint8_t* data);
  std::uint32_t gather_host_piece(const Piece& piece, std::uint8_t* dest) const;
  std::uint32_t check_device_piece(const Piece& piece, const std::uint8_t* data);
  void fill_slots(FileRange window, std::uint8_t* data);
  void require_zeros(const CrcSlot& slot, FileRange window, const std::uint8_t* data) const;
  void patch_chunk_crc(const CrcSlot& slot, std::uint32_t crc);

  const WritePlan plan_;
  const DeviceCrcs device_crcs_;
  const DeviceStreams streams_;
  CuFilePath cufile_;
  PieceCrcs pieces_;
  std::vector<std::uint32_t> chunk_crcs_;
};

}  // namespace gdsckpt
