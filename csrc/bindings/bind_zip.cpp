#include "bindings/bindings.hpp"
#include "core/zip_headers.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

py::bytes local_headers(const std::string& prefix, const py::object& numbers,
                        const py::object& nbytes) {
  const NumberedRecords records{prefix, copy_numbers(numbers, "numbers"),
                                copy_numbers(nbytes, "nbytes")};
  std::string headers;
  {
    const NoGil no_gil;
    headers = zip_local_headers(records);
  }
  return headers;
}

py::bytes central_entries(const std::string& prefix, const py::object& numbers,
                          const py::object& nbytes, const py::object& crcs,
                          const py::object& header_offsets) {
  const NumberedRecords records{prefix, copy_numbers(numbers, "numbers"),
                                copy_numbers(nbytes, "nbytes")};
  const std::vector<std::uint32_t> checksums = copy_crcs(crcs, "crcs");
  const std::vector<std::uint64_t> offsets = copy_numbers(header_offsets, "header_offsets");
  std::string entries;
  {
    const NoGil no_gil;
    entries = zip_central_entries(records, checksums, offsets);
  }
  return entries;
}

}  // namespace

void bind_zip(py::module_& module) {
  module.def("zip_local_headers", &local_headers, "prefix"_a, "numbers"_a, "nbytes"_a,
             "Local headers of the records that are called prefix and a number.");
  module.def("zip_central_entries", &central_entries, "prefix"_a, "numbers"_a, "nbytes"_a, "crcs"_a,
             "header_offsets"_a, "Entries of the central directory for the same records.");
}

}  // namespace gdsckpt::bindings
