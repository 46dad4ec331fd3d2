#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/memory.hpp"
#include "engine/posix_io.hpp"
#include "tests/check.hpp"
#include "tests/fake_disk.hpp"

namespace gdsckpt {
namespace {

using tests::Call;
using tests::FakeDisk;
using tests::Injected;

constexpr std::uint64_t kAlignment = FakeDisk::kAlignment;
// Head, three aligned blocks, tail.
constexpr FileRange kRange{kAlignment - 100, 4 * kAlignment + 100};

std::uint8_t pattern(std::uint64_t offset) noexcept {
  return static_cast<std::uint8_t>(offset * 7 + offset / 251 + 1);
}

/// A slab that holds the pattern of kRange at the right distance from an alignment.
class PatternSlab {
 public:
  PatternSlab() : memory_(65536) {
    for (std::uint64_t at = kRange.begin; at < kRange.end; ++at)
      data()[at - kRange.begin] = pattern(at);
  }
  std::uint8_t* data() const noexcept { return memory_.data() + kRange.begin % kAlignment; }

 private:
  MappedMemory memory_;
};

void check_pattern(const std::uint8_t* data) {
  for (std::uint64_t at = kRange.begin; at < kRange.end; ++at)
    CHECK_EQUAL(int{data[at - kRange.begin]}, int{pattern(at)});
}

/// Number of calls that a write or read of kRange makes when nothing goes wrong.
constexpr std::size_t kNumWrites = 3;
constexpr std::size_t kNumReads = 1;

/// Fails, shortens or stalls call `index` and lets the others be.
std::function<Injected(const Call&)> at_call(std::size_t index, Injected injected) {
  return
      [index, injected](const Call& call) { return call.index == index ? injected : Injected{}; };
}

IoTally write_range(FakeDisk& disk, File& file) {
  const PatternSlab slab;
  const IoTally tally = PosixIo(FakeDisk::syscalls(), file).write(slab.data(), kRange);
  CHECK_EQUAL(disk.bytes.size(), kRange.end);
  check_pattern(disk.bytes.data() + kRange.begin);
  for (std::uint64_t at = 0; at < kRange.begin; ++at) CHECK_EQUAL(int{disk.bytes[at]}, 0);
  return tally;
}

TEST(write_sends_the_aligned_middle_direct_and_the_ends_buffered) {
  FakeDisk disk;
  const auto file = disk.open(true);
  const IoTally tally = write_range(disk, *file);
  CHECK_EQUAL(tally.direct_bytes, 3 * kAlignment);
  CHECK_EQUAL(tally.buffered_bytes, 200u);
  CHECK_EQUAL(disk.num_calls, kNumWrites);
  CHECK_EQUAL(file->direct_refused(), "");
}

TEST(write_without_direct_is_all_buffered) {
  FakeDisk disk;
  const auto file = disk.open(false);
  const IoTally tally = write_range(disk, *file);
  CHECK_EQUAL(tally.direct_bytes, 0u);
  CHECK_EQUAL(tally.buffered_bytes, kRange.nbytes());
}

TEST(write_interrupted_at_any_call_is_repeated) {
  for (std::size_t index = 0; index < kNumWrites; ++index) {
    FakeDisk disk;
    disk.intercept = at_call(index, {EINTR});
    write_range(disk, *disk.open(true));
    CHECK_EQUAL(disk.num_calls, kNumWrites + 1);
  }
}

TEST(write_short_at_any_call_is_continued) {
  for (std::size_t index = 0; index < kNumWrites; ++index)
    for (const std::size_t limit : {std::size_t{1}, std::size_t{kAlignment}, std::size_t{5000}}) {
      FakeDisk disk;
      disk.intercept = at_call(index, {0, limit});
      const auto file = disk.open(true);
      const IoTally tally = write_range(disk, *file);
      CHECK_EQUAL(tally.direct_bytes + tally.buffered_bytes, kRange.nbytes());
      CHECK_EQUAL(file->direct_refused(), "");  // a short write is no refusal
    }
}

TEST(write_direct_short_on_an_unaligned_byte_goes_on_buffered) {
  FakeDisk disk;
  disk.intercept = at_call(1, {0, 5000});
  const IoTally tally = write_range(disk, *disk.open(true));
  CHECK_EQUAL(tally.direct_bytes, 5000u);
}

TEST(write_failing_at_any_call_raises_its_errno_and_place) {
  const std::uint64_t offsets[kNumWrites] = {kRange.begin, kAlignment, 4 * kAlignment};
  for (std::size_t index = 0; index < kNumWrites; ++index)
    for (const int code : {EIO, ENOSPC}) {
      FakeDisk disk;
      disk.intercept = at_call(index, {code});
      const auto file = disk.open(true);
      const StorageError error = CHECK_THROWS(StorageError, write_range(disk, *file));
      CHECK_EQUAL(error.code(), code);
      CHECK_EQUAL(error.context().op, "pwrite");
      CHECK_EQUAL(error.context().path, "/fake/disk");
      CHECK_EQUAL(error.context().offset, offsets[index]);
    }
}

TEST(write_without_progress_at_any_call_raises_short_transfer) {
  const std::uint64_t nbytes[kNumWrites] = {100, 3 * kAlignment, 100};
  for (std::size_t index = 0; index < kNumWrites; ++index) {
    FakeDisk disk;
    disk.intercept = at_call(index, {0, 0});
    const auto file = disk.open(true);
    const ShortTransferError error = CHECK_THROWS(ShortTransferError, write_range(disk, *file));
    CHECK_EQUAL(error.expected_bytes(), nbytes[index]);
    CHECK_EQUAL(error.actual_bytes(), 0u);
  }
}

TEST(write_refused_by_direct_io_goes_on_buffered_and_says_why) {
  for (const int code : {EINVAL, EOPNOTSUPP}) {
    FakeDisk disk;
    disk.intercept = [code](const Call& call) { return Injected{call.is_direct ? code : 0}; };
    const auto file = disk.open(true);
    const IoTally tally = write_range(disk, *file);
    CHECK_EQUAL(tally.direct_bytes, 0u);
    CHECK_EQUAL(file->direct_refused(),
                (code == EINVAL ? std::string("EINVAL") : std::string("EOPNOTSUPP")) +
                    " from pwrite of 12288 bytes at offset 4096");
    CHECK(!file->is_direct());
    write_range(disk, *file);
  }
}

TEST(write_refused_in_the_middle_keeps_what_was_written) {
  FakeDisk disk;
  disk.intercept = [](const Call& call) {
    if (!call.is_direct) return Injected{};
    return call.index == 1 ? Injected{0, kAlignment} : Injected{EINVAL};
  };
  const IoTally tally = write_range(disk, *disk.open(true));
  CHECK_EQUAL(tally.direct_bytes, kAlignment);
}

TEST(write_einval_of_a_buffered_call_is_an_error) {
  FakeDisk disk;
  disk.intercept = [](const Call&) { return Injected{EINVAL}; };
  const auto file = disk.open(true);
  CHECK_EQUAL(CHECK_THROWS(StorageError, write_range(disk, *file)).code(), EINVAL);
}

/// Reads kRange from a disk that holds the pattern, and the file up to `file_end`.
IoTally read_range(FakeDisk& disk, File& file, std::uint64_t file_end = kRange.end) {
  disk.bytes.resize(file_end);
  for (std::uint64_t at = 0; at < file_end; ++at) disk.bytes[at] = pattern(at);
  const MappedMemory slab(65536);
  const IoTally tally = PosixIo(FakeDisk::syscalls(), file).read_direct(slab.data(), kRange);
  check_pattern(slab.data() + kRange.begin % kAlignment);
  return tally;
}

TEST(read_direct_up_to_the_unaligned_end_of_the_file_is_whole) {
  FakeDisk disk;
  const auto file = disk.open(true);
  const IoTally tally = read_range(disk, *file);
  CHECK_EQUAL(tally.direct_bytes, kRange.nbytes());
  CHECK_EQUAL(disk.num_calls, kNumReads);
  CHECK_EQUAL(read_range(disk, *file, 100000).direct_bytes, kRange.nbytes());
}

TEST(read_direct_short_or_interrupted_is_continued) {
  for (const Injected injected :
       {Injected{EINTR}, Injected{0, 1}, Injected{0, kAlignment}, Injected{0, kAlignment + 7}}) {
    FakeDisk disk;
    disk.intercept = at_call(0, injected);
    const IoTally tally = read_range(disk, *disk.open(true));
    CHECK_EQUAL(tally.direct_bytes + tally.buffered_bytes, kRange.nbytes());
  }
}

TEST(read_direct_refused_goes_on_buffered) {
  FakeDisk disk;
  disk.intercept = [](const Call& call) { return Injected{call.is_direct ? EINVAL : 0}; };
  const auto file = disk.open(true);
  CHECK_EQUAL(read_range(disk, *file).buffered_bytes, kRange.nbytes());
  CHECK_EQUAL(file->direct_refused(), "EINVAL from pread of 20480 bytes at offset 0");
}

TEST(read_past_the_end_of_the_file_raises_short_transfer) {
  for (const bool is_direct : {true, false})
    for (const std::uint64_t file_end : {std::uint64_t{0}, kRange.begin + 10, 2 * kAlignment}) {
      FakeDisk disk;
      const auto file = disk.open(is_direct);
      const auto error = CHECK_THROWS(ShortTransferError, read_range(disk, *file, file_end));
      CHECK_EQUAL(error.context().offset, kRange.begin);
      CHECK_EQUAL(error.expected_bytes(), kRange.nbytes());
      CHECK_EQUAL(error.actual_bytes(), file_end > kRange.begin ? file_end - kRange.begin : 0);
    }
}

TEST(read_failing_raises_its_errno) {
  for (const bool is_direct : {true, false}) {
    FakeDisk disk;
    disk.intercept = at_call(0, {EIO});
    const auto file = disk.open(is_direct);
    const StorageError error = CHECK_THROWS(StorageError, read_range(disk, *file));
    CHECK_EQUAL(error.code(), EIO);
    CHECK_EQUAL(error.context().op, "pread");
  }
}

TEST(real_calls_on_a_pipe_raise_espipe) {
  int ends[2];
  CHECK_EQUAL(pipe(ends), 0);
  File file("a pipe", ends[1], -1, kAlignment);
  const PatternSlab slab;
  PosixIo io(real_syscalls(), file);
  CHECK_EQUAL(CHECK_THROWS(StorageError, io.write(slab.data(), kRange)).code(), ESPIPE);
  CHECK(!io.is_resident(kRange));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(real_file_is_resident_after_a_write) {
  char path[] = "/tmp/gdsckpt-native-test-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  ::unlink(path);
  File file(path, fd, -1, kAlignment);
  const PatternSlab slab;
  PosixIo io(real_syscalls(), file);
  io.write(slab.data(), kRange);
  CHECK(io.is_resident(kRange));
  CHECK(!io.is_resident(FileRange{0, 1 << 20}));  // there is nothing behind the end
  std::vector<std::uint8_t> back(kRange.nbytes());
  io.read_buffered(back.data(), kRange);
  check_pattern(back.data());
  ::close(fd);
}

TEST(file_rejects_alignments) {
  for (const std::uint64_t alignment : {0, 3, 131072})
    CHECK_EQUAL(CHECK_THROWS(ConfigError, File("x", 0, -1, alignment)).field(), "alignment");
}

TEST(file_keeps_the_first_refusal) {
  File file("x", 0, 1, 4096);
  CHECK(file.is_direct());
  file.refuse_direct("first");
  file.refuse_direct("second");
  CHECK_EQUAL(file.direct_refused(), "first");
}

}  // namespace
}  // namespace gdsckpt
