#include "shim/cuda_driver.hpp"

#include <mutex>

#include "core/error.hpp"
#include "core/fork_guard.hpp"
#include "shim/dylib.hpp"

namespace gdsckpt {
namespace {

/// Fills the table; returns the name of the first function that is missing, or an empty text.
std::string find_functions(CudaDriver& driver, const Dylib& library) {
#define GDSCKPT_CUDA_FIND(name)                                                 \
  driver.name = reinterpret_cast<decltype(driver.name)>(library.symbol(#name)); \
  if (driver.name == nullptr) return #name;
  GDSCKPT_CUDA_FUNCTIONS(GDSCKPT_CUDA_FIND)
#undef GDSCKPT_CUDA_FIND
  return "";
}

std::string describe(const CudaDriver& driver, CUresult code) {
  const char* name = nullptr;
  const char* text = nullptr;
  const bool is_known = driver.cuGetErrorName(code, &name) == CUDA_SUCCESS && name != nullptr &&
                        driver.cuGetErrorString(code, &text) == CUDA_SUCCESS && text != nullptr;
  const std::string number = "CUDA error " + std::to_string(static_cast<int>(code));
  return is_known ? std::string(text) + " (" + name + ", " + number + ")" : number;
}

/// Why the driver cannot be used; empty if it can.
std::string initialise(CudaDriver& driver) {
  if (const CUresult code = driver.cuInit(0); code != CUDA_SUCCESS)
    return "cuInit of " + driver.path + " failed: " + describe(driver, code);
  if (const CUresult code = driver.cuDriverGetVersion(&driver.version); code != CUDA_SUCCESS)
    return "cuDriverGetVersion failed: " + describe(driver, code);
  if (const CUresult code = driver.cuDeviceGetCount(&driver.num_devices); code != CUDA_SUCCESS)
    return "cuDeviceGetCount failed: " + describe(driver, code);
  if (driver.num_devices == 0) return "the CUDA driver " + driver.path + " sees no device";
  return "";
}

CudaState load(const std::string& path) {
  const Dylib library =
      Dylib::open(path.empty() ? std::vector<std::string>{"libcuda.so.1"} : std::vector{path});
  if (!library.is_loaded()) return {nullptr, "no CUDA driver: " + library.reason()};
  static CudaDriver driver;
  driver.path = library.path();
  const std::string missing = find_functions(driver, library);
  if (!missing.empty())
    return {nullptr, "the CUDA driver " + driver.path + " is too old: it has no " + missing};
  std::string reason = initialise(driver);
  if (!reason.empty()) return {nullptr, std::move(reason)};
  return {&driver, ""};
}

}  // namespace

void CudaDriver::check(CUresult code, const char* op, const std::string& what) const {
  if (code == CUDA_SUCCESS) return;
  throw CudaError(what + " failed: " + describe(*this, code) +
                      ". Look at 'nvidia-smi' and the kernel log; a device that reports errors "
                      "must be reset, and its processes started again.",
                  op, static_cast<int>(code));
}

const CudaState& load_cuda(const std::string& path) {
  static const ForkGuard owner;
  static const CudaState forked{nullptr,
                                "CUDA was initialised before this process was forked; start "
                                "worker processes with spawn, or before the first use of a GPU"};
  if (owner.is_forked_child()) return forked;
  static const CudaState state = load(path);
  return state;
}

const CudaDriver& require_cuda() {
  const CudaState& state = load_cuda();
  if (state.driver == nullptr)
    throw EngineUnavailableError("the GPU can't be used: " + state.reason +
                                     ". Install NVIDIA's driver, or move the tensors to the host.",
                                 "pinned", {state.reason});
  return *state.driver;
}

}  // namespace gdsckpt
