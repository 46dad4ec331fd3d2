#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"
#include "engine/device_streams.hpp"

namespace gdsckpt {

/// Bytes to copy to host memory. A row of four 64-bit numbers: Python hands over arrays of them.
struct CopyRow {
  std::uint64_t source;  ///< in the memory of `device`
  std::uint64_t dest;    ///< in host memory; overlaps no source and no other dest
  std::uint64_t nbytes;
  std::uint64_t device = kHostDevice;  ///< CUDA's number of the GPU, or kHostDevice
};
static_assert(sizeof(CopyRow) == 32, "rows of four uint64");

/// Copies all rows, from host memory by up to `num_threads` threads, from devices by copies that
/// run meanwhile, after what is queued on `producers` now; returns when all is there. Throws
/// ConfigError (field "rows") for an address of 0, std::bad_alloc, and as DeviceStreams.
void gather(const std::vector<CopyRow>& rows, const std::vector<ProducerStream>& producers,
            std::size_t num_threads);

}  // namespace gdsckpt
