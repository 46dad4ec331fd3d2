#include "bindings/bindings.hpp"
#include "core/pickle_splice.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

py::bytes splice(const py::bytes& pickle, const py::object& rows, const py::list& pieces) {
  const BufferView view(pickle, PyBUF_SIMPLE);
  const std::vector<TensorRow> tensors = copy_tensor_rows(rows);
  std::vector<std::string> definitions;
  for (const py::handle piece : pieces) definitions.push_back(py::cast<std::string>(piece));
  std::string spliced;
  {
    const NoGil no_gil;
    spliced = splice_pickle(view.data(), view.nbytes(), tensors, definitions);
  }
  return spliced;
}

}  // namespace

void bind_pickle(py::module_& module) {
  module.def("splice_pickle", &splice, "pickle"_a, "rows"_a, "pieces"_a,
             "Put what rebuilds tensors in the place of their numbers.");
}

}  // namespace gdsckpt::bindings
