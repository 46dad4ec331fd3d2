#include "shim/dylib.hpp"

#include <dlfcn.h>
#include <link.h>

namespace gdsckpt {
namespace {

std::string path_of(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name[0] == '\0')
    return name;
  return map->l_name;
}

}  // namespace

Dylib Dylib::open(const std::vector<std::string>& candidates) {
  Dylib library;
  for (const std::string& name : candidates) {
    // RTLD_NODELETE: whatever else opens and closes the library, it stays.
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library.handle_ != nullptr) {
      library.path_ = path_of(library.handle_, name);
      library.reason_.clear();
      return library;
    }
    const char* const text = dlerror();
    if (!library.reason_.empty()) library.reason_ += "; ";
    library.reason_ += text != nullptr ? text : name + ": the loader gave no reason";
  }
  return library;
}

void* Dylib::symbol(const char* name) const noexcept {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace gdsckpt
