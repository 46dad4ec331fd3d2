// Modules whose kernels are bodies of the host, registered by name; errors; and what libcufile
// asks for without using it.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "cuda.hpp"

extern "C" {
/// What the host body of a kernel gets. `arguments` are copies of the launch's parameters.
struct FakeLaunch {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** arguments;
};
using FakeKernel = void (*)(const FakeLaunch*);
}

struct CUmod_st {
  CUcontext context = nullptr;
};

struct CUfunc_st {
  CUmodule module = nullptr;
  FakeKernel body = nullptr;
  std::vector<size_t> argument_bytes;
};

namespace fake {
namespace {

struct Kernels {
  std::mutex mutex;
  std::map<std::string, CUfunc_st> bodies;
  std::set<CUmodule> live;
};

Kernels& kernels() {
  static Kernels* const all = new Kernels;
  return *all;
}

CUresult load(CUmodule* module, const void* image) {
  if (image == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  auto* const made = new CUmod_st;
  made->context = current_context();
  const std::lock_guard<std::mutex> lock(kernels().mutex);
  kernels().live.insert(made);
  Control::get().add("live.modules", 1);
  *module = made;
  return CUDA_SUCCESS;
}

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
     "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* text_of(CUresult code) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& one) { return one.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace
}  // namespace fake

using fake::Control;
using fake::kernels;
using fake::Need;

/// Registers the body of a kernel, under the name that cuModuleGetFunction is asked for.
FAKE_EXPORT void fake_register_kernel(const char* name, FakeKernel body, int num_arguments,
                                      const size_t* argument_bytes) {
  const std::lock_guard<std::mutex> lock(kernels().mutex);
  CUfunc_st& function = kernels().bodies[name];
  function.body = body;
  function.argument_bytes.assign(argument_bytes, argument_bytes + num_arguments);
}

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_ENTER(cuModuleLoadData, Need::kContext);
  return fake::load(module, image);
}

FAKE_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned,
                                        CUjit_option*, void**) {
  FAKE_ENTER(cuModuleLoadDataEx, Need::kContext);
  return fake::load(module, image);
}

FAKE_EXPORT CUresult cuModuleUnload(CUmodule module) {
  FAKE_ENTER(cuModuleUnload, Need::kContext);
  const std::lock_guard<std::mutex> lock(kernels().mutex);
  if (kernels().live.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  Control::get().add("live.modules", -1);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FAKE_ENTER(cuModuleGetFunction, Need::kContext);
  const std::lock_guard<std::mutex> lock(kernels().mutex);
  if (kernels().live.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = kernels().bodies.find(name);
  if (found == kernels().bodies.end()) return CUDA_ERROR_NOT_FOUND;
  auto* const made = new CUfunc_st(found->second);
  made->module = module;
  *function = made;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared_bytes, CUstream handle,
                                    void** parameters, void**) {
  FAKE_ENTER(cuLaunchKernel, Need::kContext);
  const CUcontext context = fake::current_context();
  const CUstream stream = fake::stream_of(handle, context);
  if (stream == nullptr || function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // CUDA programming guide, "Stream and Event Behavior": a launch into the stream of another
  // device fails.
  if (fake::device_of_stream(stream) != context->device || function->module->context != context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (block_x * block_y * block_z > 1024 || grid_x == 0) return CUDA_ERROR_INVALID_VALUE;
  // The parameters are taken during the call.
  auto arguments = std::make_shared<std::vector<std::vector<char>>>();
  for (size_t i = 0; i < function->argument_bytes.size(); ++i) {
    const auto* const begin = static_cast<const char*>(parameters[i]);
    arguments->emplace_back(begin, begin + function->argument_bytes[i]);
  }
  const FakeLaunch launch{
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr};
  const int device = context->device;
  fake::submit(stream, {[function, arguments, launch, device] {
                          const fake::Met met = Control::get().run("kernel");
                          if (met.effect == fake::Effect::kFail) {
                            fake::lose_device(device, static_cast<CUresult>(met.value));
                            return;
                          }
                          std::vector<void*> pointers;
                          for (std::vector<char>& argument : *arguments)
                            pointers.push_back(argument.data());
                          FakeLaunch run = launch;
                          run.arguments = pointers.data();
                          function->body(&run);
                        },
                        {},
                        false});
  Control::get().add("launches", 1);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  const auto* const found = fake::text_of(error);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  const auto* const found = fake::text_of(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid*) {
  FAKE_ENTER(cuGetExportTable, Need::kNothing);
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

/// The newest variant that is here, as the cuda.h of the build names them.
FAKE_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t,
                                      CUdriverProcAddressQueryResult* status) {
  FAKE_ENTER(cuGetProcAddress, Need::kNothing);
  *function = nullptr;
  for (const char* const ending : {"_v4", "_v3", "_v2", ""}) {
    *function = dlsym(RTLD_DEFAULT, (std::string(symbol) + ending).c_str());
    Dl_info found;
    Dl_info own;
    if (*function != nullptr && dladdr(*function, &found) != 0 &&
        dladdr(reinterpret_cast<void*>(&fake_register_kernel), &own) != 0 &&
        found.dli_fbase == own.dli_fbase) {
      break;
    }
    *function = nullptr;
  }
  if (status != nullptr) {
    *status =
        *function == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

#define FAKE_UNSUPPORTED(function, ...)        \
  FAKE_EXPORT CUresult function(__VA_ARGS__) { \
    FAKE_ENTER(function, Need::kNothing);      \
    return CUDA_ERROR_NOT_SUPPORTED;           \
  }

FAKE_UNSUPPORTED(cuIpcCloseMemHandle, CUdeviceptr)
FAKE_UNSUPPORTED(cuIpcGetEventHandle, CUipcEventHandle*, CUevent)
FAKE_UNSUPPORTED(cuIpcGetMemHandle, CUipcMemHandle*, CUdeviceptr)
FAKE_UNSUPPORTED(cuIpcOpenEventHandle, CUevent*, CUipcEventHandle)
FAKE_UNSUPPORTED(cuIpcOpenMemHandle, CUdeviceptr*, CUipcMemHandle, unsigned)
FAKE_UNSUPPORTED(cuMemGetHandleForAddressRange, void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                 unsigned long long)
FAKE_UNSUPPORTED(cuStreamWaitValue32_v2, CUstream, CUdeviceptr, cuuint32_t, unsigned)
FAKE_UNSUPPORTED(cuStreamWriteValue32_v2, CUstream, CUdeviceptr, cuuint32_t, unsigned)
// Libcufile 1.15 looks for the names without a version.
#undef cuStreamWaitValue32
#undef cuStreamWriteValue32
FAKE_UNSUPPORTED(cuStreamWaitValue32, CUstream, CUdeviceptr, cuuint32_t, unsigned)
FAKE_UNSUPPORTED(cuStreamWriteValue32, CUstream, CUdeviceptr, cuuint32_t, unsigned)
