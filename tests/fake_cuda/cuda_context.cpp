// Devices, contexts, and the check that every call begins with.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "cuda.hpp"

namespace fake {
namespace {

struct Devices {
  std::mutex mutex;
  std::atomic<pid_t> pid{0};  // of the process that called cuInit
  CUctx_st primary[kMaxDevices];
  std::set<CUcontext> others;
  CUresult lost[kMaxDevices] = {};
  std::map<std::pair<int, int>, int> attributes;
};

Devices& devices() {
  static Devices* const all = new Devices;
  return *all;
}

std::vector<CUcontext>& stack() {
  static thread_local std::vector<CUcontext> contexts;
  return contexts;
}

int default_attribute(int attribute, int device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device + 1;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      return 1;
    default:
      return 0;
  }
}

CUresult check_device(CUdevice device) {
  return device >= 0 && device < num_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

void retire(CUcontext context) {
  context->is_live = false;
  Control::get().add("live.contexts", -1);
}

}  // namespace

int num_devices() { return static_cast<int>(Control::get().setting("devices", 2)); }

CUresult lost_code(int device) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  return devices().lost[device];
}

void lose_device(int device, CUresult code) {
  {
    const std::lock_guard<std::mutex> lock(devices().mutex);
    devices().lost[device] = code;
  }
  wake_streams();
}

void set_attribute(int device, int attribute, int value) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  devices().attributes[{device, attribute}] = value;
}

void restore_devices() {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  devices().attributes.clear();
  for (CUresult& code : devices().lost) code = CUDA_SUCCESS;
}

CUcontext current_context() { return stack().empty() ? nullptr : stack().back(); }

bool is_live(CUcontext context) {
  const std::lock_guard<std::mutex> lock(devices().mutex);
  const bool is_primary = context >= devices().primary && context < devices().primary + kMaxDevices;
  return (is_primary || devices().others.count(context) != 0) && context->is_live;
}

int device_of(CUcontext context) { return context->device; }

CUresult enter(const char* function, Need need) {
  const pid_t pid = devices().pid;
  // CUDA cannot be used in the child of a process that has initialised it. First of all, as locks
  // may be held there by threads that are not there.
  if (pid != 0 && pid != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  const Met met = Control::get().enter(function);
  if (met.effect == Effect::kFail) return static_cast<CUresult>(met.value);
  if (need == Need::kNothing) return CUDA_SUCCESS;
  if (pid == 0) return CUDA_ERROR_NOT_INITIALIZED;
  if (need == Need::kInit) return CUDA_SUCCESS;
  const CUcontext context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!is_live(context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return lost_code(context->device);
}

}  // namespace fake

using fake::Control;
using fake::devices;
using fake::Need;
using fake::stack;

FAKE_EXPORT CUresult cuInit(unsigned flags) {
  FAKE_ENTER(cuInit, Need::kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (fake::num_devices() == 0) return CUDA_ERROR_NO_DEVICE;
  devices().pid = getpid();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int* version) {
  FAKE_ENTER(cuDriverGetVersion, Need::kNothing);
  *version = static_cast<int>(Control::get().setting("driver_version", CUDA_VERSION));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTER(cuDeviceGetCount, Need::kInit);
  *count = fake::num_devices();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_ENTER(cuDeviceGet, Need::kInit);
  *device = ordinal;
  return fake::check_device(ordinal);
}

FAKE_EXPORT CUresult cuDeviceGetName(char* name, int len, CUdevice device) {
  FAKE_ENTER(cuDeviceGetName, Need::kInit);
  std::snprintf(name, static_cast<size_t>(len), "Stand-in GPU %d", device);
  return fake::check_device(device);
}

FAKE_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER(cuDeviceGetUuid, Need::kInit);
  std::memset(uuid->bytes, 0x10 + device, sizeof uuid->bytes);
  return fake::check_device(device);
}

FAKE_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int len, CUdevice device) {
  FAKE_ENTER(cuDeviceGetPCIBusId, Need::kInit);
  std::snprintf(text, static_cast<size_t>(len), "0000:%02X:00.0", device + 1);
  return fake::check_device(device);
}

FAKE_EXPORT CUresult cuDeviceTotalMem(size_t* nbytes, CUdevice device) {
  FAKE_ENTER(cuDeviceTotalMem, Need::kInit);
  *nbytes = static_cast<size_t>(Control::get().setting("memory_bytes", int64_t{8} << 30));
  return fake::check_device(device);
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                          CUdevice device) {
  FAKE_ENTER(cuDeviceGetAttribute, Need::kInit);
  if (const CUresult refused = fake::check_device(device)) return refused;
  const std::lock_guard<std::mutex> lock(devices().mutex);
  const auto found = devices().attributes.find({device, attribute});
  *value = found != devices().attributes.end() ? found->second
                                               : fake::default_attribute(attribute, device);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  FAKE_ENTER(cuDeviceCanAccessPeer, Need::kInit);
  *can = 0;
  if (const CUresult refused = fake::check_device(device)) return refused;
  return fake::check_device(peer);
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_ENTER(cuDevicePrimaryCtxRetain, Need::kInit);
  if (const CUresult refused = fake::check_device(device)) return refused;
  if (const CUresult lost = fake::lost_code(device)) return lost;
  const std::lock_guard<std::mutex> lock(devices().mutex);
  CUctx_st& primary = devices().primary[device];
  primary.device = device;
  primary.is_primary = true;
  if (primary.num_retained++ == 0) {
    primary.is_live = true;
    Control::get().add("live.contexts", 1);
  }
  Control::get().add("live.retained", 1);
  *context = &primary;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKE_ENTER(cuDevicePrimaryCtxRelease, Need::kInit);
  if (const CUresult refused = fake::check_device(device)) return refused;
  const std::lock_guard<std::mutex> lock(devices().mutex);
  CUctx_st& primary = devices().primary[device];
  if (primary.num_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Control::get().add("live.retained", -1);
  if (--primary.num_retained == 0) fake::retire(&primary);
  return devices().lost[device];
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  FAKE_ENTER(cuDevicePrimaryCtxGetState, Need::kInit);
  if (const CUresult refused = fake::check_device(device)) return refused;
  const std::lock_guard<std::mutex> lock(devices().mutex);
  *flags = devices().primary[device].flags;
  *active = devices().primary[device].is_live ? 1 : 0;
  return CUDA_SUCCESS;
}

static CUresult create_context(CUcontext* context, unsigned flags, CUdevice device) {
  if (const CUresult refused = fake::check_device(device)) return refused;
  if (const CUresult lost = fake::lost_code(device)) return lost;
  auto* const made = new CUctx_st;
  made->device = device;
  made->flags = flags;
  made->is_live = true;
  const std::lock_guard<std::mutex> lock(devices().mutex);
  devices().others.insert(made);
  Control::get().add("live.contexts", 1);
  stack().push_back(made);
  *context = made;
  return CUDA_SUCCESS;
}

#undef cuCtxCreate
// What libcufile asks for; cuda.h has only the newest by its name.
FAKE_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  FAKE_ENTER(cuCtxCreate, Need::kInit);
  return create_context(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags,
                                    CUdevice device) {
  FAKE_ENTER(cuCtxCreate, Need::kInit);
  return create_context(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxDestroy(CUcontext context) {
  FAKE_ENTER(cuCtxDestroy, Need::kInit);
  const std::lock_guard<std::mutex> lock(devices().mutex);
  if (devices().others.count(context) == 0 || !context->is_live) return CUDA_ERROR_INVALID_CONTEXT;
  fake::retire(context);
  if (fake::current_context() == context) stack().pop_back();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_ENTER(cuCtxGetCurrent, Need::kInit);
  *context = fake::current_context();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_ENTER(cuCtxSetCurrent, Need::kInit);
  if (context != nullptr && !fake::is_live(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack().empty()) stack().pop_back();
  if (context != nullptr) stack().push_back(context);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPushCurrent(CUcontext context) {
  FAKE_ENTER(cuCtxPushCurrent, Need::kInit);
  if (context == nullptr || !fake::is_live(context)) return CUDA_ERROR_INVALID_CONTEXT;
  stack().push_back(context);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) {
  FAKE_ENTER(cuCtxPopCurrent, Need::kInit);
  if (stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack().back();
  stack().pop_back();
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_ENTER(cuCtxGetDevice, Need::kInit);
  if (fake::current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = fake::current_context()->device;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER(cuCtxGetStreamPriorityRange, Need::kContext);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSynchronize() {
  FAKE_ENTER(cuCtxSynchronize, Need::kContext);
  return fake::finish_context(fake::current_context());
}

FAKE_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) {
  FAKE_ENTER(cuCtxEnablePeerAccess, Need::kContext);
  return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}
