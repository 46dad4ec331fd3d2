#pragma once

#include <cstdint>

namespace gdsckpt {

/// Largest alignment that a file or a slab may ask for: cuFile and the 64 KiB pages of Grace
/// kernels.
inline constexpr std::uint64_t kMaxAlignment = 64 * 1024;

constexpr bool is_power_of_two(std::uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

/// Largest multiple of `alignment` (a power of two) that is not above `value`.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) noexcept {
  return value & ~(alignment - 1);
}

/// Smallest multiple of `alignment` (a power of two) that is not below `value`. `value` must leave
/// room for the rounding: file offsets end at 2^63.
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) noexcept {
  return align_down(value + alignment - 1, alignment);
}

}  // namespace gdsckpt
