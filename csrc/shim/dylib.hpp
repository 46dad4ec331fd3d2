#pragma once

#include <string>
#include <vector>

namespace gdsckpt {

/// A shared library that may be absent: that is a state with a reason, not an error. Never closed:
/// libcufile crashes when it is (rapidsai/cucim#158), and drivers keep threads of their own.
class Dylib {
 public:
  /// Loads the first of `candidates` that can be loaded: paths, or names for the system's search.
  static Dylib open(const std::vector<std::string>& candidates);

  bool is_loaded() const noexcept { return handle_ != nullptr; }
  /// The file that was loaded, as the loader knows it; empty if none was.
  const std::string& path() const noexcept { return path_; }
  /// Why none was loaded; empty if one was.
  const std::string& reason() const noexcept { return reason_; }

  /// Address of a symbol, or nullptr.
  void* symbol(const char* name) const noexcept;

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string reason_;
};

}  // namespace gdsckpt
