#include "core/crc32.hpp"

#if defined(__aarch64__)

#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstring>

#include "core/crc32_poly.hpp"

#define GDSCKPT_TARGET_CRC __attribute__((target("+crc")))

namespace gdsckpt::crc32_detail {
namespace {

// The instruction has a latency of two cycles or more and a throughput of one, so three streams run
// side by side and are combined after each block. A combination costs two software
// multiplications, some 70 ns: little beside three streams of this length.
constexpr std::size_t kStreamBytes = 8192;

template <bool kCopy>
GDSCKPT_TARGET_CRC inline std::uint32_t step(std::uint32_t crc, std::uint8_t* dest,
                                             const std::uint8_t* source, std::size_t at) {
  std::uint64_t word;
  std::memcpy(&word, source + at, sizeof word);
  if constexpr (kCopy) std::memcpy(dest + at, &word, sizeof word);
  return __crc32d(crc, word);
}

template <bool kCopy>
GDSCKPT_TARGET_CRC std::uint32_t update(std::uint32_t value, std::uint8_t* dest,
                                        const std::uint8_t* source, std::size_t nbytes) {
  constexpr std::uint32_t kOverOne = crc32_poly::power(8 * kStreamBytes);
  constexpr std::uint32_t kOverTwo = crc32_poly::power(16 * kStreamBytes);
  std::uint32_t crc = ~value;
  std::size_t at = 0;
  for (; nbytes - at >= 3 * kStreamBytes; at += 3 * kStreamBytes) {
    std::uint32_t crc1 = 0;
    std::uint32_t crc2 = 0;
    for (std::size_t i = at; i < at + kStreamBytes; i += 8) {
      crc = step<kCopy>(crc, dest, source, i);
      crc1 = step<kCopy>(crc1, dest, source, i + kStreamBytes);
      crc2 = step<kCopy>(crc2, dest, source, i + 2 * kStreamBytes);
    }
    crc = crc32_poly::multiply(kOverTwo, crc) ^ crc32_poly::multiply(kOverOne, crc1) ^ crc2;
  }
  for (; nbytes - at >= 8; at += 8) crc = step<kCopy>(crc, dest, source, at);
  for (; at < nbytes; ++at) {
    // Through volatile: a compiler that loads the byte twice would break the promise of one read.
    const std::uint8_t byte = *static_cast<const volatile std::uint8_t*>(source + at);
    if constexpr (kCopy) dest[at] = byte;
    crc = __crc32b(crc, byte);
  }
  return ~crc;
}

std::uint32_t crc_update(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  return update<false>(value, nullptr, data, nbytes);
}

}  // namespace

void append_arm_kernels(std::vector<CrcKernel>& kernels) {
  if ((getauxval(AT_HWCAP) & HWCAP_CRC32) == 0) return;
  kernels.push_back({"armv8-crc", crc_update, update<true>});
}

}  // namespace gdsckpt::crc32_detail

#else

namespace gdsckpt::crc32_detail {
void append_arm_kernels(std::vector<CrcKernel>&) {}
}  // namespace gdsckpt::crc32_detail

#endif
