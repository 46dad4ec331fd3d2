#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/error.hpp"
#include "engine/cufile_driver.hpp"
#include "shim/cufile.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

// What is not open need not be closed: at exit nothing is to be loaded for that.
std::atomic<bool> may_be_open{false};

/// Why cuFile cannot be used; empty if it can.
std::string load(const py::sequence& candidates) {
  std::vector<std::string> paths;
  for (const py::handle candidate : candidates)
    paths.push_back(encode_path(py::cast<py::str>(candidate)));
  const NoGil no_gil;
  return load_cufile(paths).reason;
}

void open(bool allow_compat_mode, bool request_p2pdma, bool private_log, int stats_level,
          std::uint64_t max_direct_io_bytes, const py::str& modules_path) {
  CuFileOptions options;
  options.allows_compat_mode = allow_compat_mode;
  options.requests_p2pdma = request_p2pdma;
  options.keeps_log_private = private_log;
  options.stats_level = stats_level;
  options.max_direct_io_bytes = max_direct_io_bytes;
  options.modules_path = encode_path(modules_path);
  const NoGil no_gil;
  may_be_open.store(true);
  cufile_driver()->open(options);
}

void close() {
  const NoGil no_gil;
  if (may_be_open.load()) cufile_driver()->close();
}

void close_at_exit() {
  const NoGil no_gil;
  if (!may_be_open.load()) return;
  try {
    cufile_driver()->close();
  } catch (const Error&) {
    // A forked child, or the driver refuses: nobody is left to be told, and the process ends.
  }
}

py::dict facts() {
  CuFileFacts facts;
  const CuFileApi* api = nullptr;
  {
    const NoGil no_gil;
    const auto& driver = cufile_driver();
    api = &driver->api();
    facts = driver->facts();
  }
  py::list notes;
  for (const std::string& note : facts.notes) notes.append(note);
  return py::dict("path"_a = decode_path(api->path), "version"_a = api->version,
                  "is_open"_a = facts.is_open, "allows_compat_mode"_a = facts.allows_compat_mode,
                  "max_direct_io_bytes"_a = facts.max_direct_io_bytes, "notes"_a = notes);
}

py::dict stats() {
  CuFileStats stats;
  {
    const NoGil no_gil;
    stats = cufile_driver()->stats();
  }
  return py::dict("p2p_reads"_a = stats.reads.p2p, "nvfs_reads"_a = stats.reads.nvfs,
                  "posix_reads"_a = stats.reads.posix, "read_errors"_a = stats.reads.errors,
                  "p2p_writes"_a = stats.writes.p2p, "nvfs_writes"_a = stats.writes.nvfs,
                  "posix_writes"_a = stats.writes.posix, "write_errors"_a = stats.writes.errors);
}

}  // namespace

void bind_cufile(py::module_& module) {
  // Registered before that of the engines, so it runs after: they end what uses the files.
  py::module_::import("atexit").attr("register")(py::cpp_function(&close_at_exit));
  module.def("cufile_load", &load, "candidates"_a,
             "Load cuFile, once; why it cannot be used, or an empty text.");
  const CuFileOptions defaults;
  module.def("cufile_open", &open, py::kw_only(),
             "allow_compat_mode"_a = defaults.allows_compat_mode,
             "request_p2pdma"_a = defaults.requests_p2pdma,
             "private_log"_a = defaults.keeps_log_private, "stats_level"_a = defaults.stats_level,
             "max_direct_io_bytes"_a = defaults.max_direct_io_bytes,
             "modules_path"_a = defaults.modules_path, "Open cuFile's driver, once.");
  module.def("cufile_close", &close, "Close cuFile's driver.");
  module.def("cufile_facts", &facts, "What is known of the library and its driver.");
  module.def("cufile_stats", &stats, "Which way requests went, counted by the library.");
  module.def(
      "cufile_last_error",
      [] {
        const NoGil no_gil;
        return cufile_driver()->take_last_error();
      },
      "What cuFile logged last as an error; taken once.");
}

}  // namespace gdsckpt::bindings
