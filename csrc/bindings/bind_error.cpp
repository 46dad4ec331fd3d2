#include "bindings/bindings.hpp"
#include "core/error.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdsckpt::bindings {
namespace {

/// Raises class `name` of gdsckpt.errors. Imported when needed: the extension itself must be
/// importable alone, and the module is in sys.modules after the first time.
void raise(const char* name, const Error& error, const py::dict& fields) {
  const py::object type = py::module_::import("gdsckpt.errors").attr(name);
  const py::object instance = type(decode_path(error.message()), **fields);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

py::dict io_fields(const IoContext& context) {
  return py::dict("op"_a = context.op, "path"_a = decode_path(context.path),
                  "offset"_a = context.offset, "nbytes"_a = context.nbytes);
}

void raise(const StorageError& error) {
  py::dict fields = io_fields(error.context());
  fields["errno"] = error.code();
  raise("StorageError", error, fields);
}

void raise(const ShortTransferError& error) {
  py::dict fields = io_fields(error.context());
  fields["expected_bytes"] = error.expected_bytes();
  fields["actual_bytes"] = error.actual_bytes();
  raise("ShortTransferError", error, fields);
}

void raise(const CuFileError& error) {
  py::dict fields = io_fields(error.context());
  fields["code"] = error.code();
  raise("CuFileError", error, fields);
}

void raise(const EngineUnavailableError& error) {
  py::tuple reasons(error.reasons().size());
  for (std::size_t i = 0; i < error.reasons().size(); ++i) reasons[i] = error.reasons()[i];
  raise("EngineUnavailableError", error,
        py::dict("engine"_a = error.engine(), "reasons"_a = reasons));
}

void translate(std::exception_ptr pointer) {
  try {
    // Looking up and building the class runs Python, which may fail in its own way: let that out.
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StorageError& error) {
      raise(error);
    } catch (const ShortTransferError& error) {
      raise(error);
    } catch (const ConfigError& error) {
      raise("ConfigError", error, py::dict("field"_a = error.field()));
    } catch (const EngineUnavailableError& error) {
      raise(error);
    } catch (const CudaError& error) {
      raise("CudaError", error, py::dict("op"_a = error.op(), "code"_a = error.code()));
    } catch (const CuFileError& error) {
      raise(error);
    } catch (const ChecksumError& error) {
      raise("ChecksumError", error,
            py::dict("path"_a = decode_path(error.path()), "offset"_a = error.offset(),
                     "expected"_a = error.expected(), "actual"_a = error.actual()));
    } catch (const AllocationError& error) {
      PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const InternalError& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  } catch (py::error_already_set& error) {
    error.restore();
  }
}

}  // namespace

void bind_errors() { py::register_local_exception_translator(translate); }

}  // namespace gdsckpt::bindings
