#include "core/samples.hpp"

#include <algorithm>

#include "core/crc32.hpp"
#include "core/parallel.hpp"

namespace gdsckpt {
namespace {

// Samples of one unit of work: about 50 microseconds, the time in which a thread begins.
constexpr std::size_t kUnitSamples = 64;

/// SplitMix64's output function: each bit of the result depends on each of the input. Source:
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
std::uint64_t mix(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

void prefetch(const std::uint8_t* data, std::uint64_t nbytes) noexcept {
  constexpr std::uint64_t kCacheLineBytes = 64;
  // The processor itself fetches what follows in the page.
  const std::uint64_t end = std::min<std::uint64_t>(nbytes, 4 * kCacheLineBytes);
  for (std::uint64_t at = 0; at < end; at += kCacheLineBytes) __builtin_prefetch(data + at);
}

}  // namespace

std::uint64_t num_samples(std::uint64_t nbytes) noexcept {
  return nbytes / kSampleSpanBytes + (nbytes % kSampleSpanBytes != 0 ? 1 : 0);
}

FileRange sample_of(std::uint64_t number, std::uint64_t nbytes, std::uint64_t index,
                    std::uint64_t seed) noexcept {
  const std::uint64_t begin = index * kSampleSpanBytes;
  const std::uint64_t span_bytes = std::min(kSampleSpanBytes, nbytes - begin);
  const std::uint64_t num_blocks = (span_bytes + kSampleBytes - 1) / kSampleBytes;
  const std::uint64_t block = mix(seed ^ mix(number * 0x9E3779B97F4A7C15u + index)) % num_blocks;
  const std::uint64_t at = begin + block * kSampleBytes;
  return {at, std::min(nbytes, at + kSampleBytes)};
}

std::vector<std::uint32_t> sample_crcs(const std::vector<SampledMemory>& memory, std::uint64_t seed,
                                       std::size_t num_threads) {
  std::vector<std::size_t> ends(memory.size());  // of the samples of each row, in the result
  std::size_t num_all = 0;
  for (std::size_t row = 0; row < memory.size(); ++row)
    ends[row] = num_all += num_samples(memory[row].nbytes);
  std::vector<std::uint32_t> crcs(num_all);

  const auto work = [&](std::size_t unit) noexcept {
    std::size_t at = unit * kUnitSamples;
    const std::size_t end = std::min(num_all, at + kUnitSamples);
    auto row =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    const auto block_of = [&](std::size_t sample) noexcept {
      while (ends[row] <= sample) ++row;
      const SampledMemory& storage = memory[row];
      const std::uint64_t first = ends[row] - num_samples(storage.nbytes);
      const FileRange range = sample_of(storage.number, storage.nbytes, sample - first, seed);
      return FileRange{storage.address + range.begin, storage.address + range.end};
    };
    FileRange block = block_of(at);
    while (at < end) {
      const FileRange next = at + 1 < end ? block_of(at + 1) : block;
      prefetch(reinterpret_cast<const std::uint8_t*>(next.begin), next.nbytes());
      crcs[at++] = crc32(0, reinterpret_cast<const std::uint8_t*>(block.begin), block.nbytes());
      block = next;
    }
  };
  const std::size_t num_units = (num_all + kUnitSamples - 1) / kUnitSamples;
  for_each_unit(num_units, std::min(num_threads, num_units / 2), work);
  return crcs;
}

}  // namespace gdsckpt
