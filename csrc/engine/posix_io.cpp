#include "engine/posix_io.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "core/align.hpp"
#include "core/error.hpp"

namespace gdsckpt {
namespace {

off_t to_off(std::uint64_t value) noexcept { return static_cast<off_t>(value); }

/// Repeats a call that a signal broke off before it did anything.
template <typename Call>
ssize_t retry_interrupted(Call&& call) {
  ssize_t result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

[[noreturn]] void raise_errno(const char* op, const File& file, FileRange rest, int code) {
  throw make_storage_error({op, file.path(), rest.begin, rest.nbytes()}, code);
}

[[noreturn]] void raise_short(const char* op, const File& file, FileRange range,
                              std::uint64_t position) {
  throw make_short_transfer_error({op, file.path(), range.begin, range.nbytes()},
                                  position > range.begin ? position - range.begin : 0);
}

}  // namespace

const Syscalls& real_syscalls() noexcept {
  static constexpr Syscalls kReal{::pread, ::pwrite, ::sync_file_range, ::posix_fadvise, ::mincore};
  return kReal;
}

IoTally PosixIo::write(const std::uint8_t* data, FileRange range) {
  IoTally tally;
  std::uint64_t position = range.begin;
  const auto write_buffered_to = [&](std::uint64_t end) {
    if (position >= end) return;
    const FileRange part{position, end};
    write_buffered(data + (position - range.begin), part);
    start_write_back(part);
    tally.buffered_bytes += part.nbytes();
    position = end;
  };
  const FileRange middle{align_up(range.begin, file_.alignment()),
                         align_down(range.end, file_.alignment())};
  if (file_.is_direct() && middle.begin < middle.end) {
    write_buffered_to(middle.begin);
    position = write_direct(data + (position - range.begin), middle);
    tally.direct_bytes = position - middle.begin;
  }
  write_buffered_to(range.end);
  return tally;
}

std::uint64_t PosixIo::write_direct(const std::uint8_t* data, FileRange range) {
  std::uint64_t position = range.begin;
  while (position < range.end) {
    const FileRange rest{position, range.end};
    const ssize_t result = retry_interrupted([&] {
      return sys_.pwrite(file_.direct_fd(), data + (position - range.begin), rest.nbytes(),
                         to_off(position));
    });
    if (result < 0 && is_refusal("pwrite", rest, errno)) break;
    if (result < 0) raise_errno("pwrite", file_, rest, errno);
    if (result == 0) raise_short("pwrite", file_, range, position);
    position += static_cast<std::uint64_t>(result);
    // A rest that direct I/O would refuse is no refusal of the file: only this piece goes buffered.
    if (position % file_.alignment() != 0) break;
  }
  return position;
}

void PosixIo::write_buffered(const std::uint8_t* data, FileRange range) {
  std::uint64_t position = range.begin;
  while (position < range.end) {
    const FileRange rest{position, range.end};
    const ssize_t result = retry_interrupted([&] {
      return sys_.pwrite(file_.buffered_fd(), data + (position - range.begin), rest.nbytes(),
                         to_off(position));
    });
    if (result < 0) raise_errno("pwrite", file_, rest, errno);
    if (result == 0) raise_short("pwrite", file_, range, position);
    position += static_cast<std::uint64_t>(result);
  }
}

void PosixIo::start_write_back(FileRange range) noexcept {
  static_cast<void>(sys_.sync_file_range(file_.buffered_fd(), to_off(range.begin),
                                         to_off(range.nbytes()), SYNC_FILE_RANGE_WRITE));
}

bool PosixIo::is_refusal(const char* op, FileRange rest, int code) {
  if (code != EINVAL && code != EOPNOTSUPP) return false;
  file_.refuse_direct(std::string(code == EINVAL ? "EINVAL" : "EOPNOTSUPP") + " from " + op +
                      " of " + std::to_string(rest.nbytes()) + " bytes at offset " +
                      std::to_string(rest.begin));
  return true;
}

void PosixIo::read_buffered(std::uint8_t* data, FileRange range) {
  std::uint64_t position = range.begin;
  while (position < range.end) {
    const FileRange rest{position, range.end};
    const ssize_t result = retry_interrupted([&] {
      return sys_.pread(file_.buffered_fd(), data + (position - range.begin), rest.nbytes(),
                        to_off(position));
    });
    if (result < 0) raise_errno("pread", file_, rest, errno);
    if (result == 0) raise_short("pread", file_, range, position);
    position += static_cast<std::uint64_t>(result);
  }
}

IoTally PosixIo::read_direct(std::uint8_t* data, FileRange range) {
  const std::uint64_t begin = align_down(range.begin, file_.alignment());
  const std::uint64_t end = align_up(range.end, file_.alignment());
  std::uint64_t position = begin;
  // Up to range.end only: the end of the file may cut the last block short, and that is right.
  while (position < range.end && position % file_.alignment() == 0 && file_.is_direct()) {
    const FileRange rest{position, end};
    const ssize_t result = retry_interrupted([&] {
      return sys_.pread(file_.direct_fd(), data + (position - begin), rest.nbytes(),
                        to_off(position));
    });
    if (result < 0 && is_refusal("pread", rest, errno)) break;
    if (result < 0) raise_errno("pread", file_, rest, errno);
    if (result == 0) raise_short("pread", file_, range, position);
    position += static_cast<std::uint64_t>(result);
  }
  IoTally tally;
  const std::uint64_t direct_end = std::clamp(position, range.begin, range.end);
  tally.direct_bytes = direct_end - range.begin;
  tally.buffered_bytes = range.end - direct_end;
  if (direct_end < range.end) {
    try {
      read_buffered(data + (direct_end - begin), FileRange{direct_end, range.end});
    } catch (const ShortTransferError& error) {
      raise_short("pread", file_, range, direct_end + error.actual_bytes());
    }
  }
  return tally;
}

bool PosixIo::is_resident(FileRange range) noexcept {
  static const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = align_down(range.begin, page_bytes);
  const std::size_t mapped_bytes = align_up(range.end, page_bytes) - begin;
  if (mapped_bytes == 0) return true;
  void* const mapped =
      mmap(nullptr, mapped_bytes, PROT_READ, MAP_SHARED, file_.buffered_fd(), to_off(begin));
  if (mapped == MAP_FAILED) return false;
  auto* const first = static_cast<std::uint8_t*>(mapped);
  std::array<unsigned char, 4096> pages;
  bool is_resident = true;
  for (std::size_t at = 0; at < mapped_bytes && is_resident;) {
    const std::size_t step = std::min<std::size_t>(mapped_bytes - at, pages.size() * page_bytes);
    const auto num_pages = static_cast<std::ptrdiff_t>(step / page_bytes);
    is_resident = sys_.mincore(first + at, step, pages.data()) == 0 &&
                  std::all_of(pages.begin(), pages.begin() + num_pages,
                              [](unsigned char page) { return (page & 1) != 0; });
    at += step;
  }
  static_cast<void>(munmap(mapped, mapped_bytes));
  return is_resident;
}

void PosixIo::read_ahead(FileRange range) noexcept {
  static_cast<void>(sys_.posix_fadvise(file_.buffered_fd(), to_off(range.begin),
                                       to_off(range.nbytes()), POSIX_FADV_WILLNEED));
}

}  // namespace gdsckpt
