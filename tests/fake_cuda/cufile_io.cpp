// Transfers, with the return values of libcufile 1.20: -1 and a code in errno.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "cufile.hpp"

namespace fake {
namespace {

constexpr uint64_t kPage = 4096;

struct Request {
  bool is_write;
  Handle* handle;
  uint64_t base;
  size_t nbytes;
  off_t file_offset;
  off_t buffer_offset;
};

/// 1.20 gives -1 and the code in errno; older versions (`set old_errors=1`) the negative code.
ssize_t give_up(int code) {
  if (code > CUFILEOP_BASE_ERR && Control::get().setting("old_errors", 0) != 0) return -code;
  errno = code;
  return -1;
}

/// Enters a handle's list of transfers; 0, or why not.
int begin(const Request& request) {
  Driver& all = driver();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.is_closing) return CU_FILE_DRIVER_CLOSING;
  if (all.use_count == 0) return CU_FILE_DRIVER_NOT_INITIALIZED;
  if (all.handles.count(request.handle) == 0) return CU_FILE_HANDLE_NOT_REGISTERED;
  ++all.num_in_flight;
  ++request.handle->num_in_flight;
  return 0;
}

void end(const Request& request) {
  Driver& all = driver();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.num_in_flight;
  --request.handle->num_in_flight;
  all.changed.notify_all();
}

int check(const Request& request) {
  if (request.base == 0) return EINVAL;
  if (request.file_offset < 0 || request.buffer_offset < 0) return CU_FILE_INVALID_VALUE;
  const int unfit = request.is_write ? O_RDONLY : O_WRONLY;
  if (request.handle->access_mode == unfit) return CU_FILE_INVALID_FILE_OPEN_FLAG;
  Driver& all = driver();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.buffers.find(request.base);
  if (found != all.buffers.end() &&
      static_cast<size_t>(request.buffer_offset) + request.nbytes > found->second.nbytes) {
    return CU_FILE_INVALID_MAPPING_RANGE;
  }
  return 0;
}

int check_place(const Place& place) {
  if (place.device < 0) return 0;
  if (!place.is_whole) return CU_FILE_CUDA_POINTER_RANGE_ERROR;
  // Libcufile 1.20 does without a context in compatibility mode, and so does `set strict=0`. A
  // thread that did not make the right context current is what the tests look for.
  const bool is_strict = Control::get().setting("strict", 1) != 0;
  if (!is_strict || current_device() == place.device) return 0;
  Control::get().add("transfers_in_wrong_context", 1);
  return CU_FILE_CUDA_CONTEXT_MISMATCH;
}

/// Moves all bytes unless the file ends or the kernel refuses; gives bytes, or -1 and errno.
ssize_t move_bytes(const Request& request, int fd, char* view, size_t nbytes, off_t offset) {
  size_t done = 0;
  while (done < nbytes) {
    const size_t rest = nbytes - done;
    const off_t place = offset + static_cast<off_t>(done);
    const ssize_t moved = request.is_write ? pwrite(fd, view + done, rest, place)
                                           : pread(fd, view + done, rest, place);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return done > 0 ? static_cast<ssize_t>(done) : -1;
    if (moved == 0) break;
    done += static_cast<size_t>(moved);
  }
  return static_cast<ssize_t>(done);
}

/// As above, with a bit of the bytes turned over between the memory and the file.
ssize_t move_flipped(const Request& request, int fd, char* view, size_t nbytes, int64_t which) {
  const auto bit = static_cast<size_t>(which) % (nbytes * 8);
  const char mask = static_cast<char>(1 << bit % 8);
  std::vector<char> room(nbytes + kPage);
  char* const copy =
      room.data() + (kPage - reinterpret_cast<uint64_t>(room.data()) % kPage) % kPage;
  if (request.is_write) {
    std::copy(view, view + nbytes, copy);
    copy[bit / 8] = static_cast<char>(copy[bit / 8] ^ mask);
  }
  const ssize_t moved = move_bytes(request, fd, copy, nbytes, request.file_offset);
  if (request.is_write || moved < 0) return moved;
  copy[bit / 8] = static_cast<char>(copy[bit / 8] ^ mask);
  std::copy(copy, copy + moved, view);
  return moved;
}

ssize_t run(const Request& request, const Place& place, const Met& met) {
  if (met.effect == Effect::kFail) return give_up(static_cast<int>(met.value));
  size_t nbytes = request.nbytes;
  off_t offset = request.file_offset;
  if (met.effect == Effect::kShort) nbytes = std::min(nbytes, static_cast<size_t>(met.value));
  if (met.effect == Effect::kMisplace) offset += met.value;
  const uint64_t all_of_them = static_cast<uint64_t>(offset) | nbytes |
                               (request.base + static_cast<uint64_t>(request.buffer_offset));
  const bool is_aligned = all_of_them % kPage == 0;
  const int fd = is_aligned ? request.handle->fd : request.handle->buffered_fd;
  const ssize_t moved = met.effect == Effect::kFlip && nbytes > 0
                            ? move_flipped(request, fd, place.view, nbytes, met.value)
                            : move_bytes(request, fd, place.view, nbytes, offset);
  const int error = errno;
  count_transfer(request.is_write, place.device, moved, is_aligned);
  errno = error;
  return moved;
}

ssize_t transfer(const char* function, const Request& request) {
  Driver& all = driver();
  // First of all, as a lock may be held by a thread that a forked child does not have.
  if (all.pid != 0 && all.pid != getpid()) return give_up(CU_FILE_DRIVER_NOT_INITIALIZED);
  if (const int refused = begin(request)) return give_up(refused);
  const Met met = Control::get().enter(function);
  ssize_t result = 0;
  const uint64_t address = request.base + static_cast<uint64_t>(request.buffer_offset);
  if (const int refused = check(request)) {
    result = give_up(refused);
  } else {
    const Place place = place_of(address, request.nbytes);
    const int unfit = check_place(place);
    result = unfit != 0 ? give_up(unfit) : run(request, place, met);
  }
  const int error = errno;
  end(request);
  // As the real library does: errno means nothing unless the result is -1.
  errno = result >= 0 ? ENOENT : error;
  return result;
}

#ifndef FAKE_WITHOUT_VECTORS
ssize_t transfer_vector(const char* function, bool is_write, CUfileHandle_t fh,
                        const CUfileIOVec_t* parts, size_t count, off_t file_offset) {
  ssize_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    const ssize_t moved = transfer(
        function, {is_write, static_cast<Handle*>(fh), reinterpret_cast<uint64_t>(parts[i].base),
                   parts[i].len, file_offset + done, 0});
    if (moved < 0) return done > 0 ? done : moved;
    done += moved;
    if (static_cast<size_t>(moved) < parts[i].len) break;
  }
  return done;
}
#endif

}  // namespace
}  // namespace fake

FAKE_EXPORT ssize_t cuFileWrite(CUfileHandle_t fh, const void* base, size_t nbytes,
                                off_t file_offset, off_t buffer_offset) {
  return fake::transfer("cuFileWrite",
                        {true, static_cast<fake::Handle*>(fh), reinterpret_cast<uint64_t>(base),
                         nbytes, file_offset, buffer_offset});
}

FAKE_EXPORT ssize_t cuFileRead(CUfileHandle_t fh, void* base, size_t nbytes, off_t file_offset,
                               off_t buffer_offset) {
  return fake::transfer("cuFileRead",
                        {false, static_cast<fake::Handle*>(fh), reinterpret_cast<uint64_t>(base),
                         nbytes, file_offset, buffer_offset});
}

#ifndef FAKE_WITHOUT_VECTORS
FAKE_EXPORT ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count,
                                 off_t file_offset, unsigned) {
  return fake::transfer_vector("cuFileWritev", true, fh, parts, count, file_offset);
}

FAKE_EXPORT ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count,
                                off_t file_offset, unsigned) {
  return fake::transfer_vector("cuFileReadv", false, fh, parts, count, file_offset);
}
#endif
