// Attributes of pointers.
#include <cstring>

#include "cuda.hpp"

namespace fake {
namespace {

template <typename T>
CUresult give(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult device_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address,
                          const Allocation& found) {
  const bool is_legacy = found.kind == MemoryKind::kDevice;
  const bool is_managed = found.kind == MemoryKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Memory of cuMemMap and of pools belongs to no context.
      return give(data, is_legacy || is_managed ? found.context : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!is_managed) return CUDA_ERROR_INVALID_VALUE;
      return give(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(data, static_cast<unsigned long long>(found.id));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(data, int{0});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(data, static_cast<int>(is_managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(data, found.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(data, static_cast<int>(is_legacy));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return give(data, found.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return give(data, found.nbytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(data, int{1});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give(data,
                  static_cast<unsigned long long>(found.kind == MemoryKind::kMapped
                                                      ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                      : CU_MEM_HANDLE_TYPE_NONE));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give(data, static_cast<int>(is_legacy));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(data, found.kind == MemoryKind::kPool
                            ? reinterpret_cast<CUmemoryPool>(uintptr_t{0x1000})
                            : nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult host_attribute(void* data, CUpointer_attribute attribute, void* address,
                        const HostRange& range) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(data, range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(data, CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return give(data, address);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give(data, int{0});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(data, range.context == nullptr ? 0 : device_of(range.context));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(data, range.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(data, range.nbytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(data, int{1});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult attribute_of(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto found = allocation_at(address);
  if (found != nullptr) return device_attribute(data, attribute, address, *found);
  HostRange range;
  void* const host = reinterpret_cast<void*>(address);
  if (host_range_at(host, range)) return host_attribute(data, attribute, host, range);
  return CUDA_ERROR_INVALID_VALUE;
}

size_t bytes_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return 8;
    default:
      return 4;
  }
}

}  // namespace
}  // namespace fake

using fake::Need;

FAKE_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  FAKE_ENTER(cuPointerGetAttribute, Need::kInit);
  return fake::attribute_of(data, attribute, address);
}

// Never fails for a pointer that CUDA does not know: it then gives zeros, and -2 for the device.
FAKE_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                            void** data, CUdeviceptr address) {
  FAKE_ENTER(cuPointerGetAttributes, Need::kInit);
  for (unsigned i = 0; i < count; ++i) {
    if (fake::attribute_of(data[i], attributes[i], address) == CUDA_SUCCESS) continue;
    std::memset(data[i], 0, fake::bytes_of(attributes[i]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) fake::give(data[i], int{-2});
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuPointerSetAttribute(const void*, CUpointer_attribute attribute,
                                           CUdeviceptr address) {
  FAKE_ENTER(cuPointerSetAttribute, Need::kInit);
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  return fake::allocation_at(address) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
