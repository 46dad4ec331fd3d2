#include "bindings/bindings.hpp"

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

}  // namespace gdsckpt::bindings
