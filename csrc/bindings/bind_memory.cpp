#include "bindings/bindings.hpp"
#include "core/fd.hpp"
#include "core/memory.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {

void bind_memory(py::module_& module) {
  module.def("fallocate", &reserve_space, "fd"_a, "nbytes"_a, py::call_guard<NoGil>(),
             "Reserve disk space from offset 0; False where the file system can't.");
  module.def("advise_hugepages", &advise_hugepages, "address"_a, "nbytes"_a,
             py::call_guard<NoGil>(), "Ask for huge pages on the whole pages inside; only advice.");
  module.def("populate", &populate, "address"_a, "nbytes"_a, py::call_guard<NoGil>(),
             "Let the kernel provide the whole pages inside; only advice.");
  module.def(
      "direct_alignment", &direct_alignment, "fd"_a, py::call_guard<NoGil>(),
      "Alignment that direct I/O needs; 4096 where unknown, 0 where there is no direct I/O.");
}

}  // namespace gdsckpt::bindings
