// A profiler as far as NVTX is concerned: a library that NVTX loads by NVTX_INJECTION64_PATH. It
// appends what it is told to the file TEST_NVTX_LOG, a line each, in the order of the calls:
//   push TID DOMAIN NAME PAYLOAD     PAYLOAD: an unsigned number, or - for none
//   pop TID DOMAIN
// Anything unexpected becomes a line "bad ...".
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

// What NVTX's handles point to, for ever: threads may use them until the process is gone.
struct nvtxDomainRegistration_st {
  std::string name;
};
struct nvtxStringRegistration_st {
  nvtxDomainHandle_t domain;
  std::string text;
};

namespace {

void write_line(const std::string& line) {
  static std::FILE* const log = std::fopen(std::getenv("TEST_NVTX_LOG"), "a");
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::fprintf(log, "%s\n", line.c_str());
  std::fflush(log);
}

std::string in_thread(nvtxDomainHandle_t domain) {
  return std::to_string(gettid()) + " " + domain->name;
}

nvtxDomainHandle_t create_domain(const char* name) { return new nvtxDomainRegistration_st{name}; }

nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char* text) {
  return new nvtxStringRegistration_st{domain, text};
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const bool is_right = attributes->version == NVTX_VERSION &&
                        attributes->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE &&
                        attributes->messageType == NVTX_MESSAGE_TYPE_REGISTERED &&
                        attributes->message.registered->domain == domain;
  if (!is_right) write_line("bad attributes");
  std::string payload = "-";
  if (attributes->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64)
    payload = std::to_string(attributes->payload.ullValue);
  else if (attributes->payloadType != NVTX_PAYLOAD_UNKNOWN)
    write_line("bad payload type");
  write_line("push " + in_thread(domain) + " " + attributes->message.registered->text + " " +
             payload);
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  write_line("pop " + in_thread(domain));
  return 0;
}

template <typename Function>
void install(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int num_functions = 0;
  const bool is_there =
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &num_functions) != 0 &&
      num_functions > NVTX_CBID_CORE2_DomainCreateA;
  if (!is_there) return 0;
  install(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  install(table, NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
  install(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  install(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}
