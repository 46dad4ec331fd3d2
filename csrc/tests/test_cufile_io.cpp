#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "engine/cufile_handle.hpp"
#include "engine/cufile_io.hpp"
#include "engine/file.hpp"
#include "tests/check.hpp"
#include "tests/fake_cufile.hpp"
#include "tests/fake_disk.hpp"

namespace gdsckpt {
namespace {

using tests::CuFileCall;
using tests::CuFileInjected;
using tests::FakeCuFile;
using tests::FakeDisk;

constexpr std::uint64_t kBlock = 4096;
constexpr FileRange kRange{3 * kBlock, 67 * kBlock};  // four requests of FakeCuFile's 64 KiB
constexpr std::size_t kNumRequests = 4;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A file that is registered, and bytes to write to kRange, 100 bytes into their storage.
struct Bench {
  static constexpr std::uint64_t kBufferOffset = 100;

  Bench() : storage(kBufferOffset + kRange.nbytes()), file(disk.open(true)) {
    for (std::size_t i = 0; i < storage.size(); ++i)
      storage[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + 1);
    CHECK(file->attach_cufile(FakeCuFile::open_driver()));
  }
  std::uint64_t base() { return reinterpret_cast<std::uintptr_t>(storage.data()); }
  std::uint64_t write() {
    return CuFileIo(*file, *file->cufile()).write(base(), kBufferOffset, kRange);
  }
  void check_written() const {
    CHECK_EQUAL(cufile.bytes.size(), kRange.end);
    CHECK(std::equal(storage.begin() + kBufferOffset, storage.end(),
                     cufile.bytes.begin() + kRange.begin));
  }
  /// Has call `index` do something else.
  void inject(std::size_t index, CuFileInjected injected) {
    cufile.intercept = [index, injected](const CuFileCall& call) {
      return call.index == index ? injected : CuFileInjected{};
    };
  }
  /// Has every call do something else.
  void inject(CuFileInjected injected) {
    cufile.intercept = [injected](const CuFileCall&) { return injected; };
  }

  FakeCuFile cufile;
  FakeDisk disk;
  std::vector<std::uint8_t> storage;
  std::shared_ptr<File> file;
};

TEST(cufile_write_goes_in_requests_that_are_not_split) {
  Bench bench;
  CHECK_EQUAL(bench.write(), kRange.end);
  bench.check_written();
  CHECK_EQUAL(bench.cufile.num_calls, kNumRequests);
  CHECK_EQUAL(bench.file->cufile_refused(), "");
}

TEST(cufile_read_brings_each_byte) {
  Bench bench;
  bench.cufile.bytes.assign(kRange.end, 0);
  std::copy(bench.storage.begin() + Bench::kBufferOffset, bench.storage.end(),
            bench.cufile.bytes.begin() + kRange.begin);
  const std::vector<std::uint8_t> expected = bench.storage;
  std::fill(bench.storage.begin() + Bench::kBufferOffset, bench.storage.end(), std::uint8_t{0});
  CuFileIo io(*bench.file, *bench.file->cufile());
  CHECK_EQUAL(io.read(bench.base(), Bench::kBufferOffset, kRange), kRange.end);
  CHECK(bench.storage == expected);
}

TEST(cufile_short_write_is_continued_at_a_block) {
  for (const std::uint64_t limit : {kBlock, kBlock + 100, 3 * kBlock, 5 * kBlock - 1})
    for (std::size_t index = 0; index < kNumRequests; ++index) {
      Bench bench;
      bench.inject(index, {0, 0, limit});
      CHECK_EQUAL(bench.write(), kRange.end);
      bench.check_written();
    }
}

TEST(cufile_write_without_progress_is_an_error_that_counts) {
  Bench bench;
  bench.inject(1, {0, 0, 0});
  const auto error = CHECK_THROWS(ShortTransferError, bench.write());
  CHECK_EQUAL(error.context().op, "cuFileWrite");
  CHECK_EQUAL(error.expected_bytes(), kRange.nbytes());
  CHECK_EQUAL(error.actual_bytes(), 65536u);
}

TEST(cufile_read_beyond_the_end_of_the_file_is_an_error_that_counts) {
  Bench bench;
  bench.cufile.bytes.assign(kRange.begin + kBlock + 904, 1);
  CuFileIo io(*bench.file, *bench.file->cufile());
  const auto error =
      CHECK_THROWS(ShortTransferError, io.read(bench.base(), Bench::kBufferOffset, kRange));
  CHECK_EQUAL(error.context().op, "cuFileRead");
  CHECK_EQUAL(error.actual_bytes(), kBlock + 904);
}

TEST(cufile_interrupted_and_busy_requests_are_repeated) {
  for (const int code : {EINTR, EAGAIN, 5039, 5040, 5041, 5042, 5043})
    for (std::size_t index = 0; index < kNumRequests; ++index) {
      Bench bench;
      bench.inject(index, {-1, code, 0});
      CHECK_EQUAL(bench.write(), kRange.end);
      bench.check_written();
      CHECK_EQUAL(bench.cufile.num_calls, kNumRequests + 1);
    }
}

TEST(cufile_that_stays_busy_is_given_up) {
  Bench bench;
  bench.inject({-5043, 0, 0});
  CHECK_EQUAL(bench.write(), kRange.begin);
  CHECK(contains(bench.file->cufile_refused(), "cuFile has no memory now (CU_FILE_NOMEM_ERROR"));
  CHECK_EQUAL(bench.cufile.num_calls, 9u);
}

TEST(cufile_that_is_interrupted_for_ever_is_an_error) {
  Bench bench;
  bench.inject({-1, EINTR, 0});
  CHECK_EQUAL((CHECK_THROWS(StorageError, bench.write())).code(), EINTR);
}

TEST(cufile_refusal_tells_how_far_it_came) {
  for (const ssize_t result : {ssize_t{-1}, ssize_t{-5008}})
    for (std::size_t index = 0; index < kNumRequests; ++index) {
      Bench bench;
      bench.inject(index, {result, 5008, 0});
      CHECK_EQUAL(bench.write(), kRange.begin + 65536 * index);
      CHECK(contains(bench.file->cufile_refused(), "CU_FILE_IO_NOT_SUPPORTED, 5008"));
      CHECK(bench.file->cufile() == nullptr);
    }
}

TEST(cufile_refusal_by_errno_speaks_of_the_request_not_the_file) {
  for (const int code : {EINVAL, EOPNOTSUPP, EFAULT, EREMOTEIO, EPERM, EIO}) {
    Bench bench;
    bench.inject(1, {-1, code, 0});
    CHECK_EQUAL(bench.write(), kRange.begin + 65536);
    CHECK(contains(bench.file->cufile_refused(), "(errno " + std::to_string(code) + ")"));
  }
}

TEST(cufile_errors_of_the_file_are_raised) {
  for (const int code : {ENOSPC, EDQUOT, EROFS, EBADF}) {
    Bench bench;
    bench.inject(2, {-1, code, 0});
    const auto error = CHECK_THROWS(StorageError, bench.write());
    CHECK_EQUAL(error.code(), code);
    CHECK_EQUAL(error.context().offset, kRange.begin + 2 * 65536);
    CHECK_EQUAL(bench.file->cufile_refused(), "");
  }
}

TEST(cufile_result_above_the_request_is_not_believed) {
  Bench bench;
  bench.cufile.num_claimed = 1;
  CHECK_EQUAL(bench.write(), kRange.begin);
  CHECK(contains(bench.file->cufile_refused(), "CU_FILE_INTERNAL_ERROR"));
}

TEST(cufile_refusal_keeps_the_first_reason) {
  Bench bench;
  bench.file->refuse_cufile("first");
  bench.file->refuse_cufile("second");
  CHECK_EQUAL(bench.file->cufile_refused(), "first");
}

}  // namespace
}  // namespace gdsckpt
