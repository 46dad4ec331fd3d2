#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/extent.hpp"
#include "core/pickle_splice.hpp"
#include "core/samples.hpp"
#include "engine/device_streams.hpp"
#include "engine/gather.hpp"

/// The only code that knows Python. Addresses, numbers, paths and descriptors cross this line, no
/// objects of the engine's own making, and every call that can block releases the GIL.
namespace gdsckpt::bindings {

/// Releases the GIL for its lifetime, as py::gil_scoped_release does, but for this: where the
/// interpreter has ended meanwhile, Python before 3.14 ends the thread that takes the GIL again. It
/// would be unwound out of a destructor, which aborts the process. So the thread stays where it is
/// until the process has ended, as from 3.14 on.
class NoGil {
 public:
  NoGil() noexcept : state_(PyEval_SaveThread()) {}
  ~NoGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // glibc unwinds by an exception, which must not be caught to the end
      while (true) pause();
    }
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* const state_;
};

/// A view of any contiguous Python buffer, held for the lifetime of the object. Made and destroyed
/// with the GIL; the bytes may be used without it.
class BufferView {
 public:
  /// `flags`: PyBUF_*; raises what the exporter raises (BufferError, TypeError).
  BufferView(const pybind11::object& exporter, int flags);
  ~BufferView();
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  std::uint8_t* data() const noexcept { return static_cast<std::uint8_t*>(view_.buf); }
  std::size_t nbytes() const noexcept { return static_cast<std::size_t>(view_.len); }
  std::size_t item_bytes() const noexcept { return static_cast<std::size_t>(view_.itemsize); }
  std::string format() const { return view_.format == nullptr ? "B" : view_.format; }

 private:
  Py_buffer view_{};
};

/// A path in Python's file system encoding, in both directions (PEP 383: any bytes survive).
std::string encode_path(const pybind11::str& path);
pybind11::object decode_path(const std::string& path);

/// Rows of unsigned 64-bit numbers, of any buffer that holds such. Throw ConfigError.
std::vector<Extent> copy_extents(const pybind11::object& buffer);
/// None: no streams.
std::vector<ProducerStream> copy_streams(const pybind11::object& buffer);
std::vector<SampledMemory> copy_sampled(const pybind11::object& buffer);
std::vector<CopyRow> copy_copy_rows(const pybind11::object& buffer);
std::vector<TensorRow> copy_tensor_rows(const pybind11::object& buffer);
/// Unsigned numbers of any buffer that holds such; of None, `copy_crcs` makes none. `field`: the
/// name of the argument, for the ConfigError that they throw.
std::vector<std::uint64_t> copy_numbers(const pybind11::object& buffer, const char* field);
std::vector<std::uint32_t> copy_crcs(const pybind11::object& buffer, const char* field);

void bind_errors();
void bind_crc32(pybind11::module_& module);
void bind_memory(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_cufile(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_nvtx(pybind11::module_& module);
void bind_pickle(pybind11::module_& module);
void bind_snapshot(pybind11::module_& module);
void bind_zip(pybind11::module_& module);

}  // namespace gdsckpt::bindings
