#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shim/cuda_abi.hpp"

// Without these there is no GPU path. Versioned names: the header's macros rename some.
#define GDSCKPT_CUDA_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuDriverGetVersion)           \
  X(cuGetErrorName)               \
  X(cuGetErrorString)             \
  X(cuDeviceGetCount)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetName)              \
  X(cuDeviceGetUuid_v2)           \
  X(cuDeviceGetPCIBusId)          \
  X(cuDeviceGetAttribute)         \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuDevicePrimaryCtxRelease_v2) \
  X(cuCtxPushCurrent_v2)          \
  X(cuCtxPopCurrent_v2)           \
  X(cuPointerGetAttribute)        \
  X(cuMemAlloc_v2)                \
  X(cuMemFree_v2)                 \
  X(cuMemHostRegister_v2)         \
  X(cuMemHostUnregister)          \
  X(cuMemcpyDtoHAsync_v2)         \
  X(cuMemcpyHtoDAsync_v2)         \
  X(cuStreamCreate)               \
  X(cuStreamDestroy_v2)           \
  X(cuStreamSynchronize)          \
  X(cuStreamWaitEvent)            \
  X(cuEventCreate)                \
  X(cuEventDestroy_v2)            \
  X(cuEventRecord)                \
  X(cuEventSynchronize)

namespace gdsckpt {

/// CUDA's driver API, loaded at run time. Any thread may call.
struct CudaDriver {
#define GDSCKPT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  GDSCKPT_CUDA_FUNCTIONS(GDSCKPT_CUDA_MEMBER)
#undef GDSCKPT_CUDA_MEMBER

  std::string path;  ///< the library
  int version = 0;   ///< 1000 * major + 10 * minor
  int num_devices = 0;

  /// Throws CudaError, with the driver's name and text for it, unless `code` is CUDA_SUCCESS.
  /// `op`: the function that gave it; `what`: what it was to do, for people.
  void check(CUresult code, const char* op, const std::string& what) const;
};

/// What became of loading the driver: `driver`, or the reason why there is none.
struct CudaState {
  const CudaDriver* driver = nullptr;  ///< lives for ever
  std::string reason;
};

/// Loads the driver and initialises it, once for the process; later calls give the same state. In a
/// forked child of a process that did, the state is a reason: CUDA cannot be used there.
///
/// `path`: the library to load instead of the system's; empty for that.
const CudaState& load_cuda(const std::string& path = "");

/// The driver; throws EngineUnavailableError with the reason where there is none.
const CudaDriver& require_cuda();

}  // namespace gdsckpt
