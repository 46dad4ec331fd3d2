#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "engine/cufile_driver.hpp"
#include "engine/pinned_engine.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

// Python's signal handlers (Ctrl-C) run between waits of this length.
constexpr std::chrono::milliseconds kSignalInterval{100};

/// Native-endian uint32 each.
py::bytes to_bytes(const std::vector<std::uint32_t>& crcs) {
  return py::bytes(reinterpret_cast<const char*>(crcs.data()), crcs.size() * sizeof(crcs[0]));
}

/// Waits without the GIL, in slices between which signals are handled.
bool wait(const TransferHandle& handle, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLongestS = 1e9;  // what a time point can hold; also for infinity
  const double seconds = timeout_s > 0 ? std::min(timeout_s, kLongestS) : 0.0;  // NaN: 0
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  Transfer& transfer = handle.get();
  while (true) {
    bool has_ended = false;
    bool is_late = false;
    {
      const NoGil no_gil;
      const auto rest = deadline - Clock::now();
      has_ended = transfer.wait_for(
          std::clamp<Clock::duration>(rest, Clock::duration::zero(), kSignalInterval));
      is_late = Clock::now() >= deadline;
    }
    if (has_ended || is_late) return has_ended;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void wait_for_end(const TransferHandle& handle) {
  while (!wait(handle, 3600.0)) {
  }
}

void result(const TransferHandle& handle) {
  wait_for_end(handle);
  handle.get().result();
}

void bind_file(py::module_& module) {
  py::class_<File, std::shared_ptr<File>>(
      module, "File", "What a transfer needs to know of an open file; has descriptors of its own.")
      .def(py::init([](const py::str& path, int buffered_fd, int direct_fd,
                       std::uint64_t alignment) {
             return std::make_shared<File>(encode_path(path), buffered_fd, direct_fd, alignment);
           }),
           "path"_a, "buffered_fd"_a, "direct_fd"_a = -1, "alignment"_a = 4096)
      .def("close", &File::close,
           "Needed no more: the descriptors go as soon as no transfer uses them.")
      .def("abandon", &File::abandon, "For a forked child: closes its copies at once.")
      .def_property_readonly(
          "path", [](const File& file) { return decode_path(file.path()); },
          "The path, for messages.")
      .def_property_readonly("buffered_fd", &File::buffered_fd,
                             "Its descriptor without O_DIRECT; -1 when closed.")
      .def_property_readonly("alignment", &File::alignment, "What direct I/O needs.")
      .def_property_readonly("is_direct", &File::is_direct,
                             "True while direct I/O is there and has not been refused.")
      .def_property_readonly("direct_refused", &File::direct_refused,
                             "Why direct I/O was given up; empty if it was not.")
      .def(
          "attach_cufile",
          [](File& file) {
            const NoGil no_gil;
            return file.attach_cufile(cufile_driver());
          },
          "Register with cuFile, once; False where it does not take the file.")
      .def_property_readonly("cufile_refused", &File::cufile_refused,
                             "Why cuFile was given up; empty if it was not.")
      .def_property_readonly("cufile_skipped", &File::cufile_skipped,
                             "Why some memory did not go by cuFile; empty if all could.");
}

void bind_transfer(py::module_& module) {
  py::class_<TransferHandle>(module, "Transfer", "A write, read or scan that is under way.",
                             py::release_gil_before_calling_cpp_dtor())
      .def("wait", &wait, "timeout_s"_a, "True when the transfer has ended, well or not.")
      .def(
          "cancel", [](const TransferHandle& handle) { handle.get().cancel(); },
          py::call_guard<NoGil>(), "Drop what has not been started.")
      .def("result", &result, "Wait for the end and raise what went wrong.")
      .def_property_readonly(
          "done_bytes", [](const TransferHandle& handle) { return handle.get().done_bytes(); },
          "File bytes done so far.")
      .def_property_readonly(
          "total_bytes", [](const TransferHandle& handle) { return handle.get().total_bytes(); },
          "File bytes of the whole transfer.")
      .def_property_readonly(
          "prefix_bytes", [](const TransferHandle& handle) { return handle.get().prefix_bytes(); },
          "Bytes from the beginning of a write below which all is done.")
      .def_property_readonly(
          "buffered_bytes",
          [](const TransferHandle& handle) { return handle.get().buffered_bytes(); },
          "Bytes done through the page cache.")
      .def_property_readonly(
          "direct_bytes", [](const TransferHandle& handle) { return handle.get().direct_bytes(); },
          "Bytes done by direct I/O.")
      .def_property_readonly(
          "cufile_bytes", [](const TransferHandle& handle) { return handle.get().cufile_bytes(); },
          "Bytes done by cuFile.")
      .def(
          "extent_crcs",
          [](const TransferHandle& handle) {
            wait_for_end(handle);
            return to_bytes(handle.get().extent_crcs());
          },
          "CRC-32 of each extent, native-endian uint32, in the order given.")
      .def(
          "chunk_crcs",
          [](const TransferHandle& handle) {
            wait_for_end(handle);
            return to_bytes(handle.get().chunk_crcs());
          },
          "CRC-32 of each chunk, native-endian uint32, in file order.");
}

using HandlePtr = std::unique_ptr<TransferHandle>;

// `owner` is kept alive by the returned object: the call policy does it.
HandlePtr write(PinnedEngine& engine, std::shared_ptr<File> file, const py::object& extents,
                std::uint64_t chunk_bytes, const py::object& streams, const py::object& device_crcs,
                const py::object& /*owner*/) {
  std::vector<Extent> rows = copy_extents(extents);
  const std::vector<ProducerStream> producers = copy_streams(streams);
  std::vector<std::uint32_t> crcs = copy_crcs(device_crcs, "device_crcs");
  const NoGil no_gil;
  return std::make_unique<TransferHandle>(
      engine.write(std::move(file), std::move(rows), chunk_bytes, producers, std::move(crcs)));
}

HandlePtr read(PinnedEngine& engine, std::shared_ptr<File> file, const py::object& extents,
               std::uint64_t gap_bytes, const py::object& streams, const py::object& /*owner*/) {
  std::vector<Extent> rows = copy_extents(extents);
  const std::vector<ProducerStream> producers = copy_streams(streams);
  const NoGil no_gil;
  return std::make_unique<TransferHandle>(
      engine.read(std::move(file), std::move(rows), gap_bytes, producers));
}

HandlePtr scan(PinnedEngine& engine, std::shared_ptr<File> file, std::uint64_t begin,
               std::uint64_t end, std::uint64_t chunk_bytes) {
  const NoGil no_gil;
  return std::make_unique<TransferHandle>(
      engine.scan(std::move(file), FileRange{begin, end}, chunk_bytes));
}

/// The engines alive, for the end of the interpreter. Used with the GIL; never destroyed, as static
/// destructors run when threads may still be at work.
std::vector<std::weak_ptr<PinnedEngine>>& engines() {
  static auto* const list = new std::vector<std::weak_ptr<PinnedEngine>>();
  return *list;
}

std::shared_ptr<PinnedEngine> make_engine(std::size_t io_threads, std::size_t slab_bytes,
                                          std::size_t num_slabs) {
  const PinnedEngineOptions options{io_threads, slab_bytes, num_slabs};
  auto engine = std::make_shared<PinnedEngine>(options);
  auto& list = engines();
  list.erase(std::remove_if(list.begin(), list.end(),
                            [](const auto& pointer) { return pointer.expired(); }),
             list.end());
  list.push_back(engine);
  return engine;
}

/// Ends what runs before the interpreter frees the memory of its globals, in whatever order.
void close_engines() {
  const auto list = std::exchange(engines(), {});
  const NoGil no_gil;
  for (const std::weak_ptr<PinnedEngine>& pointer : list)
    if (const auto engine = pointer.lock(); engine != nullptr && !engine->is_forked()) {
      engine->close();
    }
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_file(module);
  bind_transfer(module);
  py::module_::import("atexit").attr("register")(py::cpp_function(&close_engines));
  py::class_<PinnedEngine, std::shared_ptr<PinnedEngine>>(module, "Engine",
                                                          "Threads and slabs that move bytes.",
                                                          py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&make_engine), py::kw_only(), "io_threads"_a, "slab_bytes"_a, "num_slabs"_a)
      .def("write", &write, "file"_a, "extents"_a, py::kw_only(), "chunk_bytes"_a,
           "streams"_a = py::none(), "device_crcs"_a = py::none(), "owner"_a = py::none(),
           py::keep_alive<0, 7>(), "Gather extents and write them.")
      .def("read", &read, "file"_a, "extents"_a, py::kw_only(), "gap_bytes"_a = 65536,
           "streams"_a = py::none(), "owner"_a = py::none(), py::keep_alive<0, 6>(),
           "Read extents to their addresses.")
      .def("scan", &scan, "file"_a, "begin"_a, "end"_a, py::kw_only(), "chunk_bytes"_a,
           "Checksum the chunks of a file range.")
      .def_property_readonly("pin_refused", &PinnedEngine::pin_refused,
                             "Why slabs could not be page-locked; empty if they could.")
      .def("close", py::overload_cast<>(&PinnedEngine::close), py::call_guard<NoGil>(),
           "Cancel what runs, wait for its end, join the threads, free the slabs.");
}

}  // namespace gdsckpt::bindings
