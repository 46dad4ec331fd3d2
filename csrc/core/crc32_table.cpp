#include <cstring>

#include "core/crc32.hpp"
#include "core/crc32_poly.hpp"

namespace gdsckpt::crc32_detail {
namespace {

constexpr crc32_poly::ByteTables kTables = crc32_poly::make_byte_tables();

/// Four bytes of a block, as the CRC register sees them; `after` more bytes of the block follow.
std::uint32_t lookup_word(std::uint32_t word, std::size_t after) noexcept {
  return kTables[after + 3][word & 0xff] ^ kTables[after + 2][(word >> 8) & 0xff] ^
         kTables[after + 1][(word >> 16) & 0xff] ^ kTables[after][word >> 24];
}

template <bool kCopy>
std::uint32_t update(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                     std::size_t nbytes) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read little-endian");
  std::uint32_t crc = ~value;
  for (; nbytes >= 16; nbytes -= 16, source += 16) {
    std::uint32_t words[4];
    std::memcpy(words, source, sizeof words);
    if constexpr (kCopy) {
      std::memcpy(dest, words, sizeof words);
      dest += 16;
    }
    crc = lookup_word(words[0] ^ crc, 12) ^ lookup_word(words[1], 8) ^ lookup_word(words[2], 4) ^
          lookup_word(words[3], 0);
  }
  for (; nbytes > 0; --nbytes, ++source) {
    // Through volatile: a compiler that loads the byte twice would break the promise of one read.
    const std::uint8_t byte = *static_cast<const volatile std::uint8_t*>(source);
    if constexpr (kCopy) *dest++ = byte;
    crc = (crc >> 8) ^ kTables[0][(crc ^ byte) & 0xff];
  }
  return ~crc;
}

}  // namespace

std::uint32_t table_update(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  return update<false>(value, nullptr, data, nbytes);
}

std::uint32_t table_copy_update(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                                std::size_t nbytes) {
  return update<true>(value, dest, source, nbytes);
}

}  // namespace gdsckpt::crc32_detail
