#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device_streams.hpp"
#include "engine/piece_crcs.hpp"
#include "engine/transfer.hpp"
#include "engine/write_plan.hpp"

namespace gdsckpt {

/// Gathers extents into slabs, window by window, and writes them.
///
/// The checksum of every byte is that of the bytes that are written, and the source is read once:
/// from host memory it is taken by the copy into the slab, from a device after the copy.
class WriteTransfer final : public Transfer {
 public:
  /// The slabs must hold a window each. `plan` has been checked for this file's alignment.
  /// Throws as DeviceStreams.
  WriteTransfer(TransferResources resources, std::shared_ptr<File> file, WritePlan plan,
                const std::vector<ProducerStream>& producers);

  std::size_t num_jobs() const noexcept override { return plan_.grid().num_windows(); }

 protected:
  void run_window(std::size_t index) override;
  void finish() override;
  const std::vector<std::uint32_t>* extent_crcs_or_null() const override {
    return &pieces_.extent_crcs();
  }
  const std::vector<std::uint32_t>* chunk_crcs_or_null() const override { return &chunk_crcs_; }

 private:
  std::uint64_t device_of(FileRange window) const;
  void fetch_from_devices(FileRange window, std::uint8_t* data);
  void gather(std::size_t index, FileRange window, std::uint8_t* data);
  std::uint32_t gather_piece(const Piece& piece, std::uint8_t* dest) const;
  void fill_slots(FileRange window, std::uint8_t* data);
  void require_zeros(const CrcSlot& slot, FileRange window, const std::uint8_t* data) const;
  void patch_chunk_crc(const CrcSlot& slot, std::uint32_t crc);

  const WritePlan plan_;
  const DeviceStreams streams_;
  PieceCrcs pieces_;
  std::vector<std::uint32_t> chunk_crcs_;
};

}  // namespace gdsckpt
