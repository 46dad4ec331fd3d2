#include "core/nvtx.hpp"

#if !defined(GDSCKPT_NO_NVTX) && __has_include(<nvtx3/nvToolsExt.h>)
#define GDSCKPT_HAS_NVTX 1
#include <nvtx3/nvToolsExt.h>
#else
#define GDSCKPT_HAS_NVTX 0
#endif

namespace gdsckpt {

std::optional<NvtxName> find_nvtx_name(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kNvtxNames.size(); ++i)
    if (text == kNvtxNames[i]) return static_cast<NvtxName>(i);
  return std::nullopt;
}

bool nvtx_is_compiled() noexcept { return GDSCKPT_HAS_NVTX != 0; }

#if GDSCKPT_HAS_NVTX

namespace {

/// The domain and its names as the profiler knows them: strings cross over once, not per range.
struct Registered {
  Registered() noexcept : domain(nvtxDomainCreateA("gdsckpt")) {
    for (std::size_t i = 0; i < kNvtxNames.size(); ++i)
      names[i] = nvtxDomainRegisterStringA(domain, kNvtxNames[i]);
  }

  nvtxDomainHandle_t domain;  ///< null without a profiler
  std::array<nvtxStringHandle_t, kNvtxNames.size()> names{};
};

/// Made by the first range and never destroyed: threads may outlive static destructors.
const Registered& registered() noexcept {
  static const Registered made;
  return made;
}

}  // namespace

void nvtx_push(NvtxName name, std::uint64_t nbytes) noexcept {
  const Registered& made = registered();
  if (made.domain == nullptr) return;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = made.names[static_cast<std::size_t>(name)];
  if (nbytes > 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = nbytes;
  }
  static_cast<void>(nvtxDomainRangePushEx(made.domain, &attributes));
}

void nvtx_pop() noexcept {
  const nvtxDomainHandle_t domain = registered().domain;
  if (domain != nullptr) static_cast<void>(nvtxDomainRangePop(domain));
}

#else

void nvtx_push(NvtxName /*name*/, std::uint64_t /*nbytes*/) noexcept {}
void nvtx_pop() noexcept {}

#endif

}  // namespace gdsckpt
