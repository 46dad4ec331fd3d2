#include "core/fd.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

/// `fd` itself where it is none or not open.
int own(int fd, const std::string& path) {
  if (fd < 0 || fcntl(fd, F_GETFD) < 0) return fd;
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) throw make_storage_error({"dup", path, 0, 0}, errno);
  return duplicate;
}

}  // namespace

OwnFd::OwnFd(int fd, const std::string& path) : fd_(own(fd, path)), is_duplicate_(get() != fd) {}

OwnFd::~OwnFd() { close(); }

void OwnFd::close() noexcept {
  const int fd = fd_.exchange(-1, std::memory_order_acq_rel);
  if (is_duplicate_ && fd >= 0) static_cast<void>(::close(fd));
}

std::string path_of_fd(int fd) {
  std::array<char, PATH_MAX> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return "fd " + std::to_string(fd);
  return std::string(target.data(), static_cast<std::size_t>(length));
}

bool reserve_space(int fd, std::uint64_t nbytes) {
  if (nbytes == 0) return true;  // fallocate(2) gives EINVAL for a length of 0
  if (nbytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    throw make_storage_error({"fallocate", path_of_fd(fd), 0, nbytes}, EFBIG);
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  const int code = errno;
  if (code == EOPNOTSUPP || code == ENOSYS) return false;
  throw make_storage_error({"fallocate", path_of_fd(fd), 0, nbytes}, code);
}

std::uint64_t direct_alignment(int fd) {
  constexpr std::uint64_t kUnknown = 4096;
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) {
    const int code = errno;
    // Old kernels, and seccomp filters that know no statx.
    if (code == ENOSYS || code == EPERM || code == EINVAL) return kUnknown;
    throw make_storage_error({"statx", path_of_fd(fd), 0, 0}, code);
  }
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return kUnknown;
  return std::max<std::uint64_t>(status.stx_dio_mem_align, status.stx_dio_offset_align);
#else
  if (fcntl(fd, F_GETFD) < 0) throw make_storage_error({"fcntl", path_of_fd(fd), 0, 0}, errno);
  return kUnknown;
#endif
}

}  // namespace gdsckpt
