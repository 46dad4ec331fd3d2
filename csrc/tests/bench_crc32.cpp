// Prints the rate of each checksum kernel on one core. Not a test: rates depend on the machine.
//
//   g++ -std=c++17 -O2 -Icsrc csrc/core/crc32*.cpp csrc/tests/bench_crc32.cpp -o build/bench_crc32
//   build/bench_crc32

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/crc32.hpp"
#include "core/memory.hpp"

namespace {

/// Best of several rounds over at least 2 GiB in all, in GB/s.
template <typename Work>
double rate(std::size_t nbytes, Work&& work) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kRoundBytes = std::size_t{512} << 20;
  const std::size_t repeats = kRoundBytes / nbytes + 1;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) work(i);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    const double value = static_cast<double>(repeats * nbytes) / seconds.count() / 1e9;
    if (value > best) best = value;
  }
  return best;
}

void print_rates(std::size_t nbytes) {
  // Far more memory than the caches for large blocks, so that each pass reads from DRAM.
  const std::size_t pool_bytes = nbytes < (std::size_t{1} << 20) ? nbytes : std::size_t{512} << 20;
  const std::size_t num_blocks = pool_bytes / nbytes;
  gdsckpt::MappedMemory source(pool_bytes);
  gdsckpt::MappedMemory dest(pool_bytes);
  std::memset(source.data(), 0x5a, pool_bytes);
  std::memset(dest.data(), 1, pool_bytes);
  volatile std::uint32_t sink = 0;
  for (const gdsckpt::CrcKernel& kernel : gdsckpt::crc32_kernels()) {
    const double crc_rate = rate(nbytes, [&](std::size_t i) {
      sink = kernel.update(0, source.data() + i % num_blocks * nbytes, nbytes);
    });
    const double copy_rate = rate(nbytes, [&](std::size_t i) {
      const std::size_t at = i % num_blocks * nbytes;
      sink = kernel.copy_update(0, dest.data() + at, source.data() + at, nbytes);
    });
    std::printf("%10zu bytes  %-12s crc %6.1f GB/s  copy+crc %6.1f GB/s\n", nbytes,
                std::string(kernel.name).c_str(), crc_rate, copy_rate);
  }
  const double memcpy_rate = rate(nbytes, [&](std::size_t i) {
    const std::size_t at = i % num_blocks * nbytes;
    std::memcpy(dest.data() + at, source.data() + at, nbytes);
  });
  std::printf("%10zu bytes  memcpy                        %6.1f GB/s\n", nbytes, memcpy_rate);
}

}  // namespace

int main() {
  for (const std::size_t nbytes : {std::size_t{64}, std::size_t{1024}, std::size_t{4096},
                                   std::size_t{65536}, std::size_t{1} << 18, std::size_t{16} << 20})
    print_rates(nbytes);
}
