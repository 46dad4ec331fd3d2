#include "core/crc32.hpp"

#include <array>

#include "core/crc32_poly.hpp"

namespace gdsckpt {
namespace {

using ShiftTables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b] = x^(8 * b * 256^k) mod P: a shift by n bytes takes one multiplication for each
/// byte of n that is not 0.
constexpr ShiftTables make_shift_tables() noexcept {
  ShiftTables tables{};
  std::uint32_t step = crc32_poly::power(8);
  for (auto& table : tables) {
    table[0] = crc32_poly::kOne;
    for (std::size_t b = 1; b < table.size(); ++b)
      table[b] = crc32_poly::multiply(table[b - 1], step);
    step = crc32_poly::multiply(table.back(), step);
  }
  return tables;
}

constexpr ShiftTables kShiftTables = make_shift_tables();

std::vector<CrcKernel> find_kernels() {
  std::vector<CrcKernel> kernels;
  crc32_detail::append_x86_kernels(kernels);
  crc32_detail::append_arm_kernels(kernels);
  kernels.push_back({"table", crc32_detail::table_update, crc32_detail::table_copy_update});
  return kernels;
}

const CrcKernel& best_kernel() {
  static const CrcKernel kernel = crc32_kernels().front();
  return kernel;
}

}  // namespace

const std::vector<CrcKernel>& crc32_kernels() {
  static const std::vector<CrcKernel> kernels = find_kernels();
  return kernels;
}

std::uint32_t crc32(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  return best_kernel().update(value, data, nbytes);
}

std::uint32_t copy_crc32(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                         std::size_t nbytes) {
  return best_kernel().copy_update(value, dest, source, nbytes);
}

std::uint32_t crc32_shift(std::uint32_t crc, std::uint64_t nbytes) noexcept {
  if (crc == 0) return 0;
  for (std::size_t k = 0; nbytes != 0; ++k, nbytes >>= 8) {
    const std::size_t byte = nbytes & 0xff;
    if (byte != 0) crc = crc32_poly::multiply(kShiftTables[k][byte], crc);
  }
  return crc;
}

}  // namespace gdsckpt
