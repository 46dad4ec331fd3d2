#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/align.hpp"
#include "core/crc32.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/fd.hpp"
#include "core/memory.hpp"
#include "core/slab_pool.hpp"
#include "core/thread_pool.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

TEST(align_down_and_up_round_to_multiples) {
  CHECK_EQUAL(align_down(8191, 4096), 4096u);
  CHECK_EQUAL(align_down(8192, 4096), 8192u);
  CHECK_EQUAL(align_up(8193, 4096), 12288u);
  CHECK_EQUAL(align_up(0, 4096), 0u);
  CHECK_EQUAL(align_up(7, 1), 7u);
  CHECK(is_power_of_two(1) && is_power_of_two(65536) && !is_power_of_two(0) && !is_power_of_two(6));
}

/// One bit at a time, from the definition.
std::uint32_t slow_crc32(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  std::uint32_t crc = ~value;
  for (std::size_t i = 0; i < nbytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xEDB88320u : crc >> 1;
  }
  return ~crc;
}

std::vector<std::uint8_t> random_bytes(std::size_t nbytes, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint8_t> bytes(nbytes);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
  return bytes;
}

TEST(crc32_of_the_check_string_is_the_published_value) {
  const std::string text = "123456789";
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  for (const CrcKernel& kernel : crc32_kernels())
    CHECK_EQUAL(kernel.update(0, data, text.size()), 0xCBF43926u);
}

TEST(crc32_kernels_equal_the_definition) {
  const auto source = random_bytes(1300, 1);
  std::mt19937 generator(2);
  for (const CrcKernel& kernel : crc32_kernels())
    for (std::size_t nbytes = 0; nbytes <= 1100; ++nbytes) {
      const std::size_t at = nbytes % 64;
      const auto start = static_cast<std::uint32_t>(generator());
      const std::uint32_t expected = slow_crc32(start, source.data() + at, nbytes);
      CHECK_EQUAL(kernel.update(start, source.data() + at, nbytes), expected);
    }
}

TEST(copy_crc32_copies_exactly_the_bytes_at_every_alignment) {
  for (const CrcKernel& kernel : crc32_kernels())
    for (const std::size_t nbytes : {std::size_t{700}, std::size_t{300 * 1024 + 13}}) {
      const auto source = random_bytes(nbytes, 3);
      const std::uint32_t expected = slow_crc32(0, source.data(), nbytes);
      for (std::size_t at = 0; at < 64; at += nbytes > 1000 ? 21 : 1) {
        std::vector<std::uint8_t> dest(nbytes + 128, 0xEE);
        CHECK_EQUAL(kernel.copy_update(0, dest.data() + at, source.data(), nbytes), expected);
        CHECK(std::equal(source.begin(), source.end(), dest.data() + at));
        for (std::size_t i = 0; i < at; ++i) CHECK_EQUAL(int{dest[i]}, 0xEE);
        for (std::size_t i = at + nbytes; i < dest.size(); ++i) CHECK_EQUAL(int{dest[i]}, 0xEE);
      }
    }
}

TEST(crc32_combine_joins_and_zeros_extend) {
  const auto bytes = random_bytes(70000, 4);
  for (const std::size_t cut : {0, 1, 255, 256, 257, 4096, 65536, 70000}) {
    const std::uint32_t a = slow_crc32(0, bytes.data(), cut);
    const std::uint32_t b = slow_crc32(0, bytes.data() + cut, bytes.size() - cut);
    CHECK_EQUAL(crc32_combine(a, b, bytes.size() - cut), slow_crc32(0, bytes.data(), bytes.size()));
    const std::vector<std::uint8_t> zeros(cut, 0);
    CHECK_EQUAL(crc32_zeros(0, cut), slow_crc32(0, zeros.data(), cut));
    CHECK_EQUAL(crc32_zeros(a, cut), slow_crc32(a, zeros.data(), cut));
  }
}

TEST(crc32_zeros_of_2_to_the_40_equals_its_halves) {
  const std::uint64_t half = std::uint64_t{1} << 39;
  CHECK_EQUAL(crc32_zeros(0, 2 * half),
              crc32_combine(crc32_zeros(0, half), crc32_zeros(0, half), half));
}

TEST(check_extents_rejects_what_can_not_be) {
  const auto field = [](std::vector<Extent> extents) {
    return CHECK_THROWS(ConfigError, check_extents(extents)).field();
  };
  check_extents({{1, 4, 0, kNoCrcSlot}, {0, 0, 4, kNoCrcSlot}, {1, 4, 4, kNoCrcSlot}});
  CHECK_EQUAL(field({{0, 1, 0, kNoCrcSlot}}), "extents");
  CHECK_EQUAL(field({{1, 4, 0, kNoCrcSlot}, {1, 4, 3, kNoCrcSlot}}), "extents");
  CHECK_EQUAL(field({{1, 4, 9, kNoCrcSlot}, {1, 4, 3, kNoCrcSlot}}), "extents");
  CHECK_EQUAL(field({{1, 2, ~std::uint64_t{0} >> 1, kNoCrcSlot}}), "extents");
  CHECK_EQUAL(field({{1, 1, ~std::uint64_t{0}, kNoCrcSlot}}), "extents");
  CHECK_EQUAL(field({{~std::uint64_t{0}, 2, 0, kNoCrcSlot}}), "extents");
}

TEST(find_extent_gives_the_first_that_ends_behind) {
  const std::vector<Extent> extents{{1, 4, 10, kNoCrcSlot}, {1, 4, 20, kNoCrcSlot}};
  CHECK_EQUAL(find_extent(extents, 0), 0u);
  CHECK_EQUAL(find_extent(extents, 13), 0u);
  CHECK_EQUAL(find_extent(extents, 14), 1u);
  CHECK_EQUAL(find_extent(extents, 24), 2u);
}

TEST(mapped_memory_is_aligned_and_zero) {
  for (const std::size_t nbytes : {std::size_t{65536}, std::size_t{3} << 20}) {
    const MappedMemory memory(nbytes);
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(memory.data()) % 65536, 0u);
    CHECK_EQUAL(int{memory.data()[0]}, 0);
    memory.data()[nbytes - 1] = 1;
  }
  CHECK_THROWS(AllocationError, MappedMemory(std::size_t{1} << 55));
}

TEST(slab_pool_maps_late_and_reuses_the_warmest) {
  SlabPool pool(65536, 3);
  CHECK_EQUAL(pool.num_mapped(), 0u);
  std::uint8_t* first = nullptr;
  {
    const SlabLease lease = pool.acquire();
    first = lease.data();
  }
  const SlabLease again = pool.acquire();
  CHECK(again.data() == first);
  CHECK_EQUAL(pool.num_mapped(), 1u);
}

TEST(slab_pool_rejects_sizes) {
  CHECK_EQUAL(CHECK_THROWS(ConfigError, SlabPool(0, 1)).field(), "slab_bytes");
  CHECK_EQUAL(CHECK_THROWS(ConfigError, SlabPool(4096, 1)).field(), "slab_bytes");
  CHECK_EQUAL(CHECK_THROWS(ConfigError, SlabPool(65536, 0)).field(), "num_slabs");
}

TEST(slab_pool_waits_for_a_release) {
  SlabPool pool(65536, 1);
  std::atomic<bool> has_second{false};
  std::thread waiter;
  {
    const SlabLease lease = pool.acquire();
    waiter = std::thread([&] {
      const SlabLease second = pool.acquire();
      has_second = true;
    });
    CHECK(!has_second);  // there is one slab, and it is on loan
  }
  waiter.join();
  CHECK(has_second);
  CHECK_EQUAL(pool.num_mapped(), 1u);
}

/// Counts its jobs; the first ones can be made to wait.
class CountingSource : public JobSource {
 public:
  explicit CountingSource(std::size_t num_jobs) : num_jobs_(num_jobs), runs(num_jobs) {}
  std::size_t num_jobs() const noexcept override { return num_jobs_; }
  void run_job(std::size_t index) noexcept override {
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (sigismember(&blocked, SIGINT) != 1 || sigismember(&blocked, SIGTERM) != 1)
      is_signal_open = true;
    while (is_held) std::this_thread::yield();
    ++runs[index];
    ++num_done;
  }

 private:
  std::size_t num_jobs_;

 public:
  std::vector<std::atomic<int>> runs;
  std::atomic<std::size_t> num_done{0};
  std::atomic<bool> is_held{false};
  std::atomic<bool> is_signal_open{false};
};

TEST(thread_pool_runs_each_job_once_with_signals_blocked) {
  const auto source = std::make_shared<CountingSource>(1000);
  ThreadPool pool(3);
  pool.submit(source);
  pool.stop();
  for (const auto& runs : source->runs) CHECK_EQUAL(runs.load(), 1);
  CHECK(!source->is_signal_open);
}

TEST(thread_pool_withdraw_returns_the_jobs_not_started) {
  const auto source = std::make_shared<CountingSource>(10);
  source->is_held = true;
  ThreadPool pool(1);
  pool.submit(source);
  const std::size_t num_dropped = pool.withdraw(*source);
  CHECK_EQUAL(pool.withdraw(*source), 0u);
  source->is_held = false;
  pool.stop();
  CHECK_EQUAL(source->num_done + num_dropped, 10u);
  CHECK(num_dropped >= 9);  // one thread holds at most one job
}

TEST(thread_pool_rejects_no_threads) {
  CHECK_EQUAL(CHECK_THROWS(ConfigError, ThreadPool(0)).field(), "io_threads");
}

TEST(errors_keep_class_and_fields_when_raised_again) {
  const std::shared_ptr<const Error> error =
      make_storage_error({"pwrite", "/nvme/x", 4096, 16777216}, ENOSPC).clone();
  const StorageError raised = CHECK_THROWS(StorageError, error->raise());
  CHECK_EQUAL(raised.code(), ENOSPC);
  CHECK_EQUAL(raised.context().offset, 4096u);
  CHECK_EQUAL(raised.message(),
              "pwrite of 16777216 bytes at offset 4096 in /nvme/x failed: No space left on device "
              "(errno 28). Free space on the file system or save elsewhere.");
}

TEST(path_of_fd_names_the_file) {
  const int fd = ::open("/dev/null", O_RDONLY);
  CHECK_EQUAL(path_of_fd(fd), "/dev/null");
  ::close(fd);
  CHECK_EQUAL(path_of_fd(-1), "fd -1");
}

TEST(reserve_space_and_alignment_of_a_bad_descriptor_throw) {
  CHECK_EQUAL(CHECK_THROWS(StorageError, reserve_space(-1, 1)).code(), EBADF);
  CHECK_EQUAL(CHECK_THROWS(StorageError, direct_alignment(-1)).code(), EBADF);
}

}  // namespace
}  // namespace gdsckpt
