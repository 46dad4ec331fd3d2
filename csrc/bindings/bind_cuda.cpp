#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/fork_guard.hpp"
#include "engine/device.hpp"
#include "engine/device_memory.hpp"
#include "engine/device_streams.hpp"
#include "shim/cuda_driver.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

/// Why CUDA cannot be used; empty if it can.
std::string load(const std::string& path) {
  const NoGil no_gil;
  return load_cuda(path).reason;
}

py::list devices() {
  std::vector<DeviceFacts> found;
  {
    const NoGil no_gil;
    const CudaDriver& driver = require_cuda();
    for (int ordinal = 0; ordinal < driver.num_devices; ++ordinal)
      found.push_back(facts_of(driver, ordinal));
  }
  py::list rows;
  for (const DeviceFacts& facts : found)
    rows.append(py::dict("name"_a = facts.name, "pci_bus_id"_a = facts.pci_bus_id,
                         "uuid"_a = facts.uuid, "numa_node"_a = facts.numa_node,
                         "compute_capability"_a = facts.compute_capability,
                         "has_gpu_direct_rdma"_a = facts.has_gpu_direct_rdma,
                         "is_coherent_with_host"_a = facts.is_coherent_with_host));
  return rows;
}

void to_host(std::uint64_t dest, std::uint64_t device, std::uint64_t address, std::uint64_t nbytes,
             const py::object& streams) {
  const std::vector<ProducerStream> producers = copy_streams(streams);
  const NoGil no_gil;
  copy_to_host(reinterpret_cast<std::uint8_t*>(dest), device, address, nbytes, producers);
}

void to_device(std::uint64_t device, std::uint64_t address, std::uint64_t source,
               std::uint64_t nbytes, const py::object& streams) {
  const std::vector<ProducerStream> producers = copy_streams(streams);
  const NoGil no_gil;
  copy_to_device(device, address, reinterpret_cast<const std::uint8_t*>(source), nbytes, producers);
}

/// The ends of what is queued on streams now. A forked child leaves them alone: CUDA is the
/// parent's.
class StreamFence {
 public:
  StreamFence(const std::vector<Extent>& extents, const std::vector<ProducerStream>& producers)
      : streams_(std::make_unique<DeviceStreams>(extents, producers)) {}
  ~StreamFence() {
    if (fork_guard_.is_forked_child()) static_cast<void>(streams_.release());
  }
  StreamFence(const StreamFence&) = delete;
  StreamFence& operator=(const StreamFence&) = delete;

  void wait() const { streams_->wait_for_producers(); }

 private:
  const ForkGuard fork_guard_;
  std::unique_ptr<DeviceStreams> streams_;
};

std::unique_ptr<StreamFence> make_fence(const py::object& extents, const py::object& streams) {
  const std::vector<Extent> rows = copy_extents(extents);
  const std::vector<ProducerStream> producers = copy_streams(streams);
  const NoGil no_gil;
  return std::make_unique<StreamFence>(rows, producers);
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.def("cuda_load", &load, "path"_a = "",
             "Load CUDA's driver, once; why it cannot be used, or an empty text.");
  module.def("cuda_version", [] { return require_cuda().version; }, "1000 * major + 10 * minor.");
  module.def("cuda_devices", &devices, "Facts of each GPU that this process sees.");
  module.def("cuda_device_of", &device_of_address, "address"_a, py::call_guard<NoGil>(),
             "Number of the GPU that has an address.");
  module.def(
      "cuda_wait",
      [](const py::object& streams) {
        const std::vector<ProducerStream> producers = copy_streams(streams);
        const NoGil no_gil;
        wait_for_streams(producers);
      },
      "streams"_a, "Wait until what is queued on streams now is done.");
  module.def("cuda_copy_to_host", &to_host, "dest"_a, "device"_a, "address"_a, "nbytes"_a,
             py::kw_only(), "streams"_a = py::none(), "Copy device memory to host memory.");
  module.def("cuda_copy_to_device", &to_device, "device"_a, "address"_a, "source"_a, "nbytes"_a,
             py::kw_only(), "streams"_a = py::none(), "Copy host memory to device memory.");
  py::class_<StreamFence>(module, "StreamFence", "The ends of what is queued on streams.",
                          py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&make_fence), "extents"_a, "streams"_a)
      .def("wait", &StreamFence::wait, py::call_guard<NoGil>(), "Wait until it is done.");
  py::class_<DeviceMemory>(module, "DeviceMemory", "Device memory, freed with the object.",
                           py::release_gil_before_calling_cpp_dtor())
      .def(py::init<std::uint64_t, std::uint64_t>(), "device"_a, "nbytes"_a,
           py::call_guard<NoGil>())
      .def_property_readonly("address", &DeviceMemory::address, "Address on the device.")
      .def_property_readonly("nbytes", &DeviceMemory::nbytes, "Size in bytes.");
}

}  // namespace gdsckpt::bindings
