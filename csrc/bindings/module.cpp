#include "bindings/bindings.hpp"
#include "core/extent.hpp"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Native core of gdsckpt: checksums, slabs and file transfers.";
  module.attr("NO_CRC_SLOT") = gdsckpt::kNoCrcSlot;
  module.attr("HOST") = gdsckpt::kHostDevice;
  gdsckpt::bindings::bind_errors();
  gdsckpt::bindings::bind_crc32(module);
  gdsckpt::bindings::bind_memory(module);
  gdsckpt::bindings::bind_cuda(module);
  gdsckpt::bindings::bind_cufile(module);  // before the engines: see there
  gdsckpt::bindings::bind_engine(module);
  gdsckpt::bindings::bind_nvtx(module);
  gdsckpt::bindings::bind_pickle(module);
  gdsckpt::bindings::bind_snapshot(module);
  gdsckpt::bindings::bind_zip(module);
}
