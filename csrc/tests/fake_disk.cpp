#include "tests/fake_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gdsckpt::tests {

FakeDisk* FakeDisk::current_ = nullptr;

FakeDisk::FakeDisk(std::size_t nbytes) : bytes(nbytes) { current_ = this; }

FakeDisk::~FakeDisk() { current_ = nullptr; }

std::shared_ptr<File> FakeDisk::open(bool is_direct) const {
  return std::make_shared<File>("/fake/disk", kBufferedFd, is_direct ? kDirectFd : -1, kAlignment);
}

const Syscalls& FakeDisk::syscalls() noexcept {
  static const Syscalls kFake{
      &FakeDisk::pread,
      &FakeDisk::pwrite,
      [](int, off_t, off_t, unsigned int) { return 0; },
      [](int, off_t, off_t, int) { return 0; },
      [](void*, std::size_t, unsigned char*) { return -1; },
  };
  return kFake;
}

ssize_t FakeDisk::admit(bool is_write, int fd, const void* data, std::size_t nbytes, off_t offset) {
  const bool is_direct = fd == kDirectFd;
  Injected injected;
  if (intercept) injected = intercept(Call{is_write, is_direct, num_calls, nbytes});
  ++num_calls;
  if (is_direct && injected.code == 0) {
    const auto position = static_cast<std::uint64_t>(offset);
    if ((reinterpret_cast<std::uintptr_t>(data) | position | nbytes) % kAlignment != 0)
      injected.code = EINVAL;
  }
  if (injected.code != 0) {
    errno = injected.code;
    return -1;
  }
  return static_cast<ssize_t>(std::min(nbytes, injected.limit));
}

ssize_t FakeDisk::pread(int fd, void* data, std::size_t nbytes, off_t offset) {
  FakeDisk& disk = *current_;
  const std::lock_guard lock(disk.mutex_);
  const ssize_t admitted = disk.admit(false, fd, data, nbytes, offset);
  const auto begin = static_cast<std::size_t>(offset);
  if (admitted <= 0 || begin >= disk.bytes.size()) return std::min<ssize_t>(admitted, 0);
  const std::size_t moved = std::min(static_cast<std::size_t>(admitted), disk.bytes.size() - begin);
  std::memcpy(data, disk.bytes.data() + begin, moved);
  return static_cast<ssize_t>(moved);
}

ssize_t FakeDisk::pwrite(int fd, const void* data, std::size_t nbytes, off_t offset) {
  FakeDisk& disk = *current_;
  const std::lock_guard lock(disk.mutex_);
  const ssize_t admitted = disk.admit(true, fd, data, nbytes, offset);
  if (admitted <= 0) return admitted;
  const auto begin = static_cast<std::size_t>(offset);
  const auto moved = static_cast<std::size_t>(admitted);
  if (disk.bytes.size() < begin + moved) disk.bytes.resize(begin + moved);
  std::memcpy(disk.bytes.data() + begin, data, moved);
  return admitted;
}

}  // namespace gdsckpt::tests
