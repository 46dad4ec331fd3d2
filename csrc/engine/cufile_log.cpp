#include "engine/cufile_log.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

namespace gdsckpt {
namespace {

// Errors come last; what stands before this many bytes at the end is of no use.
constexpr off_t kTailBytes = 16 * 1024;

std::string read_tail(int fd) {
  const off_t nbytes = lseek(fd, 0, SEEK_END);
  std::array<char, kTailBytes> tail;
  const off_t begin = std::max<off_t>(0, nbytes - kTailBytes);
  const ssize_t result = pread(fd, tail.data(), tail.size(), begin);
  return result > 0 ? std::string(tail.data(), static_cast<std::size_t>(result)) : std::string();
}

/// "cufio-drv:1252 nvidia-fs.ko driver not loaded" of a line such as
/// " 30-11-2026 01:02:34:591 [pid=376 tid=376] ERROR  cufio-drv:1252 nvidia-fs.ko ...".
std::string message_of(const std::string& log, std::size_t level, std::size_t level_nbytes) {
  const std::size_t begin = log.find_first_not_of(" \t", level + level_nbytes);
  const std::size_t end = std::min(log.find('\n', level), log.size());
  if (begin == std::string::npos || begin >= end) return "";
  const std::size_t last = log.find_last_not_of(" \t\r", end - 1);
  return log.substr(begin, last + 1 - begin);
}

}  // namespace

CuFileLog::CuFileLog()
    : fd_(memfd_create("gdsckpt-cufile-log", MFD_CLOEXEC)),
      path_(fd_ < 0 ? "/dev/null" : "/proc/self/fd/" + std::to_string(fd_)) {}

CuFileLog::~CuFileLog() {
  if (fd_ >= 0) static_cast<void>(::close(fd_));
}

std::string CuFileLog::take_last_error() {
  if (fd_ < 0) return "";
  const std::string log = read_tail(fd_);
  static_cast<void>(ftruncate(fd_, 0));  // it is opened for appending; a failure costs memory only
  constexpr char kLevel[] = "] ERROR";
  const std::size_t level = log.rfind(kLevel);
  return level == std::string::npos ? "" : message_of(log, level, sizeof(kLevel) - 1);
}

bool has_configured_log() {
  const char* const path = std::getenv("CUFILE_ENV_PATH_JSON");
  std::ifstream file(path != nullptr ? path : "/etc/cufile.json");
  for (std::string line; std::getline(file, line);)
    if (line.substr(0, line.find("//")).find("\"dir\"") != std::string::npos) return true;
  return false;
}

EnvironmentDefault::EnvironmentDefault(const char* name, const std::string& value) : name_(name) {
  if (std::getenv(name) == nullptr) is_set_ = setenv(name, value.c_str(), 1) == 0;
}

EnvironmentDefault::~EnvironmentDefault() {
  if (is_set_) static_cast<void>(unsetenv(name_));
}

}  // namespace gdsckpt
