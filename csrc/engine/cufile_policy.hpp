#pragma once

#include <cstdint>
#include <string>

#include "core/extent.hpp"
#include "engine/device.hpp"

/// What goes by cuFile and how: all of it is decided here.
namespace gdsckpt {

/// Largest request. Beyond it cuFile splits anyway (max_direct_io_size is at most 16 MiB); from
/// 8 MiB on the rate grows no more (published gdsio results).
inline constexpr std::uint64_t kCuFileRequestBytes = 16 * 1024 * 1024;

/// Less than this in one piece is gathered through the slabs: a request costs about as much as the
/// copy of so many bytes (estimated; NVIDIA names 64 KiB for its thread pool).
inline constexpr std::uint64_t kCuFileLeastBytes = 256 * 1024;

/// Alignment of file offset, address and length that keeps a request on the direct path. 4096 is
/// what cuFile documents; kernels with 64 KiB pages (Grace) map memory in those; and blocks of the
/// file must not be shared with bytes that go another way. `page_bytes` and `file_alignment`:
/// powers of two.
constexpr std::uint64_t cufile_alignment(std::uint64_t page_bytes,
                                         std::uint64_t file_alignment) noexcept {
  constexpr std::uint64_t kBlockBytes = 4096;
  const std::uint64_t larger = page_bytes > file_alignment ? page_bytes : file_alignment;
  return larger > kBlockBytes ? larger : kBlockBytes;
}

/// The part of file range `piece` that can go by cuFile, when its first byte stands at `address`;
/// empty (at piece.begin) where none can.
FileRange cufile_interior(FileRange piece, std::uint64_t address, std::uint64_t alignment) noexcept;

/// Why the memory of an extent on `device` must not go by cuFile; empty if it may. Throws
/// CudaError.
///
/// Managed memory moves between host and device as it likes. Memory that is mapped in pieces
/// (cuMemMap: PyTorch's expandable_segments) made cuFile fail in the field (uccl#839,
/// Mooncake#2511).
std::string cufile_unfit(const Device& device, const Extent& extent);

// No memory is registered (cuFileBufRegister): it costs milliseconds and BAR space for each
// storage, is for buffers that are used again and again, and NVIDIA names checkpoints as the
// example of when not to; freeing a registered storage can stop nvidia-fs, and storages of torch's
// allocator are no allocations of the driver's. Source: GPUDirect Storage best practices guide.

}  // namespace gdsckpt
