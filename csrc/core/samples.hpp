#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/extent.hpp"

/// Samples: blocks that stand for the memory around them, to tell whether it has changed since.
namespace gdsckpt {

/// Size of a sample; shorter only where the memory ends.
inline constexpr std::uint64_t kSampleBytes = 4096;

/// There is one sample in every so many bytes.
inline constexpr std::uint64_t kSampleSpanBytes = 1024 * 1024;

/// Memory to be sampled. A row of three 64-bit numbers: Python hands over arrays of them.
struct SampledMemory {
  std::uint64_t number;   ///< of the storage: it decides, with the seed, where the samples lie
  std::uint64_t address;  ///< of the first byte; 0 only where `nbytes` is 0
  std::uint64_t nbytes;
};
static_assert(sizeof(SampledMemory) == 24, "rows of three uint64");

/// How many samples memory of this size has: at least one where there is a byte.
std::uint64_t num_samples(std::uint64_t nbytes) noexcept;

/// Which bytes of storage `number` are its sample `index`: a block of its MiB that differs from MiB
/// to MiB and from seed to seed, at a multiple of kSampleBytes.
FileRange sample_of(std::uint64_t number, std::uint64_t nbytes, std::uint64_t index,
                    std::uint64_t seed) noexcept;

/// CRC32 of each sample of host memory, in the order of the rows and then of the samples; by up to
/// `num_threads` threads. Throws std::bad_alloc.
std::vector<std::uint32_t> sample_crcs(const std::vector<SampledMemory>& memory, std::uint64_t seed,
                                       std::size_t num_threads);

}  // namespace gdsckpt
