#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// Arithmetic modulo the CRC-32 polynomial P of zip and zlib, in the reflected order: bit 31 of a
/// number is the coefficient of x^0, bit 0 that of x^31.
namespace gdsckpt::crc32_poly {

inline constexpr std::uint32_t kPolynomial = 0xEDB88320u;  // without x^32
inline constexpr std::uint32_t kOne = 0x80000000u;         // x^0

/// a * b mod P.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i) {
    product ^= b & (0u - (a >> 31));
    a <<= 1;
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1u)));
  }
  return product;
}

/// x^exponent mod P.
constexpr std::uint32_t power(std::uint64_t exponent) noexcept {
  std::uint32_t result = kOne;
  std::uint32_t square = kOne >> 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

using ByteTables = std::array<std::array<std::uint32_t, 256>, 16>;

/// tables[k][b]: CRC of byte b followed by k zero bytes, for slicing by 16.
constexpr ByteTables make_byte_tables() noexcept {
  ByteTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (kPolynomial & (0u - (crc & 1u)));
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  return tables;
}

/// Multiplier of the clmul folding: x^exponent mod P as 33 bits. The extra shift makes up for the
/// product of two reflected 64-bit numbers, which has 127 bits and not 128.
///
/// Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
/// Instruction", Intel 2009, section "Bit-reflected".
constexpr std::int64_t fold_multiplier(std::uint64_t exponent) noexcept {
  return static_cast<std::int64_t>(std::uint64_t{power(exponent)} << 1);
}

}  // namespace gdsckpt::crc32_poly
