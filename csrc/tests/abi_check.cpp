// Prints what the declarations of csrc/shim/*_abi.hpp come to: types of functions, values of
// constants, sizes and offsets of structures. Compiled with GDSCKPT_HAND_WRITTEN_ABI and without,
// it must print the same. Two programs, not one with assertions: functions with C linkage cannot be
// declared twice with types that only look alike. tests/unit/test_native_abi.py compares, and
// writes abi_names.inc: a SHOW_ line for everything that is declared by hand.
#include <cxxabi.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <typeinfo>

#include "shim/cuda_driver.hpp"
#include "shim/cufile.hpp"

namespace {

void show_function(const char* name, const std::type_info& type) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), std::free);
  std::printf("%s: %s\n", name, text.get());
}

template <typename T>
void show_constant(const char* name, T value) {
  std::printf("%s = %lld, %zu bytes\n", name, static_cast<long long>(value), sizeof value);
}

}  // namespace

// The macros of cuda.h give some functions another name, so the parameter must not be expanded.
#define SHOW_FUNCTION(name) show_function(#name, typeid(decltype(::name)));
#define SHOW_CONSTANT(name) show_constant(#name, name);
#define SHOW_TYPE(type) std::printf("%s: %zu bytes\n", #type, sizeof(type));
#define SHOW_FIELD(type, field)                                                   \
  std::printf("%s.%s: at %zu, %zu bytes\n", #type, #field, offsetof(type, field), \
              sizeof(type::field));

int main() {
  GDSCKPT_CUDA_FUNCTIONS(SHOW_FUNCTION)
  GDSCKPT_CUFILE_FUNCTIONS(SHOW_FUNCTION)
  GDSCKPT_CUFILE_STATS_FUNCTIONS(SHOW_FUNCTION)
  SHOW_FUNCTION(cuFileDriverClose_v2)
#include "abi_names.inc"
  return 0;
}
