// Streams: each has a thread of its own, which is late on purpose or held until it is let go.
#include <algorithm>
#include <thread>

#include "cuda.hpp"

struct CUstream_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<fake::Work> queue;
  uint64_t num_submitted = 0;
  uint64_t num_done = 0;
  bool is_held = false;
  int64_t num_steps = 0;
  bool is_closing = false;
};

namespace fake {
namespace {

// Handles are never freed, so that a stale one is known for what it is.
struct Streams {
  std::mutex mutex;
  std::set<CUstream> live;
};

Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

void wait_done(CUstream stream, uint64_t number) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->changed.wait(lock, [&] { return stream->num_done >= number; });
}

bool next_work(CUstream stream, Work& work) {
  const int device = stream->context->device;
  std::unique_lock<std::mutex> lock(stream->mutex);
  stream->changed.wait(lock, [&] {
    if (stream->queue.empty()) return stream->is_closing;
    return !stream->is_held || stream->num_steps > 0 || lost_code(device) != CUDA_SUCCESS;
  });
  if (stream->queue.empty()) return false;
  if (stream->is_held && stream->num_steps > 0) --stream->num_steps;
  work = std::move(stream->queue.front());
  stream->queue.pop_front();
  return true;
}

void run_stream(CUstream stream) {
  const int device = stream->context->device;
  Work work;
  while (next_work(stream, work)) {
    for (const auto& [other, number] : work.after) wait_done(other, number);
    const int64_t late_us = Control::get().random(Control::get().setting("late_us", 200));
    if (late_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(late_us));
    if (work.is_marker || lost_code(device) == CUDA_SUCCESS) work.run();
    work = Work{};
    const std::lock_guard<std::mutex> lock(stream->mutex);
    ++stream->num_done;
    stream->changed.notify_all();
  }
}

CUstream start_stream(CUcontext context, unsigned flags, int priority) {
  auto* const made = new CUstream_st;
  made->context = context;
  made->flags = flags;
  made->priority = priority;
  made->is_held = Control::get().setting("hold_new", 0) != 0;
  std::thread(run_stream, made).detach();
  return made;
}

bool is_blocking(CUstream stream) { return (stream->flags & CU_STREAM_NON_BLOCKING) == 0; }

/// What the legacy default stream's rules put before new work; with the registry locked.
void order_by_default_stream(CUstream stream, Work& work) {
  const CUcontext context = stream->context;
  if (stream == context->legacy) {
    for (const CUstream other : context->streams) {
      if (is_blocking(other)) work.after.emplace_back(other, last_number(other));
    }
  } else if (is_blocking(stream) && context->legacy != nullptr) {
    work.after.emplace_back(context->legacy, last_number(context->legacy));
  }
}

CUresult create(CUstream* stream, unsigned flags, int priority) {
  if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUcontext context = current_context();
  *stream = start_stream(context, flags, std::clamp(priority, -5, 0));
  const std::lock_guard<std::mutex> lock(streams().mutex);
  streams().live.insert(*stream);
  context->streams.insert(*stream);
  Control::get().add("live.streams", 1);
  return CUDA_SUCCESS;
}

std::vector<CUstream> all_streams() {
  const std::lock_guard<std::mutex> lock(streams().mutex);
  return {streams().live.begin(), streams().live.end()};
}

}  // namespace

CUstream stream_of(CUstream handle, CUcontext context) {
  const std::lock_guard<std::mutex> lock(streams().mutex);
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    return streams().live.count(handle) == 0 ? nullptr : handle;
  }
  if (context == nullptr) return nullptr;
  CUstream& made = handle == CU_STREAM_PER_THREAD ? context->per_thread : context->legacy;
  if (made == nullptr) {
    made = start_stream(context, 0, 0);
    streams().live.insert(made);
    if (handle == CU_STREAM_PER_THREAD) context->streams.insert(made);
  }
  return made;
}

uint64_t submit(CUstream stream, Work work) {
  // One lock over both, so that what comes later in another stream finds this work's number.
  const std::lock_guard<std::mutex> registry(streams().mutex);
  order_by_default_stream(stream, work);
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->queue.push_back(std::move(work));
  stream->changed.notify_all();
  return ++stream->num_submitted;
}

CUresult finish(CUstream stream, uint64_t number) {
  wait_done(stream, number);
  return lost_code(stream->context->device);
}

uint64_t last_number(CUstream stream) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->num_submitted;
}

CUresult finish_context(CUcontext context) {
  for (const CUstream stream : all_streams()) {
    if (stream->context == context) wait_done(stream, last_number(stream));
  }
  return lost_code(context->device);
}

int device_of_stream(CUstream stream) { return stream->context->device; }

void wake_streams() {
  for (const CUstream stream : all_streams()) {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    stream->changed.notify_all();
  }
}

static void hold_stream(CUstream stream, const Command& command) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  if (command.verb == "step") {
    stream->num_steps += command.value("count", 1);
  } else {
    stream->is_held = command.verb == "hold";
    stream->num_steps = 0;
  }
  stream->changed.notify_all();
}

bool control_stream(const Command& command) {
  const int64_t device = command.value("device", -1);
  if (command.values.count("stream") == 0) {
    for (const CUstream stream : all_streams()) {
      if (device < 0 || stream->context->device == device) hold_stream(stream, command);
    }
    return command.verb != "step";
  }
  auto* handle = reinterpret_cast<CUstream>(command.values.at("stream"));
  const int ordinal = device < 0 ? 0 : static_cast<int>(device);
  CUcontext context = nullptr;
  if (handle == nullptr && cuDevicePrimaryCtxRetain(&context, ordinal) == CUDA_SUCCESS) {
    handle = stream_of(nullptr, context);
    cuDevicePrimaryCtxRelease(ordinal);
  }
  const CUstream stream = stream_of(handle, nullptr);
  if (stream == nullptr) return false;
  hold_stream(stream, command);
  return true;
}

}  // namespace fake

using fake::Control;
using fake::Need;
using fake::streams;

static CUstream current_stream(CUstream handle) {
  return fake::stream_of(handle, fake::current_context());
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  FAKE_ENTER(cuStreamCreate, Need::kContext);
  return fake::create(stream, flags, 0);
}

FAKE_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  FAKE_ENTER(cuStreamCreateWithPriority, Need::kContext);
  return fake::create(stream, flags, priority);
}

FAKE_EXPORT CUresult cuStreamDestroy(CUstream stream) {
  FAKE_ENTER(cuStreamDestroy, Need::kInit);
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    if (streams().live.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    stream->context->streams.erase(stream);
  }
  Control::get().add("live.streams", -1);
  // Returns at once; the work submitted before is still done.
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->is_closing = true;
  stream->changed.notify_all();
  return fake::lost_code(stream->context->device);
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_ENTER(cuStreamSynchronize, Need::kContext);
  const CUstream stream = current_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return fake::finish(stream, fake::last_number(stream));
}

FAKE_EXPORT CUresult cuStreamQuery(CUstream handle) {
  FAKE_ENTER(cuStreamQuery, Need::kContext);
  const CUstream stream = current_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult lost = fake::lost_code(stream->context->device)) return lost;
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return stream->num_done == stream->num_submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKE_ENTER(cuStreamGetCtx, Need::kInit);
  const CUstream stream = current_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = stream->context;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  FAKE_ENTER(cuStreamGetFlags, Need::kContext);
  const CUstream stream = current_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  FAKE_ENTER(cuStreamGetPriority, Need::kContext);
  const CUstream stream = current_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  FAKE_ENTER(cuStreamIsCapturing, Need::kContext);
  if (current_stream(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
