#include "engine/cufile_io.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/align.hpp"
#include "core/error.hpp"
#include "engine/cufile_policy.hpp"

namespace gdsckpt {
namespace {

// A request continues at a multiple of this.
constexpr std::uint64_t kBlockBytes = 4096;

// 1, 2, 4 ... ms: a quarter of a second in all. A host copy of the request takes 1 to 2 ms, so
// there is little to gain by more patience.
constexpr int kMaxBusyRepeats = 8;
constexpr std::chrono::milliseconds kFirstPause{1};

// Our threads block signals; a file system that gives EINTR for ever must not hang a save.
constexpr int kMaxInterrupts = 1000;

/// Repeats a request that was interrupted, or that cuFile asks to try again.
template <typename Call>
CuFileResult repeat(Call&& call) {
  int num_interrupts = 0;
  int num_busy = 0;
  auto pause = kFirstPause;
  while (true) {
    const CuFileResult result = call();
    if (result.is_interrupted() && ++num_interrupts <= kMaxInterrupts) continue;
    if (!result.is_busy() || ++num_busy > kMaxBusyRepeats) return result;
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

}  // namespace

std::uint64_t CuFileIo::write(std::uint64_t base, std::uint64_t buffer_offset, FileRange range) {
  return move("cuFileWrite", range, [&](FileRange request) {
    return handle_.write(base, request.nbytes(), request.begin,
                         buffer_offset + (request.begin - range.begin));
  });
}

std::uint64_t CuFileIo::read(std::uint64_t base, std::uint64_t buffer_offset, FileRange range) {
  return move("cuFileRead", range, [&](FileRange request) {
    return handle_.read(base, request.nbytes(), request.begin,
                        buffer_offset + (request.begin - range.begin));
  });
}

template <typename Call>
std::uint64_t CuFileIo::move(const char* op, FileRange range, Call&& call) {
  const std::uint64_t limit = handle_.max_request_bytes() >= kBlockBytes
                                  ? std::min(handle_.max_request_bytes(), kCuFileRequestBytes)
                                  : kCuFileRequestBytes;
  const std::uint64_t most = align_down(limit, kBlockBytes);
  std::uint64_t position = range.begin;
  while (position < range.end) {
    const FileRange request{position, std::min(range.end, position + most)};
    const CuFileResult result = repeat([&] { return call(request); });
    if (result.is_refusal()) {
      refuse(op, request, result.code);
      return position;
    }
    if (!result.is_success())
      raise_cufile_result(result, {op, file_.path(), request.begin, request.nbytes()});
    if (result.nbytes > request.nbytes()) {  // then nothing of it can be believed
      refuse(op, request, CU_FILE_INTERNAL_ERROR);
      return position;
    }
    // The rest begins at a whole block, even if a few bytes go twice.
    const std::uint64_t moved =
        result.nbytes == request.nbytes() ? result.nbytes : align_down(result.nbytes, kBlockBytes);
    if (moved == 0)
      throw make_short_transfer_error({op, file_.path(), range.begin, range.nbytes()},
                                      position - range.begin + result.nbytes);
    position += moved;
  }
  return position;
}

void CuFileIo::refuse(const char* op, FileRange rest, int code) {
  std::string why;
  try {
    raise_cufile_result({0, code}, {op, file_.path(), rest.begin, rest.nbytes()});
  } catch (const Error& error) {
    why = error.message();
  }
  file_.refuse_cufile(std::move(why));
}

}  // namespace gdsckpt
