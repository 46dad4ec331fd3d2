#include "engine/device.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

std::string name_of(std::uint64_t ordinal) { return "cuda:" + std::to_string(ordinal); }

/// 0 where the driver does not know the attribute: older ones lack some.
int attribute_of(const CudaDriver& driver, CUdevice device, CUdevice_attribute attribute,
                 int otherwise) noexcept {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : otherwise;
}

CUdevice device_of(const CudaDriver& driver, int ordinal) {
  CUdevice device{};
  driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet",
               "looking up cuda:" + std::to_string(ordinal));
  return device;
}

std::string bus_id_of(const CudaDriver& driver, CUdevice device) {
  std::array<char, 32> text{};
  const CUresult code =
      driver.cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device);
  return code == CUDA_SUCCESS ? std::string(text.data()) : std::string();
}

/// On Grace the driver tells; elsewhere the kernel knows where the PCI device hangs.
int numa_node_of(const CudaDriver& driver, CUdevice device) {
  const int host = attribute_of(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
  if (host >= 0) return host;
  std::string id = bus_id_of(driver, device);
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::ifstream file("/sys/bus/pci/devices/" + id + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

std::string hex(const CUuuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : uuid.bytes) {
    text += kDigits[(static_cast<unsigned char>(byte)) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

}  // namespace

const Device& Device::get(std::uint64_t ordinal) {
  const CudaDriver& driver = require_cuda();
  if (ordinal >= static_cast<std::uint64_t>(driver.num_devices))
    throw ConfigError("an extent is on " + name_of(ordinal) + ", but this process sees " +
                          std::to_string(driver.num_devices) + " CUDA devices.",
                      "extents");
  static std::mutex mutex;
  static auto* const devices = new std::map<std::uint64_t, std::unique_ptr<const Device>>();
  const std::lock_guard lock(mutex);
  auto& device = (*devices)[ordinal];
  if (device == nullptr) device.reset(new Device(driver, ordinal));
  return *device;
}

Device::Device(const CudaDriver& driver, std::uint64_t ordinal)
    : driver_(&driver), ordinal_(ordinal) {
  const CUdevice device = device_of(driver, static_cast<int>(ordinal));
  driver.check(driver.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain",
               "opening " + name_of(ordinal));
  numa_node_ = numa_node_of(driver, device);
}

DeviceFacts facts_of(const CudaDriver& driver, int ordinal) {
  const CUdevice device = device_of(driver, ordinal);
  DeviceFacts facts;
  std::array<char, 256> name{};
  driver.check(driver.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device),
               "cuDeviceGetName", "naming cuda:" + std::to_string(ordinal));
  facts.name = name.data();
  CUuuid uuid{};
  if (driver.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS) facts.uuid = hex(uuid);
  facts.pci_bus_id = bus_id_of(driver, device);
  facts.numa_node = numa_node_of(driver, device);
  const auto attribute = [&](CUdevice_attribute which) {
    return attribute_of(driver, device, which, 0);
  };
  facts.compute_capability = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                             attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts.has_gpu_direct_rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0;
  facts.is_coherent_with_host =
      attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) != 0;
  return facts;
}

std::uint64_t device_of_address(std::uint64_t address) {
  const CudaDriver& driver = require_cuda();
  int ordinal = -1;
  driver.check(driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
               "cuPointerGetAttribute",
               "looking up the device of address " + std::to_string(address));
  return static_cast<std::uint64_t>(ordinal);
}

ContextScope::ContextScope(const Device& device) : device_(device) {
  const CudaDriver& driver = device.driver();
  driver.check(driver.cuCtxPushCurrent_v2(device.context()), "cuCtxPushCurrent",
               "using " + name_of(device.ordinal()));
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  // What was pushed can be popped, unless the driver is being taken down.
  static_cast<void>(device_.driver().cuCtxPopCurrent_v2(&popped));
}

}  // namespace gdsckpt
