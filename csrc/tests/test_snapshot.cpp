#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "core/crc32.hpp"
#include "core/error.hpp"
#include "core/parallel.hpp"
#include "core/samples.hpp"
#include "engine/gather.hpp"
#include "engine/host_memory.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;

std::uint64_t address_of(const std::vector<std::uint8_t>& bytes) {
  return reinterpret_cast<std::uint64_t>(bytes.data());
}

std::vector<std::uint8_t> numbered_bytes(std::size_t nbytes) {
  std::vector<std::uint8_t> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 257);
  return bytes;
}

TEST(parallel_units_are_each_done_once_by_any_number_of_threads) {
  CHECK(usable_processors() >= 1);
  for (const std::size_t num_threads : {0u, 1u, 2u, 7u}) {
    std::vector<std::atomic<int>> counts(100);
    for_each_unit(counts.size(), num_threads, [&](std::size_t unit) noexcept { ++counts[unit]; });
    for (const std::atomic<int>& count : counts) CHECK_EQUAL(count.load(), 1);
  }
  for_each_unit(0, 4, [](std::size_t) noexcept { std::abort(); });
}

TEST(samples_lie_one_in_every_mib_and_inside) {
  CHECK_EQUAL(num_samples(0), 0u);
  CHECK_EQUAL(num_samples(1), 1u);
  CHECK_EQUAL(num_samples(kMiB), 1u);
  CHECK_EQUAL(num_samples(kMiB + 1), 2u);
  for (const std::uint64_t nbytes :
       {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{5000}, 3 * kMiB + 4097, 7 * kMiB})
    for (std::uint64_t index = 0; index < num_samples(nbytes); ++index)
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const FileRange range = sample_of(3, nbytes, index, seed);
        CHECK(range.begin >= index * kMiB && range.begin % kSampleBytes == 0);
        CHECK(range.begin < range.end && range.end <= nbytes && range.end <= (index + 1) * kMiB);
        CHECK(range.nbytes() == kSampleBytes || range.end == nbytes);
      }
}

TEST(samples_of_other_mibs_storages_and_seeds_lie_elsewhere) {
  const std::uint64_t nbytes = 64 * kMiB;
  std::set<std::uint64_t> of_mibs;
  std::set<std::uint64_t> of_storages;
  std::set<std::uint64_t> of_seeds;
  for (std::uint64_t i = 0; i < 64; ++i) {
    of_mibs.insert(sample_of(0, nbytes, i, 1).begin % kMiB);
    of_storages.insert(sample_of(i, nbytes, 0, 1).begin);
    of_seeds.insert(sample_of(0, nbytes, 0, i).begin);
  }
  // 64 draws of 256 places give about 57 different ones.
  CHECK(of_mibs.size() > 40 && of_storages.size() > 40 && of_seeds.size() > 40);
}

TEST(sample_crcs_are_those_of_the_blocks_with_any_number_of_threads) {
  const std::vector<std::uint8_t> large = numbered_bytes(150 * kMiB + 100);
  const std::vector<std::uint8_t> small = numbered_bytes(100);
  const std::vector<SampledMemory> memory = {
      {5, address_of(large), large.size()}, {6, 0, 0}, {9, address_of(small), small.size()}};
  for (const std::size_t num_threads : {1u, 3u}) {
    const std::vector<std::uint32_t> crcs = sample_crcs(memory, 42, num_threads);
    CHECK_EQUAL(crcs.size(), 152u);
    for (std::uint64_t i = 0; i < 151; ++i) {
      const FileRange range = sample_of(5, large.size(), i, 42);
      CHECK_EQUAL(crcs[i], crc32(0, large.data() + range.begin, range.nbytes()));
    }
    CHECK_EQUAL(crcs[151], crc32(0, small.data(), small.size()));
  }
  CHECK(sample_crcs({}, 1, 2).empty());
}

TEST(gather_copies_rows_of_all_sizes_and_nothing_else) {
  const std::vector<std::uint8_t> source = numbered_bytes(11 * kMiB);
  for (const std::size_t num_threads : {1u, 3u}) {
    std::vector<std::uint8_t> dest(source.size() + 1, 0xEE);
    std::vector<CopyRow> rows;
    std::uint64_t offset = 0;
    for (const std::uint64_t nbytes :
         {std::uint64_t{1}, std::uint64_t{0}, 5 * kMiB + 3, std::uint64_t{4096}, 4 * kMiB}) {
      rows.push_back({address_of(source) + offset, address_of(dest) + offset, nbytes});
      offset += nbytes;
    }
    gather(rows, {}, num_threads);
    CHECK(std::equal(dest.begin(), dest.begin() + static_cast<std::ptrdiff_t>(offset),
                     source.begin()));
    CHECK_EQUAL(static_cast<int>(dest[offset]), 0xEE);
  }
}

TEST(gather_refuses_an_address_of_zero) {
  const std::vector<std::uint8_t> source(8);
  CHECK_THROWS(ConfigError, gather({{address_of(source), 0, 8}}, {}, 1));
  CHECK_THROWS(ConfigError, gather({{0, address_of(source), 8}}, {}, 1));
  gather({{0, 0, 0}}, {}, 1);
}

TEST(host_memory_is_aligned_and_writable_and_leaves_a_forked_child_alone) {
  HostMemory memory(3 * kMiB, kHostDevice, 2);
  CHECK_EQUAL(memory.nbytes(), 3 * kMiB);
  CHECK_EQUAL(memory.address() % 65536, 0u);
  CHECK(memory.pin_refused().empty());
  auto* const data = reinterpret_cast<std::uint8_t*>(memory.address());
  data[3 * kMiB - 1] = 1;
  auto forked = std::make_unique<HostMemory>(kMiB, kHostDevice, 1);
  const pid_t child = fork();
  if (child == 0) {
    forked.reset();
    _exit(0);
  }
  int status = -1;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

}  // namespace
}  // namespace gdsckpt
