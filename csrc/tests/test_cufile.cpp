#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "engine/cufile_driver.hpp"
#include "engine/cufile_handle.hpp"
#include "engine/cufile_io.hpp"
#include "engine/cufile_policy.hpp"
#include "engine/file.hpp"
#include "shim/cufile_result.hpp"
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

CUfileError_t status_of(int code, int cuda_code = 0) {
  CUfileError_t status{};
  std::memcpy(&status.err, &code, sizeof(code));
  status.cu_err = static_cast<CUresult>(cuda_code);
  return status;
}

// --- results -----------------------------------------------------------------------------------

TEST(cufile_result_of_zero_or_more_is_bytes_whatever_errno_says) {
  CHECK_EQUAL(decode_cufile_bytes(4096, ENOENT).nbytes, 4096u);
  CHECK(decode_cufile_bytes(4096, ENOENT).is_success());
  CHECK(decode_cufile_bytes(0, 5008).is_success());
  CHECK_EQUAL(decode_cufile_bytes(0, 5008).nbytes, 0u);
}

TEST(cufile_result_of_minus_one_is_what_errno_says) {
  CHECK_EQUAL(decode_cufile_bytes(-1, ENOSPC).code, ENOSPC);
  CHECK_EQUAL(decode_cufile_bytes(-1, 5017).code, 5017);
  CHECK_EQUAL(decode_cufile_bytes(-1, 0).code, 5030);
}

TEST(cufile_result_below_minus_one_is_the_code_itself) {
  CHECK_EQUAL(decode_cufile_bytes(-5008, ENOENT).code, 5008);
  CHECK_EQUAL(decode_cufile_bytes(-22, 5008).code, EINVAL);
}

TEST(cufile_errno_is_a_storage_error) {
  const auto error = CHECK_THROWS(
      StorageError, raise_cufile_result({0, ENOSPC}, {"cuFileWrite", "/nvme/x", 4096, 8192}));
  CHECK_EQUAL(error.code(), ENOSPC);
  CHECK_EQUAL(error.message(),
              "cuFileWrite of 8192 bytes at offset 4096 in /nvme/x failed: No space left on device "
              "(errno 28). Free space on the file system or save elsewhere.");
}

TEST(cufile_code_is_a_cufile_error_that_says_what_to_do) {
  const auto error = CHECK_THROWS(
      CuFileError, raise_cufile_result({0, 5018}, {"cuFileWrite", "/nvme/x", 4096, 8192}));
  CHECK_EQUAL(error.code(), 5018);
  CHECK_EQUAL(error.context().offset, 4096u);
  CHECK_EQUAL(error.context().nbytes, 8192u);
  CHECK_EQUAL(error.message(),
              "cuFileWrite of 8192 bytes at offset 4096 in /nvme/x failed: unsupported file type "
              "(CU_FILE_INVALID_FILE_TYPE, 5018). Save to a regular file on ext4 or XFS.");
}

TEST(cufile_code_without_a_name_is_told_by_number) {
  CHECK_EQUAL(describe_cufile_code(6001), "an error that cufile.h does not name (6001)");
  CHECK_EQUAL(mend_cufile_code(6001), "");
}

TEST(cufile_codes_of_the_header_have_names) {
  for (int code = 5001; code <= 5049; ++code) {
    if (code == 5021 || code == 5032) continue;  // not in use
    CHECK(contains(describe_cufile_code(code), "(CU_FILE_"));
  }
}

TEST(cufile_status_names_the_cuda_error_and_takes_either_sign) {
  CHECK(is_success(status_of(0)));
  CHECK_EQUAL(code_of(status_of(-5016)), 5016);
  CHECK(contains(describe(status_of(5011, 801)), "5011) with CUDA error 801"));
}

TEST(cufile_busy_and_refusals_are_told_apart_from_errors_of_the_file) {
  for (const int code : {5039, 5043, EAGAIN}) CHECK((CuFileResult{0, code}.is_busy()));
  for (const int code : {5038, 5044, EINTR, EIO}) CHECK(!(CuFileResult{0, code}.is_busy()));
  for (const int code : {5001, 5049, 6001, EINVAL, EOPNOTSUPP, EFAULT, EREMOTEIO})
    CHECK((CuFileResult{0, code}.is_refusal()));
  for (const int code : {0, ENOSPC, EIO, EBADF, EINTR})
    CHECK(!(CuFileResult{0, code}.is_refusal()));
}

TEST(cufile_stats_are_found_in_both_layouts) {
  for (const int version : {1150, 1180, 1190, 1200}) {
    std::vector<std::uint8_t> buffer(kStatsBufferBytes);
    const std::size_t head_bytes = version >= 1190 ? 1136 : 1024;
    const std::uint32_t num_gpus = 2;
    std::memcpy(buffer.data() + head_bytes, &num_gpus, sizeof(num_gpus));
    CUfilePerGpuStats_t gpu{};
    gpu.n_p2p_writes = 1;
    gpu.n_nvfs_writes = 10;
    gpu.n_posix_writes = 100;
    gpu.n_writes_err = 1000;
    gpu.n_nvfs_reads = 7;
    for (std::size_t i = 0; i < 3; ++i)  // the third is not counted
      std::memcpy(buffer.data() + head_bytes + 8 + i * sizeof(gpu), &gpu, sizeof(gpu));
    const CuFileStats stats = parse_cufile_stats(buffer.data(), version);
    CHECK_EQUAL(stats.writes.p2p, 2u);
    CHECK_EQUAL(stats.writes.nvfs, 20u);
    CHECK_EQUAL(stats.writes.posix, 200u);
    CHECK_EQUAL(stats.writes.errors, 2000u);
    CHECK_EQUAL(stats.reads.nvfs, 14u);
  }
}

// --- policy ------------------------------------------------------------------------------------

TEST(cufile_alignment_is_the_largest_of_block_page_and_file) {
  CHECK_EQUAL(cufile_alignment(4096, 512), 4096u);
  CHECK_EQUAL(cufile_alignment(65536, 512), 65536u);
  CHECK_EQUAL(cufile_alignment(4096, 65536), 65536u);
}

TEST(cufile_interior_is_the_aligned_part_of_a_large_piece) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const FileRange whole = cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB, kBlock);
  CHECK_EQUAL(whole.begin, kMiB);
  CHECK_EQUAL(whole.end, 3 * kMiB);
  const FileRange inner = cufile_interior({kMiB + 100, 3 * kMiB + 5}, 7 * kMiB + 100, kBlock);
  CHECK_EQUAL(inner.begin, kMiB + kBlock);
  CHECK_EQUAL(inner.end, 3 * kMiB);
}

TEST(cufile_interior_of_pages_of_64_kib_asks_for_their_alignment) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  CHECK_EQUAL(cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB + kBlock, 65536).nbytes(), 0u);
  const FileRange inner = cufile_interior({kMiB + kBlock, 3 * kMiB}, kBlock, 65536);
  CHECK_EQUAL(inner.begin, kMiB + 65536);
}

TEST(cufile_interior_is_empty_where_nothing_is_aligned_or_large) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  CHECK_EQUAL(cufile_interior({kMiB, 3 * kMiB}, 7 * kMiB + 64, kBlock).nbytes(), 0u);
  CHECK_EQUAL(cufile_interior({kMiB, kMiB + kCuFileLeastBytes - kBlock}, kMiB, kBlock).nbytes(),
              0u);
  CHECK_EQUAL(cufile_interior({kMiB + 1, kMiB + 2}, 1, kBlock).nbytes(), 0u);
  CHECK_EQUAL(cufile_interior({kMiB + 1, kMiB + 2}, 1, kBlock).begin, kMiB + 1);
}

// --- driver ------------------------------------------------------------------------------------

TEST(cufile_parameters_are_set_before_the_driver_is_opened) {
  FakeCuFile cufile;
  const auto driver = FakeCuFile::open_driver();
  const std::vector<std::string> expected{"set 1 0", "set 7 1",       "set size 5 16384",
                                          "open",    "stats level 3", "stats start"};
  CHECK(cufile.events == expected);
  const CuFileFacts facts = driver->facts();
  CHECK(facts.is_open);
  CHECK(!facts.allows_compat_mode);
  CHECK_EQUAL(facts.max_direct_io_bytes, 65536u);
  CHECK(facts.notes.empty());
}

TEST(cufile_driver_is_opened_once) {
  FakeCuFile cufile;
  const auto driver = FakeCuFile::open_driver();
  driver->open(FakeCuFile::options());
  CHECK_EQUAL(cufile.use_count, 1);
  driver->close();
  driver->close();
  CHECK_EQUAL(cufile.use_count, 0);
  driver->open(FakeCuFile::options());
  CHECK_EQUAL(cufile.use_count, 1);
}

TEST(cufile_driver_is_closed_with_its_owner) {
  FakeCuFile cufile;
  static_cast<void>(FakeCuFile::open_driver());
  CHECK_EQUAL(cufile.use_count, 0);
}

TEST(cufile_driver_that_others_opened_keeps_their_settings_and_count) {
  FakeCuFile cufile;
  cufile.use_count = 1;
  const auto driver = FakeCuFile::open_driver();
  CHECK_EQUAL(cufile.events[0], "open");
  CHECK_EQUAL(cufile.use_count, 2);
  const CuFileFacts facts = driver->facts();
  CHECK(facts.allows_compat_mode);
  CHECK_EQUAL(facts.notes.size(), 2u);
  CHECK(contains(facts.notes[0], "somebody else"));
  CHECK(contains(facts.notes[1], "compatibility mode is on"));
  driver->close();
  CHECK_EQUAL(cufile.use_count, 1);
}

TEST(cufile_driver_without_kernel_modules_is_never_opened) {
  FakeCuFile cufile;
  CuFileOptions options;
  options.modules_path = "/proc/no-such-file";
  const auto error = CHECK_THROWS(EngineUnavailableError, FakeCuFile::driver()->open(options));
  CHECK_EQUAL(error.engine(), "cufile");
  CHECK(contains(error.message(), "/proc/no-such-file does not exist"));
  CHECK(cufile.events.empty());
}

TEST(cufile_driver_that_cannot_be_opened_says_why_and_can_be_tried_again) {
  FakeCuFile cufile;
  cufile.open_code = 5001;
  cufile.log_text =
      " 30-11-2026 01:02:34:591 [pid=1 tid=1] ERROR  cufio-drv:1252 nvidia-fs.ko not loaded\n\n";
  const auto driver = FakeCuFile::driver();
  const auto error = CHECK_THROWS(EngineUnavailableError, driver->open(FakeCuFile::options()));
  CHECK_EQUAL(
      error.message(),
      "the cufile engine can't be used: cuFileDriverOpen failed: there is no direct path to "
      "storage here (CU_FILE_DRIVER_NOT_INITIALIZED, 5001); cuFile logged "
      "'cufio-drv:1252 nvidia-fs.ko not loaded'. Run 'gdsckpt probe' on the directory: it "
      "tells what is missing.");
  CHECK_EQUAL(error.reasons().size(), 1u);
  CHECK(!driver->facts().is_open);
  cufile.open_code = 0;
  driver->open(FakeCuFile::options());
  CHECK(driver->facts().is_open);
}

TEST(cufile_driver_without_a_switch_for_compatibility_mode_is_not_opened) {
  FakeCuFile cufile;
  cufile.set_code = 5022;
  const auto driver = FakeCuFile::driver();
  CHECK_THROWS(EngineUnavailableError, driver->open(FakeCuFile::options()));
  CHECK_EQUAL(cufile.use_count, 0);
}

TEST(cufile_log_is_kept_out_of_the_working_directory_and_the_environment) {
  FakeCuFile cufile;
  const auto driver = FakeCuFile::open_driver();
  CHECK(contains(cufile.log_path, "/proc/self/fd/"));
  CHECK(std::getenv("CUFILE_LOGFILE_PATH") == nullptr);
  CHECK_EQUAL(driver->take_last_error(), "");
}

TEST(cufile_log_goes_where_the_user_said) {
  FakeCuFile cufile;
  CHECK_EQUAL(setenv("CUFILE_LOGFILE_PATH", "/dev/null", 1), 0);
  static_cast<void>(FakeCuFile::open_driver());
  CHECK_EQUAL(cufile.log_path, "/dev/null");
  CHECK_EQUAL(std::string(std::getenv("CUFILE_LOGFILE_PATH")), "/dev/null");
  CHECK_EQUAL(unsetenv("CUFILE_LOGFILE_PATH"), 0);
}

TEST(cufile_log_goes_where_the_configuration_says) {
  FakeCuFile cufile;
  char path[] = "/tmp/gdsckpt-cufile-json-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  CHECK_EQUAL(setenv("CUFILE_ENV_PATH_JSON", path, 1), 0);
  for (const std::string line :
       {"{ // \"dir\": \"/x\"\n", " \"logging\": { \"dir\" : \"/y\" }\n"}) {
    CHECK_EQUAL(write(fd, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    const auto driver = FakeCuFile::open_driver();
    CHECK_EQUAL(cufile.log_path.empty(), line[0] == ' ');
  }
  CHECK_EQUAL(unsetenv("CUFILE_ENV_PATH_JSON"), 0);
  CHECK_EQUAL(unlink(path) | close(fd), 0);
}

TEST(cufile_environment_decides_about_p2pdma) {
  FakeCuFile cufile;
  CHECK_EQUAL(setenv("CUFILE_USE_PCIP2PDMA", "0", 1), 0);
  static_cast<void>(FakeCuFile::open_driver());
  CHECK(std::find(cufile.events.begin(), cufile.events.end(), "set 7 1") == cufile.events.end());
  CHECK_EQUAL(unsetenv("CUFILE_USE_PCIP2PDMA"), 0);
}

TEST(cufile_log_tells_the_last_error_once) {
  CuFileLog log;
  CHECK_EQUAL(log.take_last_error(), "");
  FakeCuFile cufile;
  cufile.log_text = std::string(20000, 'x') + "\n [pid=1 tid=1] ERROR  first one\n" +
                    " [pid=1 tid=1] ERROR\n [pid=1 tid=1] WARN   later\n";
  const EnvironmentDefault path("CUFILE_LOGFILE_PATH", log.path());
  const auto driver = FakeCuFile::open_driver();
  CHECK_EQUAL(log.take_last_error(), "");  // an empty message, cut at its line
  cufile.log_text = " [pid=1 tid=1] ERROR  0:185 failed to open x \n [pid=1 tid=1] WARN   later";
  driver->close();
  driver->open(FakeCuFile::options());
  CHECK_EQUAL(log.take_last_error(), "0:185 failed to open x");
  CHECK_EQUAL(log.take_last_error(), "");
}

TEST(cufile_stats_are_those_of_all_gpus) {
  FakeCuFile cufile;
  const auto driver = FakeCuFile::driver();
  CHECK_THROWS(EngineUnavailableError, driver->stats());
  driver->open(FakeCuFile::options());
  CHECK_EQUAL(driver->stats().writes.p2p, 7u);
  CHECK_EQUAL(driver->stats().reads.posix, 5u);
}

TEST(cufile_close_that_fails_is_told) {
  FakeCuFile cufile;
  const auto driver = FakeCuFile::open_driver();
  cufile.close_code = 5006;
  CHECK_EQUAL((CHECK_THROWS(CuFileError, driver->close())).code(), 5006);
}

TEST(cufile_driver_is_left_alone_by_a_forked_child) {
  FakeCuFile cufile;
  const FakeDisk disk;
  auto driver = FakeCuFile::open_driver();
  auto file = disk.open(true);
  CHECK(file->attach_cufile(driver));
  const std::size_t num_events = cufile.events.size();
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = true;
    try {
      driver->open(FakeCuFile::options());
      is_right = false;
    } catch (const EngineUnavailableError&) {
    }
    is_right &= file->cufile()->write(0, kBlock, 0, 0).code == 5027;
    file->abandon();
    file.reset();
    driver.reset();
    is_right &= cufile.events.size() == num_events;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  CHECK_EQUAL(cufile.registered.size(), 1u);
}

// --- files -------------------------------------------------------------------------------------

TEST(cufile_registration_ends_before_the_driver_is_closed) {
  FakeCuFile cufile;
  const FakeDisk disk;
  const auto driver = FakeCuFile::open_driver();
  const auto file = disk.open(true);
  CHECK(file->attach_cufile(driver));
  CHECK(file->attach_cufile(driver));  // again: nothing
  CHECK_EQUAL(cufile.registered.size(), 1u);
  driver->close();
  CHECK_EQUAL(cufile.events[cufile.events.size() - 2], "deregister");
  CHECK_EQUAL(cufile.events.back(), "close");
  CHECK_EQUAL(file->cufile()->write(0, kBlock, 0, 0).code, 5027);
  file->close();
  CHECK_EQUAL(cufile.events.back(), "close");
}

TEST(cufile_registration_ends_with_the_last_use_of_the_file) {
  FakeCuFile cufile;
  const FakeDisk disk;
  const auto driver = FakeCuFile::open_driver();
  const auto file = disk.open(true);
  CHECK(file->attach_cufile(driver));
  file->begin_use();
  file->close();
  CHECK_EQUAL(cufile.registered.size(), 1u);
  file->end_use();
  CHECK_EQUAL(cufile.registered.size(), 0u);
}

TEST(cufile_refuses_a_file_and_the_reason_is_kept) {
  FakeCuFile cufile;
  cufile.register_code = 5027;
  const FakeDisk disk;
  const auto file = disk.open(true);
  CHECK(!file->attach_cufile(FakeCuFile::open_driver()));
  CHECK(file->cufile() == nullptr);
  CHECK(contains(file->cufile_refused(), "cuFileHandleRegister of /fake/disk failed"));
  CHECK(contains(file->cufile_refused(), "5027). In a container mount /run/udev:/run/udev:ro"));
}

TEST(cufile_is_not_asked_about_a_file_without_direct_io) {
  FakeCuFile cufile;
  const FakeDisk disk;
  const auto file = disk.open(false);
  CHECK(!file->attach_cufile(FakeCuFile::open_driver()));
  CHECK(contains(file->cufile_refused(), "not open for direct I/O"));
  CHECK(std::find(cufile.events.begin(), cufile.events.end(), "register") == cufile.events.end());
}

TEST(cufile_registration_with_a_closed_driver_is_an_error) {
  FakeCuFile cufile;
  const FakeDisk disk;
  const auto file = disk.open(true);
  CHECK_THROWS(EngineUnavailableError, file->attach_cufile(FakeCuFile::driver()));
}

TEST(cufile_driver_waits_for_requests_before_it_closes) {
  FakeCuFile cufile;
  const FakeDisk disk;
  const auto driver = FakeCuFile::open_driver();
  const auto file = disk.open(true);
  CHECK(file->attach_cufile(driver));
  std::thread closer;
  bool was_closed = true;
  cufile.intercept = [&](const CuFileCall&) {
    closer = std::thread([&] { driver->close(); });
    was_closed = cufile.use_count == 0;
    return CuFileInjected{};
  };
  const std::vector<std::uint8_t> data(kBlock);
  const auto address = reinterpret_cast<std::uintptr_t>(data.data());
  CHECK_EQUAL(file->cufile()->write(address, kBlock, 0, 0).nbytes, kBlock);
  closer.join();
  CHECK(!was_closed);
  CHECK_EQUAL(cufile.use_count, 0);
}

// --- requests ----------------------------------------------------------------------------------

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
  for (const int code : {EINVAL, EOPNOTSUPP, EFAULT, EREMOTEIO}) {
    Bench bench;
    bench.inject(1, {-1, code, 0});
    CHECK_EQUAL(bench.write(), kRange.begin + 65536);
    CHECK(contains(bench.file->cufile_refused(), "(errno " + std::to_string(code) + ")"));
  }
}

TEST(cufile_errors_of_the_file_are_raised) {
  for (const int code : {ENOSPC, EDQUOT, EIO, EROFS, EBADF}) {
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
