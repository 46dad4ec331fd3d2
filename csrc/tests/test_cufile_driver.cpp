#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "engine/cufile_driver.hpp"
#include "engine/cufile_handle.hpp"
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

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

}  // namespace
}  // namespace gdsckpt
