// Events, and host functions in streams.
#include "cuda.hpp"

struct CUevent_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<fake::Completion> last;  // none before the first record
};

namespace fake {
namespace {

// Handles are never freed, so that a stale one is known for what it is.
struct Events {
  std::mutex mutex;
  std::set<CUevent> live;
};

Events& events() {
  static Events* const all = new Events;
  return *all;
}

bool is_live_event(CUevent event) {
  const std::lock_guard<std::mutex> lock(events().mutex);
  return events().live.count(event) != 0;
}

std::shared_ptr<Completion> last_record(CUevent event) {
  const std::lock_guard<std::mutex> lock(event->mutex);
  return event->last;
}

void wait_for(Completion& completion) {
  std::unique_lock<std::mutex> lock(completion.mutex);
  completion.changed.wait(lock, [&] { return completion.is_done; });
}

bool is_done(Completion& completion) {
  const std::lock_guard<std::mutex> lock(completion.mutex);
  return completion.is_done;
}

void complete(Completion& completion) {
  const std::lock_guard<std::mutex> lock(completion.mutex);
  completion.is_done = true;
  completion.when = std::chrono::steady_clock::now();
  completion.changed.notify_all();
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  if (!is_live_event(start) || !is_live_event(end)) return CUDA_ERROR_INVALID_HANDLE;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto from = last_record(start);
  const auto to = last_record(end);
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_done(*from) || !is_done(*to)) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake

using fake::Control;
using fake::events;
using fake::Need;

FAKE_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FAKE_ENTER(cuEventCreate, Need::kContext);
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto* const made = new CUevent_st;
  made->context = fake::current_context();
  made->flags = flags;
  const std::lock_guard<std::mutex> lock(events().mutex);
  events().live.insert(made);
  Control::get().add("live.events", 1);
  *event = made;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventDestroy(CUevent event) {
  FAKE_ENTER(cuEventDestroy, Need::kInit);
  {
    const std::lock_guard<std::mutex> lock(events().mutex);
    if (events().live.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  Control::get().add("live.events", -1);
  return fake::lost_code(event->context->device);
}

FAKE_EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
  FAKE_ENTER(cuEventRecord, Need::kContext);
  const CUstream stream = fake::stream_of(handle, fake::current_context());
  if (stream == nullptr || !fake::is_live_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  // CUDA programming guide, "Stream and Event Behavior": both must be of one device.
  if (fake::device_of_stream(stream) != event->context->device) return CUDA_ERROR_INVALID_HANDLE;
  auto completion = std::make_shared<fake::Completion>();
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->last = completion;
  }
  fake::submit(stream, {[completion] { fake::complete(*completion); }, {}, true});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
}

FAKE_EXPORT CUresult cuEventQuery(CUevent event) {
  FAKE_ENTER(cuEventQuery, Need::kContext);
  if (!fake::is_live_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult lost = fake::lost_code(event->context->device)) return lost;
  const auto last = fake::last_record(event);
  return last == nullptr || fake::is_done(*last) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE_EXPORT CUresult cuEventSynchronize(CUevent event) {
  FAKE_ENTER(cuEventSynchronize, Need::kContext);
  if (!fake::is_live_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  const auto last = fake::last_record(event);
  if (last != nullptr) fake::wait_for(*last);
  return fake::lost_code(event->context->device);
}

FAKE_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  FAKE_ENTER(cuEventElapsedTime, Need::kContext);
  return fake::elapsed(milliseconds, start, end);
}

#undef cuEventElapsedTime
// The symbol of CUDA 12, which libcufile asks for.
FAKE_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

FAKE_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  FAKE_ENTER(cuStreamWaitEvent, Need::kContext);
  const CUstream stream = fake::stream_of(handle, fake::current_context());
  if (stream == nullptr || !fake::is_live_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  // The record as it is now: a later one is not waited for.
  const auto last = fake::last_record(event);
  if (last == nullptr) return CUDA_SUCCESS;
  fake::submit(stream, {[last] { fake::wait_for(*last); }, {}, true});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  FAKE_ENTER(cuLaunchHostFunc, Need::kContext);
  const CUstream stream = fake::stream_of(handle, fake::current_context());
  if (stream == nullptr || function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  fake::submit(stream, {[function, data] { function(data); }, {}, false});
  return CUDA_SUCCESS;
}
