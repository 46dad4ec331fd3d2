#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

/// CRC-32 of zip and zlib. `value` is the CRC of the bytes before, 0 to begin, as for zlib.crc32.
/// Any thread may call.
namespace gdsckpt {

/// One way to compute it. `copy_update` also copies: each source byte is read once, so the CRC is
/// that of the bytes that arrive even while somebody changes the source.
struct CrcKernel {
  std::string_view name;
  std::uint32_t (*update)(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes);
  std::uint32_t (*copy_update)(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                               std::size_t nbytes);
};

/// The kernels that this processor can run, best first, found out once; never empty.
const std::vector<CrcKernel>& crc32_kernels();

/// CRC of `nbytes` at `data`, by the best kernel.
std::uint32_t crc32(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes);

/// Copies `nbytes`, which may not overlap, and gives their CRC, by the best kernel.
std::uint32_t copy_crc32(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                         std::size_t nbytes);

/// What a difference of CRCs grows to when `nbytes` more bytes follow: crc * x^(8 nbytes) mod P.
std::uint32_t crc32_shift(std::uint32_t crc, std::uint64_t nbytes) noexcept;

/// CRC of A followed by B, from both CRCs and the number of bytes of B.
inline std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b,
                                   std::uint64_t nbytes_b) noexcept {
  return crc32_shift(crc_a, nbytes_b) ^ crc_b;
}

/// CRC after `nbytes` zero bytes more.
inline std::uint32_t crc32_zeros(std::uint32_t value, std::uint64_t nbytes) noexcept {
  return ~crc32_shift(~value, nbytes);
}

namespace crc32_detail {

std::uint32_t table_update(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes);
std::uint32_t table_copy_update(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                                std::size_t nbytes);

/// Append the kernels that can run here, best first; nothing on other architectures.
void append_x86_kernels(std::vector<CrcKernel>& kernels);
void append_arm_kernels(std::vector<CrcKernel>& kernels);

}  // namespace crc32_detail
}  // namespace gdsckpt
