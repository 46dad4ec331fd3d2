#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/parallel.hpp"
#include "core/samples.hpp"
#include "engine/gather.hpp"
#include "engine/host_memory.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

// More do not copy faster, but take processors from training.
constexpr std::size_t kThreadsMax = 16;

std::size_t num_threads() noexcept { return std::min(kThreadsMax, usable_processors()); }

template <typename Value>
py::bytes to_bytes(const std::vector<Value>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
}

py::bytes sample(const py::object& rows, std::uint64_t seed) {
  const std::vector<SampledMemory> memory = copy_sampled(rows);
  std::vector<std::uint32_t> crcs;
  {
    const NoGil no_gil;
    crcs = sample_crcs(memory, seed, num_threads());
  }
  return to_bytes(crcs);
}

/// A row of the result of `sample_blocks`.
struct Block {
  std::uint64_t row;
  std::uint64_t offset;
  std::uint64_t nbytes;
};

py::bytes sample_blocks(const py::object& rows, std::uint64_t seed) {
  const std::vector<SampledMemory> memory = copy_sampled(rows);
  std::vector<Block> blocks;
  {
    const NoGil no_gil;
    for (std::size_t row = 0; row < memory.size(); ++row)
      for (std::uint64_t i = 0; i < num_samples(memory[row].nbytes); ++i) {
        const FileRange range = sample_of(memory[row].number, memory[row].nbytes, i, seed);
        blocks.push_back({row, range.begin, range.nbytes()});
      }
  }
  return to_bytes(blocks);
}

void gather_rows(const py::object& rows, const py::object& streams) {
  const std::vector<CopyRow> copies = copy_copy_rows(rows);
  const std::vector<ProducerStream> producers = copy_streams(streams);
  const NoGil no_gil;
  gather(copies, producers, num_threads());
}

}  // namespace

void bind_snapshot(py::module_& module) {
  module.def("sample_crcs", &sample, "rows"_a, "seed"_a,
             "CRC-32 of the samples of host memory, native-endian uint32.");
  module.def("sample_blocks", &sample_blocks, "rows"_a, "seed"_a,
             "Where the samples lie: rows of (row, offset, nbytes), uint64.");
  module.def("gather", &gather_rows, "rows"_a, py::kw_only(), "streams"_a = py::none(),
             "Copy rows to host memory with several threads.");
  py::class_<HostMemory>(module, "HostMemory", "Host memory whose pages are there.",
                         py::release_gil_before_calling_cpp_dtor())
      .def(py::init([](std::size_t nbytes, std::uint64_t device) {
             return std::make_unique<HostMemory>(nbytes, device, num_threads());
           }),
           "nbytes"_a, "device"_a = kHostDevice, py::call_guard<NoGil>())
      .def_property_readonly("address", &HostMemory::address, "Address of the first byte.")
      .def_property_readonly("nbytes", &HostMemory::nbytes, "Size in bytes.")
      .def_property_readonly("pin_refused", &HostMemory::pin_refused,
                             "Why it could not be page-locked; empty if it could.");
}

}  // namespace gdsckpt::bindings
