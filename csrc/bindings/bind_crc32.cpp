#include <cstring>
#include <string>

#include "bindings/bindings.hpp"
#include "core/crc32.hpp"
#include "core/error.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

const CrcKernel& find_kernel(const std::string& name) {
  std::string names;
  for (const CrcKernel& kernel : crc32_kernels()) {
    if (kernel.name == name) return kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel.name);
  }
  throw ConfigError("kernel '" + name + "' can't be used here; usable are: " + names + ".",
                    "kernel");
}

std::uint32_t crc32_of_buffer(const py::object& buffer, std::uint32_t value) {
  const BufferView view(buffer, PyBUF_SIMPLE);
  const NoGil no_gil;
  return crc32(value, view.data(), view.nbytes());
}

std::uint32_t crc32_of_memory(std::uint64_t address, std::uint64_t nbytes, std::uint32_t value) {
  if (nbytes == 0) return value;
  if (address == 0) throw ConfigError("address is 0; there are no bytes there.", "address");
  const NoGil no_gil;
  return crc32(value, reinterpret_cast<const std::uint8_t*>(address), nbytes);
}

std::uint32_t crc32_with(const std::string& kernel_name, const py::object& buffer,
                         std::uint32_t value) {
  const CrcKernel& kernel = find_kernel(kernel_name);
  const BufferView view(buffer, PyBUF_SIMPLE);
  const NoGil no_gil;
  return kernel.update(value, view.data(), view.nbytes());
}

std::uint32_t copy_crc32_with(const std::string& kernel_name, const py::object& dest,
                              const py::object& source) {
  const CrcKernel& kernel = find_kernel(kernel_name);
  const BufferView to(dest, PyBUF_WRITABLE);
  const BufferView from(source, PyBUF_SIMPLE);
  if (to.nbytes() != from.nbytes())
    throw ConfigError("dest has " + std::to_string(to.nbytes()) + " bytes and source " +
                          std::to_string(from.nbytes()) + "; they must have equally many.",
                      "dest");
  const NoGil no_gil;
  return kernel.copy_update(0, to.data(), from.data(), from.nbytes());
}

py::list kernel_names() {
  py::list names;
  for (const CrcKernel& kernel : crc32_kernels()) names.append(std::string(kernel.name));
  return names;
}

}  // namespace

void bind_crc32(py::module_& module) {
  module.def("crc32", &crc32_of_buffer, "buffer"_a, "value"_a = 0,
             "CRC-32 of a buffer, as zlib.crc32; the GIL is released.");
  module.def("crc32_at", &crc32_of_memory, "address"_a, "nbytes"_a, "value"_a = 0,
             "CRC-32 of memory by address.");
  module.def("crc32_combine", &crc32_combine, "crc_a"_a, "crc_b"_a, "nbytes_b"_a,
             "CRC-32 of A followed by B, from both CRCs and the number of bytes of B.");
  module.def(
      "crc32_zeros", [](std::uint64_t nbytes) { return crc32_zeros(0, nbytes); }, "nbytes"_a,
      "CRC-32 of a run of zero bytes, in logarithmic time.");
  module.def("crc32_kernels", &kernel_names, "Names of the kernels usable here, best first.");
  module.def("crc32_with", &crc32_with, "kernel"_a, "buffer"_a, "value"_a = 0,
             "CRC-32 by a named kernel.");
  module.def("copy_crc32_with", &copy_crc32_with, "kernel"_a, "dest"_a, "source"_a,
             "Copy source to dest and return the CRC-32, by a named kernel.");
}

}  // namespace gdsckpt::bindings
