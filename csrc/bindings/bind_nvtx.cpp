#include <cstdint>
#include <optional>
#include <string>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/nvtx.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

/// A range as a context manager. Written here, not in Python: no signal handler runs between the
/// push and the body of the `with`, so an interrupt never leaves a range open.
class ContextRange {
 public:
  ContextRange(const std::string& name, std::uint64_t nbytes)
      : name_(parse(name)), nbytes_(nbytes) {}

  void enter() const noexcept { nvtx_push(name_, nbytes_); }
  void exit(const py::args& /*raised*/) const noexcept { nvtx_pop(); }

 private:
  static NvtxName parse(const std::string& text) {
    if (const std::optional<NvtxName> name = find_nvtx_name(text)) return *name;
    std::string known;
    for (const char* name : kNvtxNames) known += known.empty() ? name : std::string(", ") + name;
    throw ConfigError("there is no range \"" + text + "\"; use one of " + known + ".", "name");
  }

  NvtxName name_;
  std::uint64_t nbytes_;
};

}  // namespace

void bind_nvtx(py::module_& module) {
  module.def("nvtx_compiled", &nvtx_is_compiled,
             "Whether NVTX's headers were there at build time.");
  py::class_<ContextRange>(module, "NvtxRange", "A range that profilers show.")
      .def(py::init<const std::string&, std::uint64_t>(), "name"_a, "nbytes"_a = 0)
      .def("__enter__", &ContextRange::enter)
      .def("__exit__", &ContextRange::exit);
}

}  // namespace gdsckpt::bindings
