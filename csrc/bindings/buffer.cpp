#include <cstring>

#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace py = pybind11;

namespace gdsckpt::bindings {

BufferView::BufferView(const py::object& exporter, int flags) {
  if (PyObject_GetBuffer(exporter.ptr(), &view_, flags) != 0) throw py::error_already_set();
}

BufferView::~BufferView() { PyBuffer_Release(&view_); }

std::string encode_path(const py::str& path) {
  const auto encoded = py::reinterpret_steal<py::bytes>(PyUnicode_EncodeFSDefault(path.ptr()));
  if (!encoded) throw py::error_already_set();
  return encoded;
}

py::object decode_path(const std::string& path) {
  auto decoded = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<py::ssize_t>(path.size())));
  if (!decoded) throw py::error_already_set();
  return decoded;
}

namespace {

/// Rows of unsigned 64-bit numbers. `field`: name of the argument; `columns`: what a row holds.
template <typename Row>
std::vector<Row> copy_rows(const py::object& buffer, const char* field, const char* columns) {
  const BufferView view(buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
  const std::string format = view.format();
  const bool is_uint64 =
      view.item_bytes() == sizeof(std::uint64_t) && (format == "Q" || format == "L");
  if (!is_uint64 || view.nbytes() % sizeof(Row) != 0)
    throw ConfigError(std::string(field) + " is a buffer of " + std::to_string(view.nbytes()) +
                          " bytes with format '" + format + "'; it must hold rows of " +
                          std::to_string(sizeof(Row) / sizeof(std::uint64_t)) +
                          " unsigned 64-bit numbers (" + columns + "), such as array('Q').",
                      field);
  std::vector<Row> rows(view.nbytes() / sizeof(Row));
  if (!rows.empty()) std::memcpy(rows.data(), view.data(), view.nbytes());
  return rows;
}

}  // namespace

std::vector<Extent> copy_extents(const py::object& buffer) {
  return copy_rows<Extent>(buffer, "extents", "address, nbytes, file_offset, crc_offset, device");
}

std::vector<ProducerStream> copy_streams(const py::object& buffer) {
  if (buffer.is_none()) return {};
  return copy_rows<ProducerStream>(buffer, "streams", "device, stream");
}

std::vector<SampledMemory> copy_sampled(const py::object& buffer) {
  return copy_rows<SampledMemory>(buffer, "rows", "number, address, nbytes");
}

std::vector<CopyRow> copy_copy_rows(const py::object& buffer) {
  return copy_rows<CopyRow>(buffer, "rows", "source, dest, nbytes, device");
}

std::vector<TensorRow> copy_tensor_rows(const py::object& buffer) {
  return copy_rows<TensorRow>(buffer, "rows",
                              "rebuild, storage type, dtype, key, location, numel, offset, size, "
                              "stride, requires_grad");
}

std::vector<std::uint64_t> copy_numbers(const py::object& buffer, const char* field) {
  return copy_rows<std::uint64_t>(buffer, field, "a number");
}

std::vector<std::uint32_t> copy_crcs(const py::object& buffer, const char* field) {
  if (buffer.is_none()) return {};
  const BufferView view(buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
  if (view.format() != "I")
    throw ConfigError(std::string(field) + " has format '" + view.format() +
                          "'; it must hold unsigned 32-bit numbers, such as array('I').",
                      field);
  std::vector<std::uint32_t> crcs(view.nbytes() / sizeof(std::uint32_t));
  if (!crcs.empty()) std::memcpy(crcs.data(), view.data(), view.nbytes());
  return crcs;
}

}  // namespace gdsckpt::bindings
