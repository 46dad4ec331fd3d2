// Copies and fills. They run when their stream comes to them, and look at the bytes only then.
#include <algorithm>
#include <cstring>

#include "cuda.hpp"

namespace fake {
namespace {

enum class Direction { kToHost, kToDevice, kOnDevice, kOnHost };

struct Copy {
  Direction direction;
  uintptr_t to;
  uintptr_t from;
  size_t nbytes;
};

const char* name_of(Direction direction) {
  switch (direction) {
    case Direction::kToHost:
      return "dtoh";
    case Direction::kToDevice:
      return "htod";
    case Direction::kOnDevice:
      return "dtod";
    default:
      return "htoh";
  }
}

/// A device has one copy engine for each direction: its copies come one after another.
std::mutex& copy_engine(int device, Direction direction) {
  static std::mutex* const engines = new std::mutex[kMaxDevices * 4];
  return engines[device * 4 + static_cast<int>(direction)];
}

bool is_device(uintptr_t address, size_t nbytes) {
  return allocation_of(address, nbytes) != nullptr;
}

/// The memory of one side as the host sees it; null if it is gone.
char* view_of(uintptr_t address, size_t nbytes, bool is_on_device) {
  if (is_on_device) return shadow_of(address, nbytes);
  return reinterpret_cast<char*>(address);
}

void move_bytes(const Copy& copy, int device) {
  const std::lock_guard<std::mutex> engine(copy_engine(device, copy.direction));
  const Met met = Control::get().run(name_of(copy.direction));
  if (met.effect == Effect::kFail) {
    lose_device(device, static_cast<CUresult>(met.value));
    return;
  }
  const bool is_to_device =
      copy.direction == Direction::kToDevice || copy.direction == Direction::kOnDevice;
  const bool is_from_device =
      copy.direction == Direction::kToHost || copy.direction == Direction::kOnDevice;
  char* const to = view_of(copy.to, copy.nbytes, is_to_device);
  const char* const from = view_of(copy.from, copy.nbytes, is_from_device);
  if (to == nullptr || from == nullptr) {
    Control::get().add("copies_of_freed_memory", 1);
    lose_device(device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  std::memcpy(to, from, copy.nbytes);
  if (met.effect == Effect::kFlip && copy.nbytes > 0) {
    const auto bit = static_cast<size_t>(met.value) % (copy.nbytes * 8);
    to[bit / 8] = static_cast<char>(to[bit / 8] ^ (1 << bit % 8));
  }
  const std::string name = name_of(copy.direction);
  Control::get().add("copies." + name, 1);
  Control::get().add("bytes." + name, static_cast<int64_t>(copy.nbytes));
}

/// A page-locked host range that was unlocked before its copy was over is an error of the caller.
void move_pinned(const Copy& copy, int device) {
  const bool is_to_host = copy.direction == Direction::kToHost;
  const auto* const host = reinterpret_cast<const void*>(is_to_host ? copy.to : copy.from);
  if (!is_pinned(host, copy.nbytes)) {
    Control::get().add("copies_of_unregistered_memory", 1);
    lose_device(device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  move_bytes(copy, device);
}

CUresult check(const Copy& copy) {
  const bool is_to_device =
      copy.direction == Direction::kToDevice || copy.direction == Direction::kOnDevice;
  const bool is_from_device =
      copy.direction == Direction::kToHost || copy.direction == Direction::kOnDevice;
  const bool is_known = (!is_to_device || is_device(copy.to, copy.nbytes)) &&
                        (!is_from_device || is_device(copy.from, copy.nbytes));
  const bool is_real = copy.to != 0 && copy.from != 0;
  return is_known && is_real ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult stream_for(CUstream handle, CUstream* stream) {
  *stream = stream_of(handle, current_context());
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // CUDA itself takes a copy into another device's stream; `set strict=0` does, too. A thread that
  // did not make the right context current is what the tests look for.
  const bool is_strict = Control::get().setting("strict", 1) != 0;
  if (is_strict && device_of_stream(*stream) != current_context()->device) {
    Control::get().add("copies_in_wrong_context", 1);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}

CUresult copy_async(const Copy& copy, CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult refused = stream_for(handle, &stream)) return refused;
  if (copy.nbytes == 0) return CUDA_SUCCESS;
  if (const CUresult refused = check(copy)) return refused;
  const int device = device_of_stream(stream);
  const bool is_to_host = copy.direction == Direction::kToHost;
  const auto* const host = reinterpret_cast<const void*>(is_to_host ? copy.to : copy.from);
  const bool has_host = is_to_host || copy.direction == Direction::kToDevice;
  if (!has_host) {
    submit(stream, {[copy, device] { move_bytes(copy, device); }, {}, false});
    return CUDA_SUCCESS;
  }
  if (is_pinned(host, copy.nbytes)) {
    submit(stream, {[copy, device] { move_pinned(copy, device); }, {}, false});
    return CUDA_SUCCESS;
  }
  // CUDA driver API, "API synchronization behavior": pageable memory is staged. To the host the
  // call returns when all is done; to the device the bytes are taken during the call.
  Control::get().add("pageable_copies", 1);
  if (is_to_host) {
    return finish(stream,
                  submit(stream, {[copy, device] { move_bytes(copy, device); }, {}, false}));
  }
  const auto* const begin = static_cast<const char*>(host);
  const auto staged = std::make_shared<std::vector<char>>(begin, begin + copy.nbytes);
  submit(stream, {[copy, device, staged] {
                    Copy from_stage = copy;
                    from_stage.from = reinterpret_cast<uintptr_t>(staged->data());
                    move_bytes(from_stage, device);
                  },
                  {},
                  false});
  return CUDA_SUCCESS;
}

/// A copy that the caller waits for, in the default stream.
CUresult copy_now(const Copy& copy) {
  const CUstream stream = stream_of(nullptr, current_context());
  if (copy.nbytes == 0) return CUDA_SUCCESS;
  if (const CUresult refused = check(copy)) return refused;
  const int device = device_of_stream(stream);
  return finish(stream, submit(stream, {[copy, device] { move_bytes(copy, device); }, {}, false}));
}

Copy unified(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  const bool is_to_device = allocation_at(to) != nullptr;
  const bool is_from_device = allocation_at(from) != nullptr;
  Direction direction = Direction::kOnHost;
  if (is_to_device) direction = is_from_device ? Direction::kOnDevice : Direction::kToDevice;
  if (!is_to_device && is_from_device) direction = Direction::kToHost;
  return {direction, to, from, nbytes};
}

template <typename T>
CUresult fill(CUdeviceptr to, T value, size_t count, CUstream handle, bool waits) {
  CUstream stream = nullptr;
  if (const CUresult refused = stream_for(handle, &stream)) return refused;
  if (count == 0) return CUDA_SUCCESS;
  if (!is_device(to, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t number = submit(stream, {[to, value, count] {
                                            char* const view = shadow_of(to, count * sizeof(T));
                                            if (view == nullptr) return;
                                            Control::get().run("memset");
                                            auto* const items = reinterpret_cast<T*>(view);
                                            std::fill(items, items + count, value);
                                          },
                                          {},
                                          false});
  return waits ? finish(stream, number) : CUDA_SUCCESS;
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace
}  // namespace fake

using fake::Direction;
using fake::Need;
using fake::number;

FAKE_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t nbytes, CUstream stream) {
  FAKE_ENTER(cuMemcpyDtoHAsync, Need::kContext);
  return fake::copy_async({Direction::kToHost, number(to), from, nbytes}, stream);
}

FAKE_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t nbytes,
                                       CUstream stream) {
  FAKE_ENTER(cuMemcpyHtoDAsync, Need::kContext);
  return fake::copy_async({Direction::kToDevice, to, number(from), nbytes}, stream);
}

FAKE_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes,
                                       CUstream stream) {
  FAKE_ENTER(cuMemcpyDtoDAsync, Need::kContext);
  return fake::copy_async({Direction::kOnDevice, to, from, nbytes}, stream);
}

FAKE_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes,
                                   CUstream stream) {
  FAKE_ENTER(cuMemcpyAsync, Need::kContext);
  return fake::copy_async(fake::unified(to, from, nbytes), stream);
}

#if CUDA_VERSION >= 13000  // before, it had one parameter more
FAKE_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* nbytes,
                                        size_t count, CUmemcpyAttributes*, size_t*, size_t,
                                        CUstream stream) {
  FAKE_ENTER(cuMemcpyBatchAsync, Need::kContext);
  if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult refused = fake::copy_async(fake::unified(to[i], from[i], nbytes[i]), stream);
    if (refused != CUDA_SUCCESS) return refused;
  }
  return CUDA_SUCCESS;
}
#endif

FAKE_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                       size_t nbytes, CUstream stream) {
  FAKE_ENTER(cuMemcpyPeerAsync, Need::kContext);
  return fake::copy_async({Direction::kOnDevice, to, from, nbytes}, stream);
}

FAKE_EXPORT CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t nbytes) {
  FAKE_ENTER(cuMemcpyDtoH, Need::kContext);
  return fake::copy_now({Direction::kToHost, number(to), from, nbytes});
}

FAKE_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t nbytes) {
  FAKE_ENTER(cuMemcpyHtoD, Need::kContext);
  return fake::copy_now({Direction::kToDevice, to, number(from), nbytes});
}

FAKE_EXPORT CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  FAKE_ENTER(cuMemcpyDtoD, Need::kContext);
  return fake::copy_now({Direction::kOnDevice, to, from, nbytes});
}

FAKE_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  FAKE_ENTER(cuMemcpy, Need::kContext);
  return fake::copy_now(fake::unified(to, from, nbytes));
}

FAKE_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                  size_t nbytes) {
  FAKE_ENTER(cuMemcpyPeer, Need::kContext);
  return fake::copy_now({Direction::kOnDevice, to, from, nbytes});
}

FAKE_EXPORT CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  FAKE_ENTER(cuMemsetD8, Need::kContext);
  return fake::fill(to, value, count, nullptr, true);
}

FAKE_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                     CUstream stream) {
  FAKE_ENTER(cuMemsetD8Async, Need::kContext);
  return fake::fill(to, value, count, stream, false);
}

FAKE_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                                      CUstream stream) {
  FAKE_ENTER(cuMemsetD32Async, Need::kContext);
  return fake::fill(to, value, count, stream, false);
}
